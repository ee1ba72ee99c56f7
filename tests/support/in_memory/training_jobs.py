"""Jobs that train in a cluster in memory, print steps, and whose nodes' kernels say something meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import timedelta

from made_records import OPTED_IN, ended, evidence

from in_memory.daemon import RULES, Daemon, FakeSink
from in_memory.world import World
from sentinel.adapters.host.kmsg import Record
from sentinel.agent.collectors.kernel_log import rules_reader
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Kind, Source, Trust


class TrainingJobs:
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

    async def called_hung(self, after_s: float = 0.0) -> None:
        """The first job is called hung so long after its last step."""
        now = self.there.slurm.clock.now()
        stall = evidence(Kind.STALL, source=Source.PROGRESS, job=self.there.job, attempt=0, data={"step": self.step})
        await self.daemon.observe([dataclasses.replace(stall, at=now - timedelta(seconds=after_s), seen_at=now)])

    async def minutes_pass(self, count: int) -> None:
        for _ in range(count):
            await self.daemon.pass_time(60.0)
            await self.daemon.fleets.take()
            await self.daemon.housekeeping()

    async def restart_daemon(self) -> None:
        self.daemon = Daemon(self.there, [self.sink])
        await self.begin()

    async def ended(self, exit_code: int = 1) -> None:
        """The first job's program fails."""
        self.there.slurm.end(self.there.job, exit_code=exit_code)
        now = self.there.slurm.clock.now()
        await self.daemon.observe([dataclasses.replace(ended(self.there.job), at=now, seen_at=now)])

    async def settle(self) -> None:
        await self.daemon.quiet()
        await self.daemon.fleets.take()
        await self.daemon.pass_time(60.0)
        await self.daemon.quiet()

    def restarts(self) -> list[int]:
        return [self.there.slurm.jobs[job].restarts for job in self.jobs]

    def drained(self) -> set[str]:
        return {name for name, node in self.there.slurm.nodes.items() if node.drained}

    def on(self) -> tuple[str, ...]:
        """The first job's nodes."""
        return self.there.slurm.jobs[self.there.job].on
