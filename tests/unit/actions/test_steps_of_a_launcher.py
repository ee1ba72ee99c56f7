"""Names of steps, and how many there are, are the user's: what is done for them with the daemon's rights is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.world import ECC, Fate, World
from made_records import ended, incident, plan

from sentinel.actions import ACTIONS
from sentinel.model.launching import RUN, STEP_NAME
from sentinel.model.records import Outcome, Result, Scalar, Step, StepKind, Task

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
