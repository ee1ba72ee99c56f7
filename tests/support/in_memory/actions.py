"""What tests of actions share: their means over an in-memory world, one task of a plan, what was chosen or done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from made_records import AT, ended, incident, plan

from in_memory.world import ECC, Fate, World
from sentinel.actions import ACTIONS, Means, Task
from sentinel.model.records import Outcome, Scalar, Step, StepKind


def means(world: World) -> Means:
    return world.means(Fate())


def task(world: World, kind: StepKind, *, node: str | None = None, attempt: int = 0, **data: Scalar) -> Task:
    job = None if node else world.job
    step = Step(kind, node=node, job=job, attempt=None if node else attempt, data=data)
    return Task(incident(ended(world.job), job=world.job), ECC, plan(step), step)


@dataclasses.dataclass
class Known:
    """A ledger that knows how one step ended."""

    step: Step
    ended: Outcome

    def outcome(self, _incident: str, step: Step) -> Outcome | None:
        return self.ended if step == self.step else None

    async def progressed(self, _task: Task, _data: Mapping[str, Scalar]) -> None:
        return None


async def do(world: World, kind: StepKind, **how: Any) -> Outcome:
    return await ACTIONS[kind](task(world, kind, **how), means(world))


async def stopped(there: World) -> Step:
    """The step that has stopped the job, with its nodes excluded since."""
    stop = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    there.store.intend(plan(stop), stop, AT)
    there.store.record(plan(stop), await do(there, StepKind.REQUEUE_HOLD))
    await do(there, StepKind.EXCLUDE, nodes="n1")
    return stop
