"""A job that prints no more steps is reported once, unless it waits, is suspended or Slurm does not answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.standing import look, steps, waiting
from in_memory.watch import Scene
from in_memory.world import World
from made_records import evidence

from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]


async def test_job_that_stands_still_is_reported_once(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    assert await look(scene, 11.9) == []
    assert (await look(scene, 0.25))[0] == Kind.STALL
    assert "job-silent" in scene.daemon.said
    assert (await look(scene, 60.0)).count(Kind.STALL) == 1
    item = scene.reported[0]
    assert (item.where.job, item.where.attempt, item.data["step"]) == (scene.world.job, 0, 37)
    assert f"job-stalled job={scene.world.job} attempt=0 step=37" in scene.daemon.said


async def test_steps_outlive_a_daemon_that_dies_before_it_has_reconciled(world: Worlds) -> None:
    before = Scene(world(), orders=waiting())
    await steps(before, 3, last=2)
    await look(before, 0.1)
    after = Scene(before.world)
    await after.start()
    assert after.live.attempts[before.world.job, 0].last_step == 2
    await steps(before, 30, last=37)
    assert Kind.STALL in await look(before, 30.0)  # and dies before anybody acknowledges it
    again = Scene(before.world, orders=waiting())
    await again.start()
    await again.fleets.take()
    assert Kind.STALL in await look(again, 30.0)
    assert again.reported[0].data["step"] == 37


async def test_job_that_goes_on_may_stall_again(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    await look(scene, 25.0)
    now_s = 25.0
    scene.live.note(
        evidence(Kind.STEP, at_s=now_s, source=Source.PROGRESS, job=scene.world.job, attempt=0, data={"step": 38})
    )
    # It waited for 25 s and went on: only half as long again proves more.
    assert (await look(scene, 60.0)).count(Kind.STALL) == 2
    assert len({item.id for item in scene.reported if item.kind == Kind.STALL}) == 2


async def test_slurm_that_does_not_answer_leaves_it_not_known(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    scene.world.slurm.answers = False
    assert await look(scene, 25.0) == []
    scene.world.slurm.answers = True
    assert Kind.STALL in await look(scene, 1.0)


@pytest.mark.parametrize("end", ["failed", "requeued", "purged"])
async def test_job_that_runs_no_more_is_no_stall(world: Worlds, end: str) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    scene.world.slurm.end(scene.world.job, exit_code=1)
    if end == "requeued":
        scene.world.slurm.back_to_queue(scene.world.slurm.jobs[scene.world.job], held=False)
    if end == "purged":
        scene.world.slurm.purge(scene.world.job)
    assert await look(scene, 25.0) == []


async def test_suspended_job_is_no_stall_and_gets_its_time_when_it_runs_again(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    this = scene.world.slurm.jobs[scene.world.job]
    this.state = "SUSPENDED"
    for _ in range(20):
        assert await look(scene, 30.0) == []
    this.state = "RUNNING"
    await scene.reconcile()
    assert await look(scene, 5.0) == []  # nobody steps at the moment of its resumption
    assert Kind.STALL in await look(scene, 20.0)


async def test_suspension_that_began_and_ended_between_two_looks_is_no_stall(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    scene.world.slurm.clock.advance(30.0)
    this = scene.world.slurm.jobs[scene.world.job]
    this.record["suspend_time"] = int(scene.world.slurm.clock.now().timestamp())
    assert await look(scene, 1.0) == []
    assert await look(scene, 5.0) == []
    assert Kind.STALL in await look(scene, 20.0)


async def test_start_up_may_be_long_and_not_for_ever(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 2, last=37)  # too few to have a rhythm
    assert await look(scene, 599.0) == []
    assert (await look(scene, 2.0))[0] == Kind.STALL
    assert "no step after 37 for 600.2 s (too few before to know its usual gap)" in scene.reported[0].text


async def test_job_that_never_printed_a_step_is_not_judged(world: Worlds) -> None:
    scene = Scene(world())
    await scene.fleets.take()
    assert await look(scene, 100000.0, tick_s=4.0) == []
