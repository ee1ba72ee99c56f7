"""What an action is given: the task and the ports it may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sentinel.model import OURS, Incident, JobView, Outcome, Plan, Result, Scalar, Step, StepKind, Verdict
from sentinel.ports import Clock, Ledger, SlurmReader, SlurmWriter


@dataclass(frozen=True, slots=True)
class Task:
    incident: Incident
    verdict: Verdict
    plan: Plan
    step: Step

    @property
    def job(self) -> int:
        assert self.step.job is not None, "a step about a job names it"
        return self.step.job

    @property
    def attempt(self) -> int:
        """The attempt that failed; the next one has a higher restart count."""
        return self.step.attempt or 0

    @property
    def reason(self) -> str:
        """What Slurm shows: who, which incident, why. One line of our own words, no text of users."""
        gpus = ", ".join(self.verdict.culprits.gpus[:4])
        return f"{OURS}{self.incident.id} {self.verdict.cause}{' ' + gpus if gpus else ''}"


class Checkpoints(Protocol):
    async def choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        """The nearest valid checkpoint: path, step, tier, hosts, explanation; no path when there is none."""
        ...

    async def quarantine(self, task: Task, job: JobView, chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Move away what the restarted job must not pick: newer than the chosen one, or invalid."""
        ...


class ResumePoints(Protocol):
    async def write(self, job: int, values: Mapping[str, str]) -> None:
        """What TaskProlog reads; replaces the file at once."""
        ...


class Progress(Protocol):
    def last_step(self, job: int, attempt: int) -> int | None:
        """Newest step that this attempt printed; None when it printed none."""
        ...

    def first_step(self, job: int, attempt: int) -> int | None: ...

    def ended(self, job: int, attempt: int) -> bool:
        """Whether this attempt is known to have ended."""
        ...

    async def changed(self, job: int, within_s: float) -> None:
        """Returns when something new is known about the job, or after ``within_s``."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    clock: Clock
    reader: SlurmReader
    writer: SlurmWriter
    ledger: Ledger
    checkpoints: Checkpoints
    resume: ResumePoints
    progress: Progress
    pending_s: float
    confirm_s: float

    def done(self, task: Task, reason: str = "", data: Mapping[str, Scalar] | None = None) -> Outcome:
        return Outcome(task.step, Result.DONE, self.clock.now(), reason, data or {})

    def failed(self, task: Task, reason: str, data: Mapping[str, Scalar] | None = None) -> Outcome:
        return Outcome(task.step, Result.FAILED, self.clock.now(), reason, data or {})

    def earlier(self, task: Task, kind: StepKind) -> Mapping[str, Scalar]:
        """What an earlier step of this plan found out; empty when it found nothing."""
        outcome = self.ledger.outcome(task.incident.id, Step(kind, job=task.job, attempt=task.step.attempt))
        return outcome.data if outcome is not None and outcome.result is Result.DONE else {}


def names(nodes: Scalar) -> Sequence[str]:
    """Node names of a comma-separated value of a step's data."""
    return [name for name in str(nodes or "").split(",") if name]
