"""The result of one event: changes to save, effects to perform once they are saved, remarks for log and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.model.changes import Change
from sentinel.model.records import Incident, NodeView, Notice, Task


@dataclass(frozen=True, slots=True)
class CarryOutStep:
    """Carry out one step of a plan: a Slurm write, or an order to nodes. ``id`` is the step's key in the ledger."""

    id: str
    task: Task


@dataclass(frozen=True, slots=True)
class ObserveFleet:
    """Take a Slurm snapshot at most ``max_age_s`` old.

    ``once``: try once, and complete also when Slurm does not answer; otherwise retry until it does.
    """

    id: str
    max_age_s: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class AskNodes:
    """Ask the nodes of the incident's job for process states and flight-recorder dumps."""

    id: str
    incident: Incident


@dataclass(frozen=True, slots=True)
class QueryMetrics:
    """Ask Prometheus for signals of storage, switches and power that concern these nodes."""

    id: str
    incident: Incident
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeliverNotice:
    """One attempt to deliver; answered by ``NoticeDelivered`` or ``NoticeNotDelivered``."""

    id: str
    notice: Notice
    receiver: str
    of: tuple[Notice, ...] = ()  # the messages that it tells of: of its thread, or of a digest
    repeat: bool = False  # these, which the receiver has, are sent again: it may have forgotten them


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Raise ``TimerDue`` with this id at ``due``; replaces a running timer with the same id."""

    id: str
    due: datetime


@dataclass(frozen=True, slots=True)
class ProbeNode:
    """Try once to connect to slurmd's port on a silent node; answered by ``NodeProbed``."""

    id: str
    node: NodeView
    deadline_s: float


@dataclass(frozen=True, slots=True)
class LookAtJob:
    """Ask these nodes for the activity of the job's processes and GPUs; answered by ``JobObserved``."""

    id: str
    job: int
    attempt: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskHungJob:
    """Ask a running job, as its user, which rank blocks the others. ``step_s``: usual time between its step lines."""

    id: str
    job: int
    attempt: int
    nodes: tuple[str, ...]
    step_s: float | None


@dataclass(frozen=True, slots=True)
class RunDiagnostic:
    """Have the agent of an idle node run a GPU diagnostic; answered by ``DiagnosticEnded``."""

    id: str
    node: str
    level: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ReadScores:
    """Read the nodes' failure history of a month from the store; answered by ``ScoresRead``."""

    id: str


@dataclass(frozen=True, slots=True)
class WriteDrainReason:
    """Replace Slurm's "Prolog error" on a drained node by this reason; answered by ``DrainReasonWritten``."""

    id: str
    node: str
    reason: str
    drain: bool = False  # it is in service, as its reboot ended our drain: it is drained for this reason


@dataclass(frozen=True, slots=True)
class LendSpares:
    """Change who may use the nodes of this reservation; answered by ``SparesLent``.

    ``give``: jobs, with their users, that may; ``over``: jobs that may not (any more); ``leave``: users without such a job.
    """

    id: str
    reservation: str
    give: tuple[tuple[int, str], ...]
    over: tuple[int, ...]
    leave: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSiteCommand:
    """Run the site's command that resets or reboots a node, if its drain has still this reason and no job holds it;
    answered by ``NodeReturnAnswered``."""

    id: str
    node: str
    action: str
    arguments: tuple[str, ...]
    deadline_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ReturnNode:
    """Return a node to service if its drain has still this reason; answered by ``NodeReturnAnswered``."""

    id: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpenTicket:
    """Open the site's ticket for a node that needs repair; answered by ``NodeReturnAnswered``."""

    id: str
    node: str
    data: Mapping[str, Any] = field(hash=False)


Effect = (
    CarryOutStep
    | ObserveFleet
    | AskNodes
    | QueryMetrics
    | DeliverNotice
    | StartTimer
    | ProbeNode
    | LookAtJob
    | AskHungJob
    | RunDiagnostic
    | ReadScores
    | WriteDrainReason
    | LendSpares
    | RunSiteCommand
    | ReturnNode
    | OpenTicket
)


@dataclass(frozen=True, slots=True)
class Remark:
    """One log line with a stable event name; metrics are counted from remarks."""

    name: str
    fields: Mapping[str, Any]
    warning: bool = False


@dataclass(slots=True)
class Transition:
    changes: list[Change] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def save(self, *changes: Change) -> None:
        self.changes.extend(changes)

    def do(self, *effects: Effect) -> None:
        self.effects.extend(effects)

    def say(self, name: str, /, *, warning: bool = False, **fields: Any) -> None:
        self.remarks.append(Remark(name, fields, warning))

    def add(self, other: Transition) -> None:
        self.changes.extend(other.changes)
        self.effects.extend(other.effects)
        self.remarks.extend(other.remarks)
