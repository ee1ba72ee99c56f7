"""Storage that does not answer for a while: no running job is stopped for it, and one that hangs on it is found."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import pytest
from in_memory.daemon import RULES, Daemon, FakeSink
from in_memory.world import World
from made_records import OPTED_IN, evidence

from sentinel.adapters.host.kmsg import Record
from sentinel.agent.collectors.kernel_log import rules_reader
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Kind, Source, Trust

Worlds = Callable[..., World]
NOT_RESPONDING, OK = "nfs: server nas1 not responding, still trying", "nfs: server nas1 OK"
LOST = (
    "Lustre: lfs-OST0001-osc-ffff: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations using "
    "this service will wait for recovery to complete"
)
RESTORED = "Lustre: lfs-OST0001-osc-ffff: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)"
CLOSED = "libceph: osd3 (1)10.0.0.1:6801 socket closed (con state OPEN)"


class Story:
    """Jobs of two nodes each, which print a step each two seconds, and what their nodes' kernels say."""

    def __init__(self, there: World, jobs: int = 1) -> None:
        self.there, self.sink = there, FakeSink()
        submit = there.slurm.submit
        more = [submit(nodes=2, user=f"u{number}", uid=2000 + number, comment=OPTED_IN) for number in range(jobs - 1)]
        self.jobs = [there.job, *more]
        there.slurm.schedule()
        self.daemon = Daemon(there, [self.sink])
        self.readers = {name: rules_reader(name, "b", Signatures(RULES)) for name in there.slurm.nodes}
        self.step, self.said = 300, 0  # the world itself says that its jobs are at step 250

    async def begin(self) -> None:
        await self.daemon.start()
        await self.daemon.fleets.take()
        await self.daemon.housekeeping()

    async def steps(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            now = self.there.slurm.clock.now()
            made = [
                evidence(Kind.STEP, source=Source.JOB_LOG, node=self.there.slurm.jobs[job].on[0], job=job, attempt=0,
                         trust=Trust.USER, data={"step": self.step, "loss": 2.0}, id=f"{job} {self.step}")
                for job in self.jobs
                if self.there.slurm.jobs[job].state == "RUNNING" and not self.there.slurm.jobs[job].restarts
            ]  # fmt: skip
            await self.daemon.observe([dataclasses.replace(item, at=now, seen_at=now) for item in made])
            await asyncio.sleep(2.0)

    async def say(self, text: str, nodes: Sequence[str]) -> None:
        self.said += 1
        now = self.there.slurm.clock.now()
        record = Record(self.said, now.timestamp(), 3, 0, text, 100.0 + self.said)
        for name in nodes:
            await self.daemon.observe(self.readers[name]([record], now))

    async def called_hung(self) -> None:
        now = self.there.slurm.clock.now()
        stall = evidence(Kind.STALL, source=Source.PROGRESS, job=self.there.job, attempt=0, data={"step": self.step})
        await self.daemon.observe([dataclasses.replace(stall, at=now, seen_at=now)])

    async def settle(self) -> None:
        await self.daemon.quiet()
        await self.daemon.fleets.take()
        await self.daemon.pass_time(60.0)
        await self.daemon.quiet()

    def restarts(self) -> list[int]:
        return [self.there.slurm.jobs[job].restarts for job in self.jobs]


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize(("fault", "again"), [(NOT_RESPONDING, OK), (LOST, RESTORED), (CLOSED, "")])
async def test_a_server_that_is_rebooted_stops_no_job(world: Worlds, fault: str, again: str, passes: bool) -> None:
    """Whether it says that it is back, and whether the jobs make steps in that time."""
    there = Story(world(nodes=8, wide=2), jobs=4)
    await there.begin()
    await there.steps(10)
    await there.say(fault, tuple(there.readers))
    await asyncio.sleep(20.0)
    if again and passes:
        await there.say(again, tuple(there.readers))
    await there.steps(20 if passes else 0)
    await there.settle()
    assert there.restarts() == [0, 0, 0, 0]
    assert bool(there.sink.got) is bool(again), "it is told all the same; that an idle connection was closed is not"


async def test_a_job_that_hangs_on_storage_that_stays_away_is_restarted(world: Worlds) -> None:
    there = Story(world(nodes=8, wide=2))
    await there.begin()
    await there.steps(10)
    await there.say(NOT_RESPONDING, ("n1",))
    await there.settle()
    assert there.restarts() == [0]
    await there.called_hung()
    await there.settle()
    assert there.restarts() == [1]


async def test_a_job_that_makes_steps_again_after_it_was_called_hung_is_left_alone(world: Worlds) -> None:
    there = Story(world(nodes=8, wide=2))
    await there.begin()
    await there.steps(10)
    await there.say(NOT_RESPONDING, ("n1",))
    await there.called_hung()
    await there.steps(3)
    await there.settle()
    assert there.restarts() == [0]
