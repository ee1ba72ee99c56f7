"""What the store knows of a job's earlier restarts and saves. Read in threads: the event loop must not wait for it."""

from __future__ import annotations

import asyncio

from sentinel.adapters.store.store import Store
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Cause, Outcome, Step, StepKind, Task


class EarlierRestarts:
    """All methods raise ``Unavailable`` where the store does not answer."""

    def __init__(self, store: Store, live: ClusterView) -> None:
        self._store = store
        self._live = live

    async def outcome(self, incident: str, step: Step) -> Outcome | None:
        """What became of a step; None: it has not ended."""
        return await asyncio.to_thread(self._store.outcome, incident, step)

    async def rejected(self, task: Task) -> frozenset[str]:
        """Checkpoints from which this job failed to resume: chosen before, and the next attempt printed no step."""
        if task.verdict.cause is not Cause.CHECKPOINT_CORRUPT:
            return frozenset()
        rows = await asyncio.to_thread(self._store.steps_done, [StepKind.CHOOSE_CHECKPOINT], job=task.job)
        return frozenset(
            f"{row['data']['path']}@{row['data'].get('step')}"
            for row in rows
            if row["data"].get("path") and self._live.first_step(task.job, row["attempt"] + 1) is None
        )

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
