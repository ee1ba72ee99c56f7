"""The events that the engine handles. Every event carries its time; the engine has no other clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.engine.watch.events import WatchEvent
from sentinel.errors import SentinelError, Unavailable
from sentinel.model.corrections import Correction
from sentinel.model.records import Evidence, Fleet, Notice, Outcome
from sentinel.model.stored import Stored


@dataclass(frozen=True, slots=True)
class Started:
    """The daemon started with the state loaded from ``stored``; the work of the previous daemon continues."""

    at: datetime
    stored: Stored


@dataclass(frozen=True, slots=True)
class EvidenceReceived:
    """Evidence from agents, hooks, detectors or Prometheus.

    ``saved``: it was read from the store after a start, so it is not saved again.
    """

    at: datetime
    items: tuple[Evidence, ...]
    saved: bool = False


@dataclass(frozen=True, slots=True)
class FleetObserved:
    """A snapshot of Slurm was taken, whether an effect requested it or not."""

    at: datetime
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class FleetUnavailable:
    """A snapshot of Slurm failed, so the cluster's state is not known. ``fix``: what a person could check."""

    at: datetime
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """The store can be written again; since ``since`` it could not, and evidence was refused: its senders kept it."""

    at: datetime
    since: datetime


@dataclass(frozen=True, slots=True)
class EffectCompleted:
    """An effect ended; ``effect`` is its id.

    ``outcome``: for a step of a plan; ``NOT_KNOWN`` means that Slurm's state must be read before the step is retried.
    ``evidence``: for a question, the answers; empty if there were none.
    ``now_s``: as in ``sentinel.engine.watch.events``.
    """

    at: datetime
    effect: str
    outcome: Outcome | None = None
    evidence: tuple[Evidence, ...] = ()
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class EffectProgressed:
    """A step under way is about to send a request, recorded first so that it is known after a crash."""

    at: datetime
    effect: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class NoticeDelivered:
    at: datetime
    notice: Notice
    receiver: str


@dataclass(frozen=True, slots=True)
class NoticeNotDelivered:
    """The receiver did not take it, or a part of its addresses did not.

    ``again``: another attempt may help. ``after_s``: the pause that it asks for. ``took``: addresses that have it.
    ``unsure``: it may have arrived all the same. ``late``: so may it, where it is sent again until an answer comes.
    """

    at: datetime
    notice: Notice
    receiver: str
    reason: str
    again: bool
    after_s: float = 0.0
    took: tuple[str, ...] = ()
    unsure: bool = False
    late: bool = False

    @classmethod
    def because(cls, error: SentinelError, notice: Notice, receiver: str, at: datetime) -> NoticeNotDelivered:
        """What an attempt became that ended so."""
        if not isinstance(error, Unavailable):
            return cls(at, notice, receiver, error.message, False, took=error.took)
        after_s, took = error.after_s, error.took
        return cls(at, notice, receiver, error.message, True, after_s, took, error.unsure, error.late)


@dataclass(frozen=True, slots=True)
class StoreOutageTold:
    """An outage of the store is over of which people were told past the store.

    ``told``: the message as it became for each receiver, and whether that took it; ``over``: that it is over.
    """

    at: datetime
    told: tuple[tuple[Notice, str, bool], ...]
    over: Notice


@dataclass(frozen=True, slots=True)
class TimerDue:
    """``now_s``: as in ``sentinel.engine.watch.events``."""

    at: datetime
    timer: str
    now_s: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """``command``: "pause" or "resume"; ``by``: the operator's account name; ``origin``: the address it came from."""

    at: datetime
    command: str
    by: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class IncidentCorrected:
    """An operator said what the cause was. ``row``: the incident as the store lists it; ``origin``: as above."""

    at: datetime
    row: Mapping[str, Any]
    correction: Correction
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """A person approved or refused parts of a plan that waits for it. ``request``: what was shown, see ``request_of``."""

    at: datetime
    incident: str
    request: str
    what: tuple[str, ...]
    approved: bool
    by: str
    origin: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrendsRead:
    """Hardware counters that show ageing over the last month. A complete list: it replaces the previous one."""

    at: datetime
    trends: tuple[Trend, ...]


@dataclass(frozen=True, slots=True)
class HistoryForgotten:
    """The store deleted what is over since before ``before``, and what is held for a person since then, but ``spared``."""

    at: datetime
    before: datetime
    spared: frozenset[str] = frozenset()  # ids of incidents


@dataclass(frozen=True, slots=True)
class ReportedEnd:
    """How an attempt ended, as Slurm's hook was told: a signal as well as a code of 0 says little of why."""

    at: datetime
    attempt: int
    exit_code: int
    signal: int


@dataclass(frozen=True, slots=True)
class SlurmReported:
    """Slurm's controller hook reported an event. ``jobs``: the jobs concerned, if any; ``ends``: by job, where told."""

    at: datetime
    name: str
    jobs: frozenset[int] = frozenset()
    ends: Mapping[int, ReportedEnd] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ScoresRead:
    """How often nodes fail compared with others, and which counters of theirs show ageing; of the last month."""

    at: datetime
    scores: Mapping[str, NodeScore]
    trends: Mapping[str, tuple[Trend, ...]]


@dataclass(frozen=True, slots=True)
class DiagnosticEnded:
    """A node answered, or did not. ``result``: "pass", "fail", "inconclusive" or "unknown".

    ``evidence``: the findings that came with the answer; the agent also sends them as ordinary evidence, with the same ids.
    """

    at: datetime
    effect: str
    node: str
    result: str = "unknown"
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainReasonWritten:
    """``result``: "written", "refused" (somebody else changed the reason meanwhile) or "unavailable"."""

    at: datetime
    effect: str
    node: str
    result: str
    reason: str = ""  # why it was not written


@dataclass(frozen=True, slots=True)
class SparesLent:
    """``reason``: why something of it was not done; empty: all was."""

    at: datetime
    effect: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeReturnAnswered:
    """A command of the site, a return or a ticket ended.

    ``result``: "done", "failed" (also: killed at its deadline), "refused" (the drain is somebody else's) or "unavailable".
    """

    at: datetime
    effect: str
    node: str
    result: str
    reason: str = ""


Event = (
    Started
    | EvidenceReceived
    | FleetObserved
    | FleetUnavailable
    | StoreAnswers
    | EffectCompleted
    | EffectProgressed
    | NoticeDelivered
    | NoticeNotDelivered
    | StoreOutageTold
    | TimerDue
    | OperatorCommand
    | IncidentCorrected
    | ApprovalGiven
    | TrendsRead
    | HistoryForgotten
    | SlurmReported
    | ScoresRead
    | DiagnosticEnded
    | DrainReasonWritten
    | SparesLent
    | NodeReturnAnswered
    | WatchEvent
)
