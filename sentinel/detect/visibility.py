"""Decides whether enough of the cluster is in contact to conclude anything from missing messages. Pure.

For ``view_settle_s`` after each of these disturbances, silence is not judged:

- A sizable share of the nodes fell silent or came back within a short time: a network, a firewall or an upgrade, one
  cause that is rarely in the nodes.
- The daemon stood still (stopped, suspended, starved of CPU): it must first process what came in meanwhile.
- The daemon ran out of a resource (file descriptors, memory, disk).
- The daemon has just started and has not received a message from any node yet.

Silence is also not judged while more nodes with jobs have fallen silent than nodes are in contact at all.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Protocol


class Limits(Protocol):
    """Limits of visibility; implemented by ``sentinel.config.settings.Judgement``."""

    @property
    def view_share(self) -> float: ...

    @property
    def view_nodes(self) -> int: ...

    @property
    def view_window_s(self) -> float: ...

    @property
    def view_settle_s(self) -> float: ...

    @property
    def view_gap_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Visibility:
    """When and why visibility was last disturbed. Times are seconds of the daemon's monotonic clock."""

    disturbed_s: float  # time of the last disturbance
    why: str
    checked_s: float  # time of the last periodic check
    checked_at: datetime  # the same by the wall clock, which continues while a machine is suspended
    own_fault_s: float = float("-inf")  # last disturbance by the daemon: it stood still, or ran out of a resource
    in_contact: frozenset[str] = frozenset()
    changes: tuple[tuple[float, str], ...] = ()  # nodes that fell silent or came back, within the window


def initial(now_s: float, now: datetime) -> Visibility:
    return Visibility(now_s, "the daemon has just started", now_s, now)


def after_check(seen: Visibility, now_s: float, now: datetime, limits: Limits) -> Visibility:
    """The state after a periodic check of the daemon. A check that is late by either clock shows that it stood still."""
    elapsed_s = now_s - seen.checked_s
    wall_s = (now - seen.checked_at).total_seconds()
    seen = replace(seen, checked_s=now_s, checked_at=now)
    if elapsed_s > limits.view_gap_s:
        return after_own_fault(seen, now_s, f"the daemon stood still for {elapsed_s:.1f} s")
    if abs(wall_s - elapsed_s) > limits.view_gap_s:
        why = f"this machine was suspended or its clock was set: {wall_s - elapsed_s:+.1f} s"
        return after_own_fault(seen, now_s, why)
    return seen


def after_own_fault(seen: Visibility, now_s: float, why: str) -> Visibility:
    """The state after the daemon itself could not ask or receive."""
    return replace(seen, disturbed_s=now_s, why=why, own_fault_s=now_s)


def after_count(
    seen: Visibility,
    in_contact: frozenset[str],
    lost: AbstractSet[str],
    expected: int,
    now_s: float,
    limits: Limits,
) -> Visibility:
    """The state after a count of the nodes in contact.

    Args:
        lost: nodes that carry jobs, were in contact before, and are silent.
        expected: how many nodes should be in contact.
    """
    since_s = now_s - limits.view_window_s
    new = tuple((now_s, name) for name in sorted(in_contact ^ seen.in_contact))
    if new or seen.changes:
        changes = (*(item for item in seen.changes if item[0] >= since_s), *new)
        seen = replace(seen, in_contact=in_contact, changes=changes)
    # Counted only when something changes, not for as long as the changes are kept.
    changed = len({name for _, name in seen.changes}) if new else 0
    if changed >= max(limits.view_nodes, ceil(limits.view_share * expected)):
        why = f"{changed} of {expected} nodes fell silent or came back within {limits.view_window_s:g} s"
        return replace(seen, disturbed_s=now_s, why=why)
    if len(lost) > 1 and len(lost) > len(in_contact):
        why = f"{len(lost)} nodes with jobs are silent, {len(in_contact)} nodes are in contact"
        return replace(seen, disturbed_s=now_s, why=why)
    return seen


def is_sufficient(seen: Visibility, now_s: float, limits: Limits) -> bool:
    """Whether silence may be judged."""
    return now_s - seen.disturbed_s >= limits.view_settle_s
