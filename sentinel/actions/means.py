"""The ports and limits that actions may use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from sentinel.model.identity import is_another
from sentinel.model.records import JobView, NodeView, Outcome, Result, Scalar, Step, StepKind, Task
from sentinel.model.vocabulary import REFUSED_BY_SLURM, REFUSED_SINCE
from sentinel.ports import Clock, SlurmReader, SlurmWriter

WHOLE_SECONDS = timedelta(seconds=1)  # resolution of Slurm's times


class Checkpoints(Protocol):
    async def choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        """The nearest valid checkpoint: path, step, tier, hosts, explanation; no path when there is none."""
        ...

    async def quarantine(self, task: Task, job: JobView, chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Move aside checkpoints that the restarted job must not pick: invalid, or newer than the chosen one."""
        ...


class ResumePoints(Protocol):
    async def write(self, job: int, values: Mapping[str, str]) -> None:
        """Atomically replace the file that TaskProlog reads."""
        ...


class Steps(Protocol):
    """Reads and saves the progress of steps of plans."""

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        """The step's outcome; None if there is none."""
        ...

    async def progressed(self, task: Task, data: Mapping[str, Scalar]) -> None:
        """Save that the step is about to send a request, for a restart after a crash. Returns once it is saved."""
        ...


class Progress(Protocol):
    def last_step(self, job: int, attempt: int) -> int | None:
        """Newest training step that this attempt printed; None if it printed none."""
        ...

    def has_run(self, job: int, attempt: int) -> bool:
        """Whether this attempt was seen on its nodes, or printed a step; False if it did not begin, or nobody looked."""
        ...


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


async def _not_known() -> datetime | None:
    return None


async def _not_asked(_node: NodeView) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Means:
    clock: Clock
    reader: SlurmReader
    writer: SlurmWriter
    ledger: Steps
    checkpoints: Checkpoints
    resume: ResumePoints
    progress: Progress
    pending_s: float
    refused_s: float = 300.0  # how long a request that Slurm refuses for an unknown reason is repeated
    launch_s: float = 30.0  # how long a job's launcher gets to start its next step
    booted_at: Callable[[], Awaitable[datetime | None]] = _not_known  # see ``SlurmReader``
    answers: Callable[[NodeView], Awaitable[bool]] = _not_asked  # whether slurmd on a node takes a connection now
    seconds: Callable[[], float] = _loop_s  # by which an action's waits are measured: its requests take time, too

    async def job(self, task: Task) -> JobView | None:
        """The task's job as Slurm has it now; None: Slurm no longer knows it, or its id is another job's by now."""
        found = await self.reader.job(task.job)
        another = found is not None and task.seen is not None and is_another(task.seen, found)
        return None if another else found

    async def slurmctld_started_since(self, at: datetime) -> bool | None:
        """Whether slurmctld restarted, or a backup took over, in the second of ``at`` or later, and may have lost what was
        confirmed before.

        None: not known. Slurm gives its start in whole seconds.
        """
        booted = await self.booted_at()
        return None if booted is None else booted + WHOLE_SECONDS > at

    def done(self, task: Task, reason: str = "", data: Mapping[str, Scalar] | None = None) -> Outcome:
        return Outcome(task.step, Result.DONE, self.clock.now(), reason, data or {})

    def failed(self, task: Task, reason: str, data: Mapping[str, Scalar] | None = None) -> Outcome:
        return Outcome(task.step, Result.FAILED, self.clock.now(), reason, data or {})

    def refused_for_now(self, task: Task, reason: str, before: Outcome | None) -> Outcome:
        """The outcome of a request that Slurm refused for an unknown reason: it is repeated for a while, then has failed.

        Args:
            before: how the step stood before it was tried this time.
        """
        now = self.clock.now()
        said = before.data.get(REFUSED_SINCE) if before is not None else None
        since = datetime.fromisoformat(said) if isinstance(said, str) else now
        if now - since >= timedelta(seconds=self.refused_s):
            return self.failed(task, reason)
        return self.to_be_repeated(task, reason, {REFUSED_SINCE: since.isoformat()})

    def to_be_repeated(self, task: Task, reason: str, data: Mapping[str, Scalar] | None = None) -> Outcome:
        """The outcome of a step that is tried again, with what its tries so far have recorded."""
        known = self.ledger.outcome(task.incident.id, task.step)
        recorded = known.data if known is not None else {}
        return Outcome(task.step, Result.NOT_KNOWN, self.clock.now(), reason, {**recorded, **(data or {})})

    def refused_drain(self, task: Task, reason: str) -> Outcome:
        """The outcome of a drain that Slurm refused for an unknown reason: it waits to be asked for again."""
        return Outcome(task.step, Result.NOT_KNOWN, self.clock.now(), reason, {REFUSED_BY_SLURM: True})

    def last_try(self, task: Task) -> Outcome | None:
        """How this step ended when it was done before; None if it was not."""
        return self.ledger.outcome(task.incident.id, replace(task.step, tries=task.step.tries - 1))

    def earlier(self, task: Task, kind: StepKind) -> Mapping[str, Scalar]:
        """The data of an earlier step of this plan; empty if that step is not done."""
        step = next((step for step in task.plan.steps if step.kind is kind and step.job == task.job), None)
        step = step or Step(kind, job=task.job, attempt=task.step.attempt)
        outcome = self.ledger.outcome(task.incident.id, step)
        return outcome.data if outcome is not None and outcome.result is Result.DONE else {}
