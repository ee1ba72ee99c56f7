"""Names of steps, and how many there are, are the user's: what is done for them with the daemon's rights is bounded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping

import pytest
from in_memory.world import ECC, Fate, World
from made_records import ended, incident, plan

from sentinel.actions import ACTIONS
from sentinel.model.launching import RUN, STEP_NAME
from sentinel.model.records import JobView, Outcome, Result, Scalar, Step, StepKind, Task

Worlds = Callable[..., World]


async def done(there: World, kind: StepKind, data: dict[str, Scalar]) -> Outcome:
    step = Step(kind, job=there.job, attempt=0, data=data)
    return await ACTIONS[kind](
        Task(incident(ended(there.job), job=there.job), ECC, plan(step), step), there.means(Fate())
    )


@pytest.mark.parametrize(("count", "asked"), [(2, 2), (3000, 0)])
async def test_a_job_with_thousands_of_such_steps_costs_no_request_each(world: Worlds, count: int, asked: int) -> None:
    """Slurm lets a job run tens of thousands; each would be two requests to slurmctld."""
    there = world()
    there.slurm.jobs[there.job].steps.update(dict.fromkeys(range(count), (f"{STEP_NAME}0", ("n1",))))
    found = await done(there, StepKind.STOP_RUN, {"run": 1, "nodes": "n1"})
    assert found.result is (Result.DONE if asked else Result.FAILED), found.reason
    assert [call[0] for call in there.slurm.calls].count("end_step") == asked


async def test_a_job_never_gives_all_of_its_nodes_back(world: Worlds) -> None:
    """Its user may have made it smaller meanwhile; what Slurm makes of a list without nodes is not known."""
    there = world()
    every = ",".join((await there.slurm.fleet()).jobs[there.job].nodes)
    found = await done(there, StepKind.GIVE_BACK, {"given_up": every})
    assert found.result is Result.DONE and "no other node" in found.reason
    assert "set_job" not in [call[0] for call in there.slurm.calls]


async def test_a_launcher_that_took_its_order_at_the_last_moment_is_not_requeued(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step appears after the order was taken back: what then trains is left alone, now and by the requeue."""
    there = world()
    job, written = there.slurm.jobs[there.job], []
    real = there.resume.write

    async def write(number: int, values: dict[str, str]) -> None:
        await real(number, values)
        written.append(RUN in values)
        if RUN not in values:
            job.steps[1] = (f"{STEP_NAME}1", ("n1",))

    monkeypatch.setattr(there.resume, "write", write)
    found = await done(there, StepKind.START_RUN, {"run": 1, "nodes": "n1"})
    assert found.result is Result.DONE and written == [True, False], found.reason


class Slow:
    """Slurm that takes a while for each answer."""

    def __init__(self, there: World, answer_s: float) -> None:
        self._there, self.answer_s = there, answer_s

    async def job(self, job: int) -> JobView | None:
        await asyncio.sleep(self.answer_s)
        return await self._there.slurm.job(job)

    async def steps(self, job: int) -> Mapping[int, str]:
        await asyncio.sleep(self.answer_s)
        return await self._there.slurm.steps(job)


async def slowly(there: World, kind: StepKind, data: dict[str, Scalar], answer_s: float) -> tuple[Outcome, float]:
    """The outcome, and how long it took in seconds."""
    step, began = Step(kind, job=there.job, attempt=0, data=data), there.slurm.clock.now()
    task = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    slow = dataclasses.replace(there.means(Fate()), reader=Slow(there, answer_s))
    found = await ACTIONS[kind](task, slow)
    return found, (there.slurm.clock.now() - began).total_seconds()


@pytest.mark.parametrize("answer_s", [0.01, 0.3, 2.0])
async def test_a_slow_slurm_does_not_lengthen_how_long_a_launcher_gets(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, answer_s: float
) -> None:
    there = world()
    real, orders = there.resume.write, []

    async def write(number: int, values: dict[str, str]) -> None:
        await real(number, values)
        orders.append((RUN in values, there.slurm.clock.now().timestamp()))

    monkeypatch.setattr(there.resume, "write", write)
    found, took_s = await slowly(there, StepKind.START_RUN, {"run": 1, "nodes": "n1"}, answer_s)
    look_s = 2 * answer_s + 0.2  # one look at the job and one at its steps
    assert found.result is Result.FAILED and took_s <= 30.0 + 3.0 + 4 * look_s
    (given, given_s), (kept, taken_s) = orders
    assert (given, kept) == (True, False) and 30.0 <= taken_s - given_s <= 30.0 + look_s


async def test_a_launcher_that_may_have_read_its_order_is_looked_for_however_slow_slurm_is(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look after the order was taken back comes long after the launcher's time was over."""
    there = world()
    job, real = there.slurm.jobs[there.job], there.resume.write

    async def write(number: int, values: dict[str, str]) -> None:
        await real(number, values)
        if RUN not in values:
            job.steps[1] = (f"{STEP_NAME}1", ("n1",))

    monkeypatch.setattr(there.resume, "write", write)
    found, _ = await slowly(there, StepKind.START_RUN, {"run": 1, "nodes": "n1"}, 20.0)
    assert found.result is Result.DONE, found.reason


async def test_a_slow_slurm_does_not_lengthen_the_wait_for_a_step_to_end(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    there.slurm.jobs[there.job].steps[0] = (f"{STEP_NAME}0", ("n1",))

    async def end_step(_job: int, _step: int) -> None:
        await asyncio.sleep(2.0)  # and Slurm goes on listing it

    monkeypatch.setattr(there.slurm, "end_step", end_step)
    found, took_s = await slowly(there, StepKind.STOP_RUN, {"run": 1, "nodes": "n1"}, 2.0)
    assert found.result is Result.DONE and "still lists step" in found.reason
    # Three looks before, the request itself, the wait with the look that ends it, and one for the nodes to give back.
    assert took_s <= 3 * 2.0 + 2.0 + 5.0 + 2.2 + 2.0


async def test_a_launcher_that_begins_after_it_was_given_up_is_left_alone(world: Worlds) -> None:
    there = world()
    found = await done(there, StepKind.START_RUN, {"run": 1, "nodes": "n1"})
    assert found.result is Result.FAILED and RUN not in there.resume.files[there.job]
    there.store.intend(plan(found.step), found.step, found.at)
    there.store.record(plan(found.step), found)
    there.slurm.jobs[there.job].steps[1] = (f"{STEP_NAME}1", ("n1",))
    found = await done(there, StepKind.REQUEUE_HOLD, {})
    assert "after all" in found.reason and found.data == {"goes_on": True}, found.reason
    assert there.slurm.jobs[there.job].restarts == 0
