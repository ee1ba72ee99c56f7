"""A whole plan is carried out: every step has an action, and what fails, is refused or is slow."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from in_memory.actions import do, means, task
from in_memory.daemon import Daemon, states
from in_memory.world import ECC, FakeCheckpoints, World
from made_records import AT, ended, incident, plan

from sentinel.actions import ACTIONS
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Plan, Result, Step, StepKind

Worlds = Callable[..., World]


def test_every_step_a_plan_can_hold_has_an_action() -> None:
    assert set(ACTIONS) == set(StepKind) - {StepKind.CONFIRM}  # the engine sees that by itself


async def _carry(world: World, made: Plan) -> list[dict[str, Any]]:
    """A daemon finds the plan in its store and carries it out; rows of the ledger."""
    world.store.save_incident(incident(ended(world.job), job=world.job))
    world.store.save_verdict(made.incident, ECC, AT)
    world.store.save_plan(made)
    daemon = Daemon(world)
    await daemon.start()
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said
    return world.store.steps_of(made.incident)


def _results(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["kind"], row["result"]) for row in rows]


async def test_failed_drain_does_not_keep_the_job_waiting(world: Worlds) -> None:
    there = world()
    made = plan(Step(StepKind.DRAIN, node="ghost"), Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0))
    assert _results(await _carry(there, made)) == [("drain", "failed"), ("requeue_hold", "done")]


async def test_failed_stop_ends_the_plan_before_anything_else(world: Worlds) -> None:
    there = world()
    there.slurm.cancel(there.job)
    made = plan(*(Step(kind, job=there.job, attempt=0) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE)))
    assert _results(await _carry(there, made)) == [("requeue_hold", "failed")]
    assert _results(await _carry(there, made)) == [("requeue_hold", "failed")]  # nor after a start


@pytest.mark.parametrize("kind", [StepKind.HOLD, StepKind.REQUEUE_HOLD])
async def test_refusal_of_slurm_is_a_failure_and_not_tried_again(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.jobs[there.job].requeue = False
    there.slurm.end(there.job, exit_code=1)
    rows = await _carry(there, plan(Step(kind, job=there.job, attempt=0)))
    assert _results(rows) == [(kind, "failed")] and "has ended with Requeue=0" in rows[0]["reason"]
    assert "submit it again" in rows[0]["reason"]
    assert states(there) == ["closed"], "nobody can release it"


async def test_choice_that_names_no_checkpoint_is_done(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    there.checkpoints = FakeCheckpoints({})
    found = await do(there, StepKind.CHOOSE_CHECKPOINT)
    assert found.result is Result.DONE and "path" not in found.data


async def test_job_whose_restart_fails_half_way_is_left_held_and_starts_when_released(world: Worlds) -> None:
    there = world()
    stop = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    resume = Step(StepKind.WRITE_RESUME, job=there.job, attempt=0)

    async def full(_job: int, _values: Mapping[str, str]) -> None:
        raise Refused("no space left on device")

    there.resume.write = full  # type: ignore[method-assign]
    assert _results(await _carry(there, plan(stop, resume))) == [("requeue_hold", "done"), ("write_resume", "failed")]
    job = there.slurm.jobs[there.job]
    assert job.held and job.state == "PENDING"
    await there.slurm.release(there.job)
    assert job.state == "RUNNING"


async def test_held_job_starts_at_once_when_its_user_releases_it(world: Worlds) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=1)
    await do(there, StepKind.HOLD)
    job = there.slurm.jobs[there.job]
    assert job.held
    await there.slurm.release(there.job)
    assert job.state == "RUNNING"


async def test_an_epilog_that_hangs_costs_slurmctld_few_requests(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    there.slurm.times = dataclasses.replace(there.slurm.times, epilog_s=1e6)
    with_means, looks, waited = means(there), [], []

    class Counting:
        async def job(self, job: int) -> Any:
            looks.append(job)
            return await there.slurm.job(job)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("sentinel.actions.requeue.asyncio.sleep", sleep)
    stuck = dataclasses.replace(with_means, reader=Counting(), seconds=lambda: sum(waited))
    with pytest.raises(Unavailable, match="its epilogs may hang"):
        await ACTIONS[StepKind.REQUEUE_HOLD](task(there, StepKind.REQUEUE_HOLD), stuck)
    assert with_means.pending_s <= sum(waited) <= with_means.pending_s + 2.0
    assert len(looks) < with_means.pending_s  # five in the first seconds, one in two later
    assert waited[:5] == [0.2] * 5


async def test_a_slow_slurm_does_not_lengthen_the_wait_for_epilogs(world: Worlds) -> None:
    there = world()
    there.slurm.times = dataclasses.replace(there.slurm.times, epilog_s=1e6)

    class Slow:
        async def job(self, job: int) -> Any:
            await asyncio.sleep(5.0)
            return await there.slurm.job(job)

    slow = dataclasses.replace(means(there), reader=Slow())
    for state in ("RUNNING", "COMPLETING"):  # requeued by us, and on its way already
        there.slurm.jobs[there.job].state, began = state, there.slurm.clock.now()
        with pytest.raises(Unavailable, match="its epilogs may hang"):
            await ACTIONS[StepKind.REQUEUE_HOLD](task(there, StepKind.REQUEUE_HOLD), slow)
        took_s = (there.slurm.clock.now() - began).total_seconds()
        assert 90.0 <= took_s <= 90.0 + 4 * 5.0 + 2.0, state
