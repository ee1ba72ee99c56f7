"""A restarted job that does not come to its first step is a hang, too; of a job that never printed one, nothing is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

from in_memory.daemon import SETTINGS, FakeOrders
from in_memory.watch import Scene
from in_memory.world import World
from made_records import AT, evidence

from sentinel.config.settings import Judgement
from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]
QUICK = dataclasses.replace(SETTINGS, judgement=Judgement(stall_first_step_s=100.0))


def doing(state: str, cpu_s: float) -> dict[str, object]:
    task = {"rank": 0, "state": state, "pid": 40, "cpu_s": cpu_s, "read_bytes": 10, "written_bytes": 10}
    return {"tasks": [task], "has_gpus": False, "gpus": None}


class Restarted:
    """A job whose attempt 0 printed steps (unless told otherwise), and whose attempt 1 runs now."""

    def __init__(self, world: World, *, printed: bool = True) -> None:
        self.orders = FakeOrders()
        self.does("S", 5.0)
        self.scene = Scene(world, orders=self.orders, settings=QUICK)
        self.job = world.job
        self.printed = printed

    def does(self, state: str, cpu_s: float) -> None:
        for node in ("n1", "n2", "n3", "n4"):
            self.orders.answers[node, "task_states"] = doing(state, cpu_s)

    async def begin(self) -> Restarted:
        await self.scene.fleets.take()
        for number in range(8 if self.printed else 0):
            await self.scene.advance(1.0)
            self.step(0, number)
        await self.scene.check_jobs()
        self.scene.world.slurm.person_requeues(self.job)
        await self.scene.advance(130.0)  # Slurm lets a requeued job wait for two minutes
        await self.scene.fleets.take()
        assert self.scene.live.attempts[self.job, 1].view.state == "running"
        self.scene.settled()
        return self

    def step(self, attempt: int, number: int) -> None:
        at_s = (self.scene.now - AT).total_seconds()
        self.scene.live.note(
            evidence(Kind.STEP, at_s=at_s, source=Source.PROGRESS, job=self.job, attempt=attempt, data={"step": number})
        )

    async def watch(self, for_s: float, *, read: bool = True) -> int:
        """Let time pass; the number of hangs that are reported by then."""
        until = self.scene.now + timedelta(seconds=for_s)
        while self.scene.now < until:
            await self.scene.advance(1.0)
            await self.scene.fleets.take()
            if read:
                self.scene.read(self.job, attempt=1)
            await self.scene.check_jobs()
        return self.scene.kinds.count(Kind.STALL)


async def test_a_restarted_job_that_only_waits_before_its_first_step_is_hung(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    assert await job.watch(95.0) == 0
    assert await job.watch(15.0) == 1
    stall = next(item for item in job.scene.reported if item.kind == Kind.STALL)
    assert stall.data["step"] is None and "no first step for" in stall.text
    assert await job.watch(60.0) == 1, "it is reported once"


async def test_of_a_job_that_never_printed_a_step_nothing_is_known(world: Worlds) -> None:
    job = await Restarted(world(nodes=4), printed=False).begin()
    assert await job.watch(400.0) == 0


async def test_a_first_attempt_is_not_judged(world: Worlds) -> None:
    scene = Scene(world(nodes=4), orders=FakeOrders(), settings=QUICK)
    await scene.fleets.take()
    scene.settled()
    for _ in range(300):
        await scene.advance(1.0)
        scene.read(scene.world.job)
        await scene.check_jobs()
    assert Kind.STALL not in scene.kinds


async def test_a_job_that_works_before_its_first_step_gets_twice_the_time(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    spent_s = 5.0
    for _ in range(19):
        spent_s += 10.0  # of processor time: it compiles, or prepares its data
        job.does("R", spent_s)
        assert await job.watch(10.0) == 0
    job.does("S", spent_s)
    assert await job.watch(20.0) == 1


async def test_a_first_step_in_time_ends_it(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    assert await job.watch(90.0) == 0
    job.step(1, 8)
    assert await job.watch(30.0) == 0


async def test_time_in_which_nobody_read_its_log_does_not_count(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    assert await job.watch(300.0, read=False) == 0
    assert await job.watch(50.0) == 0
    assert await job.watch(65.0) == 1


async def test_time_in_which_slurm_had_suspended_it_does_not_count(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    assert await job.watch(80.0) == 0
    this = job.scene.world.slurm.jobs[job.job]
    this.state = "SUSPENDED"
    assert await job.watch(300.0) == 0
    this.state = "RUNNING"
    assert await job.watch(80.0) == 0
    assert await job.watch(40.0) == 1


async def test_one_line_that_looks_like_a_step_is_none(world: Worlds) -> None:
    job = Restarted(world(nodes=4), printed=False)
    await job.scene.fleets.take()
    job.step(0, 7)
    await job.begin()
    assert await job.watch(400.0) == 0


async def test_what_an_earlier_attempt_took_is_known_to_the_next_daemon(world: Worlds) -> None:
    there = world(nodes=4)
    job = Restarted(there)
    await job.scene.fleets.take()
    await job.scene.advance(200.0)
    await job.begin()
    assert await job.watch(50.0) == 0
    after = Restarted(there)
    await after.scene.start()
    await after.scene.fleets.take()
    after.scene.settled()
    assert await after.watch(590.0) == 0, "three times as long as that one"
    assert await after.watch(50.0) == 1


async def test_a_slow_start_says_nothing_of_how_long_a_later_silence_may_be(world: Worlds) -> None:
    job = await Restarted(world(nodes=4)).begin()
    assert await job.watch(95.0) == 0
    for number in range(8, 108):
        job.step(1, number)
        await job.watch(1.0)
    assert await job.watch(70.0) == 1
