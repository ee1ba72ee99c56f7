"""What the store knows of earlier restarts is read while the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.checkpoints import SHARED, Case, Nodes
from in_memory.world import World
from made_records import incident, plan, step, verdict

from sentinel.actions.means import Task
from sentinel.daemon.effects.earlier_restarts import EarlierRestarts
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Cause, StepKind

Worlds = Callable[..., World]


class SlowStore:
    """A database that is busy: the event loop must not wait for it. ``read``: what was asked, and whether in a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: object) -> None:
        self._store, self._in_thread = store, False
        self.read: list[tuple[str, bool]] = []
        real = asyncio.to_thread

        async def to_thread(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            def called() -> Any:
                self._in_thread = True
                try:
                    return call(*arguments, **named)
                finally:
                    self._in_thread = False

            return await real(called)

        monkeypatch.setattr(asyncio, "to_thread", to_thread)

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            self.read.append((name, self._in_thread))
            return getattr(self._store, name)(*arguments, **named)

        return called


async def test_the_event_loop_waits_for_no_reading_of_the_store(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world(nodes=6)
    store = SlowStore(monkeypatch, there.store)
    nodes = Nodes()
    case = Case(there, nodes, comment=SHARED, store=store)
    part = there.slurm.submit(nodes=1, comment=SHARED, het=there.job)
    there.slurm.jobs[there.job].record["het_job_id"] = there.job
    await case.ended()
    view = await case.view()
    steps = [step(StepKind.CHOOSE_CHECKPOINT, job=number, attempt=0) for number in (part, there.job)]
    task = case.task(verdict(Cause.CHECKPOINT_CORRUPT))
    await case.checkpoints.choose(Task(task.incident, task.verdict, plan(*steps), steps[1]), view)
    assert {name for name, _ in store.read} == {"outcome", "steps_done", "tiers_saved"}
    assert all(in_thread for _, in_thread in store.read), store.read


@pytest.mark.parametrize(("failed", "rejected"), [(3, True), (4, False)])
async def test_only_the_checkpoint_of_the_attempt_that_failed_is_accused(failed: int, rejected: bool) -> None:
    """Attempt 3 resumed from what was chosen after attempt 2. A person requeued the job: of attempt 4 nobody chose one."""

    class Chosen:
        def steps_done(self, kinds: object, job: int) -> list[dict[str, Any]]:
            return [{"incident": "old", "attempt": 2, "data": {"path": "/ck/step-100", "step": 100}}]

    made = step(StepKind.CHOOSE_CHECKPOINT, job=101, attempt=failed)
    task = Task(incident(job=101, attempt=failed), verdict(Cause.CHECKPOINT_CORRUPT), plan(made), made)
    found = await EarlierRestarts(Chosen(), ClusterView()).rejected(task)  # type: ignore[arg-type]
    assert bool(found) is rejected
