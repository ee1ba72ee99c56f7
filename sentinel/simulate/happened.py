"""What a history's promises are checked against: records of what really happened, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.model.records import Notice, Task
from sentinel.simulate.slurm.records import SimulatedJob, SimulatedNode


@dataclass(frozen=True, slots=True)
class SlurmWrite:
    """A request that reaches slurmctld now; the cluster is still as it was before.

    ``task``: the step that asked for it; None: no step of a plan. ``node`` and ``job``: its target as it was before.
    """

    verb: str
    target: str
    fields: Mapping[str, str]
    task: Task | None
    node: SimulatedNode | None
    job: SimulatedJob | None


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    job: int
    attempt: int
    nodes: tuple[str, ...]
    resumed: int | None  # step of the checkpoint that it read; None: from the beginning
    by_order: bool  # the resume point said so, not the script's own search
    valid: bool  # whether that checkpoint could be read, and was from before the numbers went bad
    run: int = 0  # of a job whose launcher starts anew in its allocation; 0: the first of the attempt


@dataclass(frozen=True, slots=True)
class StepBegan:
    task: Task


@dataclass(frozen=True, slots=True)
class ResumeWritten:
    job: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MovedAside:
    """Checkpoints that a node moved into the quarantine: steps."""

    job: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoticeArrived:
    notice: Notice
    receiver: str


@dataclass(frozen=True, slots=True)
class Bug:
    """The daemon logged an error of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class DaemonWrote:
    """One of two daemons writes to the store, or sends a request to slurmctld. ``active``: it has the lease."""

    daemon: str
    active: bool
    what: str


@dataclass(frozen=True, slots=True)
class HistoryEnded:
    """Nothing more happens; everything had time to come to rest."""


Happened = (
    SlurmWrite
    | AttemptBegan
    | StepBegan
    | ResumeWritten
    | MovedAside
    | NoticeArrived
    | Bug
    | DaemonWrote
    | HistoryEnded
)
