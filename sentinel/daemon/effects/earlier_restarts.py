"""What the store knows of a job's earlier restarts and saves. Read in threads: the event loop must not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sentinel.adapters.store.store import Store
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.failed_resume import Resume, checkpoint_name, gained, is_left_out, resume_of
from sentinel.model.identity import JobsOfOneId
from sentinel.model.records import Cause, Kind, Outcome, Step, StepKind, Task


class EarlierRestarts:
    """All methods raise ``Unavailable`` where the store does not answer."""

    def __init__(self, store: Store, live: ClusterView) -> None:
        self._store = store
        self._live = live

    async def outcome(self, incident: str, step: Step) -> Outcome | None:
        """What became of a step; None: it has not ended."""
        return await asyncio.to_thread(self._store.outcome, incident, step)

    async def rejected(self, task: Task) -> Mapping[str, str]:
        """Checkpoints that must not be chosen again, by name, and why: the job failed to read its checkpoint, or two
        attempts in a row did not resume from it; and what was left out before, since the job last gained a step."""
        twice = {
            checkpoint_name(item.data.get("path"), item.data.get("step")): item.text
            for item in task.incident.evidence
            if is_left_out(item)
        }
        corrupt = task.verdict.cause is Cause.CHECKPOINT_CORRUPT
        if not twice and not corrupt:
            return {}
        rows = await asyncio.to_thread(self._store.steps_done, [StepKind.CHOOSE_CHECKPOINT], job=task.job)
        found: dict[str, str] = {}
        # Every attempt of this row gained nothing: of what was chosen then, what the next choice passed over stays out.
        begun = task.attempt
        later: Resume | None = None
        for row in reversed([row for row in rows if row["incident"] != task.incident.id]):
            resume = resume_of(row["attempt"] or 0, row["data"])
            if resume is None or resume.attempt < begun - 1 or gained(self._live, task.job, begun, resume.step):
                break
            if later is None and corrupt:
                found[resume.name] = f"attempt {task.attempt} was to resume from it, and its program could not read one"
            if resume.failed_before and resume.failed_before != resume.name:
                found[resume.failed_before] = "attempts did not resume from it"
            begun, later = resume.attempt, resume
        return found | twice

    def failed(self, task: Task, rejected: Mapping[str, str]) -> str:
        """Name of the checkpoint from which the failed attempt was to resume, if it did not; else empty."""
        for item in task.incident.evidence:
            if item.kind == Kind.NOT_RESUMED:
                return checkpoint_name(item.data.get("path"), item.data.get("step"))
        return next(iter(rejected), "")

    async def progress(self, task: Task) -> tuple[int | None, float | None]:
        """The last step, and seconds a step, of the newest attempt that made any: where the failed one made none, the job
        was where an earlier one left it. None: not known."""
        seen = self._live.attempts.get((task.job, task.attempt))
        if seen is not None and seen.last_step is not None:
            return seen.last_step, seen.usual_step_s()
        rows = await asyncio.to_thread(self._store.attempts, job=task.job) if task.attempt else []
        jobs = JobsOfOneId(rows)
        own = [
            row for row in rows if not jobs.is_former(row["job"], row["started_at"]) and row["attempt"] < task.attempt
        ]
        made = max((row for row in own if row["last_step"] is not None), key=lambda row: row["attempt"], default=None)
        return (made["last_step"], made["step_time_s"]) if made is not None else (None, None)

    async def saved_to(self, job: int | None) -> frozenset[str]:
        """Tiers in which saves of the job were seen."""
        return await asyncio.to_thread(self._store.tiers_saved, job)

    async def left_in(self, job: int | None) -> frozenset[str]:
        """Tiers in which saves were seen since an earlier restart last moved some aside: these may have been all."""
        return await asyncio.to_thread(self._left_in, job)

    def _left_in(self, job: int | None) -> frozenset[str]:
        rows = self._store.steps_done([StepKind.QUARANTINE], job=job)
        moved = [row["attempt"] for row in rows if row["data"].get("moved")]
        return self._store.tiers_saved(job, after=max(moved, default=None))
