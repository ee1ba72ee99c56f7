"""The events of watching: messages of agents, and answers to the questions that watching asks.

``now_s`` is a monotonic clock of the runner in seconds, since silence must not be measured with a clock that can be set.
None: the runner has only one clock (virtual time), so that ``at`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sentinel.detect.activity import Look
from sentinel.detect.observed_silence import LogRead
from sentinel.model.records import Evidence


@dataclass(frozen=True, slots=True)
class WatchStarted:
    """The runner receives messages of agents from now on, so that missing ones count."""

    at: datetime
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A message of the node's agent other than a heartbeat."""

    at: datetime
    node: str
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """An agent's heartbeat, as far as it could be parsed.

    ``jobs``: attempts that run on the node. ``logs``: how far it has read the logs of jobs. ``sent_s``: the agent's
    monotonic clock when it sent the heartbeat, which begins anew with each ``boot``. ``kernel_readable``: whether it reads
    the node's kernel log. ``lost``: pieces of evidence that it could not hand over since it began.
    """

    at: datetime
    node: str
    now_s: float | None = None
    version: str = ""
    verdict: Mapping[str, object] = field(default_factory=dict)
    spool: Mapping[str, object] = field(default_factory=dict)
    clock_offset_s: float | None = None
    gpus: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    jobs: tuple[tuple[int, int], ...] = ()
    logs: tuple[LogRead, ...] = ()
    boot: str = ""
    sent_s: float | None = None
    kernel_readable: bool | None = None
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection on which a node's agent waited for orders broke."""

    at: datetime
    node: str
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestDelayed:
    """A request waited ``for_s`` in the daemon before its sender was identified."""

    at: datetime
    for_s: float
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceExhausted:
    """The daemon's host ran out of a resource: what could not be asked or accepted meanwhile is not known."""

    at: datetime
    why: str
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeProbed:
    """slurmd's port accepted a connection (``refusal`` None, also when a fault here prevents an answer) or did not."""

    at: datetime
    effect: str
    refusal: str | None
    exhausted: str = ""  # the resource that this host ran out of: then nothing is known about the node
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobObserved:
    """The present activity of a job's processes by node, and the same as evidence; nodes without an answer are missing."""

    at: datetime
    effect: str
    looks: Mapping[str, Look]
    evidence: tuple[Evidence, ...] = ()
    now_s: float | None = None


WatchEvent = (
    WatchStarted
    | NodeHeard
    | HeartbeatReceived
    | ConnectionLost
    | RequestDelayed
    | ResourceExhausted
    | NodeProbed
    | JobObserved
)


class Timed(Protocol):
    @property
    def at(self) -> datetime: ...

    @property
    def now_s(self) -> float | None: ...


def seconds_of(event: Timed) -> float:
    """The event's time by the monotonic clock."""
    return event.now_s if event.now_s is not None else event.at.timestamp()
