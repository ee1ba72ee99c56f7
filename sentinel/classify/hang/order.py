"""In what order each rank made its calls: where its device is, and which rank left a call out. Pure.

Times are compared within one rank only; clocks of different hosts are not comparable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.classify.hang.group_state import GroupStates, GroupView
from sentinel.model.collectives import NEVER

_SPREAD = 64  # members; how those of larger groups lie is not written out
_NUMBERS = re.compile(r"[\d:._\-]+")


@dataclass(frozen=True, slots=True)
class Front:
    """The oldest call of a rank that is not completed."""

    group: int  # index in the picture
    sequence: int
    peer: int | None = None  # of a send or receive (its number then counts for the rank alone)
    of: int | None = None


def global_ranks(group: GroupView, order: Sequence[int], rank: int, numbers: Iterable[int]) -> dict[int, int]:
    """Peers' numbers as global ranks: indexes within the group, or global already where the own number says so.

    Args:
        order: the group's members, sorted.
    """
    own = group.traces[rank].local_rank
    if group.closed and own is not None and 0 <= own < len(order) and order[own] == rank:
        return {number: order[number] for number in numbers if 0 <= number < len(order)}
    return {number: number for number in numbers} if own == rank else {}


def fronts(picture: GroupStates) -> dict[int, Front]:
    found: dict[int, tuple[int, Front]] = {}
    for index, group in enumerate(picture.groups):
        order = sorted(group.members)
        for rank, trace in group.traces.items():
            done = group.completed.get(rank)
            for call in trace.calls:
                if call.state != "completed" and (done is None or call.sequence > done) and call.created_ns is not None:
                    _keep(found, rank, call.created_ns, Front(index, call.sequence))
            for channels in (trace.sends, trace.receives):
                peers = global_ranks(group, order, rank, channels)
                for number, channel in channels.items():
                    oldest = channel.oldest_open
                    if oldest is not None and oldest.created_ns is not None and number in peers:
                        front = Front(index, oldest.sequence, peer=peers[number], of=rank)
                        _keep(found, rank, oldest.created_ns, front)
    return {rank: front for rank, (_, front) in found.items()}


def _keep(found: dict[int, tuple[int, Front]], rank: int, at: int, front: Front) -> None:
    if rank not in found or at < found[rank][0]:
        found[rank] = (at, front)


def _roles(picture: GroupStates) -> list[str]:
    """What groups of one kind have in common: the description without its numbers, else how their members lie."""
    roles = []
    twins: dict[object, list[tuple[int, int]]] = {}
    for index, group in enumerate(picture.groups):
        text = _NUMBERS.sub("", group.description)
        lowest = min(group.members, default=0)
        if not text or text == "undefined":
            text = f"of {len(group.members)}" if len(group.members) > _SPREAD else f"of {_offsets(group, lowest)}"
        roles.append(text)
        times = (
            [call.created_ns for call in group.traces[lowest].calls if call.created_ns]
            if lowest in group.traces
            else []
        )
        twins.setdefault((text, group.members), []).append((min(times, default=0), index))
    for alike in twins.values():
        for count, (_, index) in enumerate(sorted(alike)):
            roles[index] += f" {count}" if count else ""
    return roles


def _offsets(group: GroupView, lowest: int) -> str:
    return " ".join(str(rank - lowest) for rank in sorted(group.members))


def offenders(picture: GroupStates, ranks: Iterable[int]) -> frozenset[int]:
    """Those of the ranks that left out a call and made another which everybody else makes after it."""
    candidates = frozenset(ranks)
    calls: dict[int, dict[tuple[str, int], int]] = {}  # rank -> (role, number) -> when
    names = _roles(picture)
    for role, group in zip(names, picture.groups, strict=True):
        for rank, trace in group.traces.items():
            for call in trace.calls:
                if call.created_ns is not None:
                    calls.setdefault(rank, {})[role, call.sequence] = call.created_ns
    found = set()
    for role, group in zip(names, picture.groups, strict=True):
        highest = max((n for rank in group.traces if (n := group.outstanding(rank)) is not None), default=NEVER)
        for rank in candidates & group.traces.keys():
            newest = group.enqueued.get(rank)
            if newest is not None and newest < highest and _skipped(calls, rank, (role, max(newest, 0) + 1)):
                found.add(rank)
    return _few(found, candidates) or _few(_inverted(picture, candidates, calls, names), candidates)


def _few(found: set[int], candidates: frozenset[int]) -> frozenset[int]:
    return frozenset(found) if len(found) < max(2, len(candidates)) else frozenset()


def _inverted(
    picture: GroupStates, candidates: frozenset[int], calls: dict[int, dict[tuple[str, int], int]], names: list[str]
) -> set[int]:
    """Ranks whose device sits in a call that most others make after the one in which they are waited for."""
    at = fronts(picture)
    places = {rank: (names[front.group], front.sequence) for rank, front in at.items() if front.of is None}
    found = set()
    for rank in candidates & places.keys():
        for other in candidates & places.keys():
            waits_in, sits_in = places[other], places[rank]
            both = rank in picture.groups[at[other].group].members and waits_in != sits_in
            own = calls.get(rank, {})
            if both and own.get(sits_in, 0) < own.get(waits_in, 0):
                first = [
                    made[waits_in] < made[sits_in] for _, made in calls.items() if {waits_in, sits_in} <= made.keys()
                ]
                if 2 * sum(first) > len(first):
                    found.add(rank)
    return found


def _skipped(calls: dict[int, dict[tuple[str, int], int]], rank: int, left_out: tuple[str, int]) -> bool:
    """Do most ranks that made both make the left-out call before the newest call of this rank?"""
    own = calls.get(rank)
    if not own:
        return False
    last = max(own, key=lambda call: own[call])
    before = after = 0
    for other, made in calls.items():
        if other != rank and left_out in made and last in made:
            if made[left_out] < made[last]:
                before += 1
            else:
                after += 1
    return before > after
