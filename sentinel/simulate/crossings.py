"""Everything that leaves the daemon crosses here: into Slurm, the store, nodes, receivers. Here it is late or lost.

At a chosen crossing, counted from a chosen moment, the daemon is killed or the answer is lost: before the effect happens or
after it. While slurmctld is gone, slow or refuses, so are the crossings into it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sentinel.adapters.slurm.parse import Record
from sentinel.errors import Denied, Timeout, Unavailable
from sentinel.model.records import Fleet, JobView, NodeView
from sentinel.simulate.slurm.cluster import SimulatedSlurm
from sentinel.simulate.slurm.requests import Requests

T = TypeVar("T")
SLURM_DEADLINE_S = 10.0  # as the default of ``slurm.deadline_s``
_LATENCY_S = (0.004, 0.06)  # one way, of a request that is answered at once


class Killed(BaseException):
    """kill -9: no handler of the daemon's may catch it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What happens at one crossing. ``after``: the effect happens, and its answer does not arrive."""

    kill: bool
    after: bool
    down_s: float = 0.0  # from a kill to the next start


class Crossings:
    """Of one history; lives longer than the daemon."""

    def __init__(
        self, rng: random.Random, kill: Callable[[int, float], None], lost: Callable[[int, float], None]
    ) -> None:
        """
        Args:
            kill: ends the present life of the daemon; given the number of the crossing, and ``down_s``.
            lost: called when an answer is lost, with the number and after how many seconds the caller gives up.
        """
        self._rng = rng
        self._cuts: dict[int, Cut] = {}
        self._kill = kill
        self._lost = lost
        self.count = 0
        self.cut_at: list[int] = []  # crossings at which something was cut
        self.dead = True  # no daemon lives
        self.slurm = "up"  # "up", "gone", "slow", "refuses"

    def arm(self, following: int, cut: Cut) -> None:
        """Cut at the crossing that is the ``following``-th from now on, counted from 0."""
        self._cuts[self.count + following] = cut

    def latency_s(self) -> float:
        return self._rng.uniform(*_LATENCY_S)

    def cut(self, number: int, *, after: bool, deadline_s: float = 0.0) -> float | None:
        """Kill, or say after how many seconds the caller gives up; None if nothing happens here."""
        cut = self._cuts.get(number)
        if cut is None or cut.after is not after:
            return None
        self.cut_at.append(number)
        if cut.kill:
            self._kill(number, cut.down_s)
            raise Killed
        self._lost(number, deadline_s)
        return deadline_s

    async def ask(self, what: str, effect: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        """Send a request and wait for its answer.

        Raises:
            Timeout: it was lost before it had its effect, or afterwards.
        """
        if self.dead:
            raise Killed
        number = self.count
        self.count += 1
        waited = self.cut(number, after=False, deadline_s=deadline_s)
        if waited is not None:
            await asyncio.sleep(waited)
            raise Timeout(f"{what}: no answer within {deadline_s:g} s")
        await asyncio.sleep(self.latency_s())
        answer = await effect()
        waited = self.cut(number, after=True, deadline_s=deadline_s)
        if waited is not None:
            await asyncio.sleep(waited)
            raise Timeout(f"{what}: no answer within {deadline_s:g} s")
        return answer

    async def ask_slurm(self, what: str, effect: Callable[[], Awaitable[T]]) -> T:
        """A request to slurmctld, in the state in which slurmctld is now."""
        if self.slurm == "gone":
            await asyncio.sleep(self._rng.uniform(0.01, 3.0))
            raise Unavailable(f"{what}: Unable to contact slurm controller (connect failure)")
        if self.slurm == "refuses":
            await asyncio.sleep(self.latency_s())
            raise Denied(f"{what}: Protocol authentication error")
        if self.slurm == "slow":
            takes_s = self._rng.uniform(1.0, 1.5 * SLURM_DEADLINE_S)
            if takes_s > SLURM_DEADLINE_S:  # slurmctld carries it out all the same, later
                await asyncio.sleep(SLURM_DEADLINE_S)
                await self.ask(what, effect, SLURM_DEADLINE_S)
                raise Timeout(f"{what}: no answer within {SLURM_DEADLINE_S:g} s")
            await asyncio.sleep(takes_s)
        return await self.ask(what, effect, SLURM_DEADLINE_S)


class SlurmReading:
    """``SlurmReader`` over the network."""

    def __init__(self, slurm: SimulatedSlurm, crossings: Crossings) -> None:
        self._slurm, self._crossings = slurm, crossings

    async def fleet(self) -> Fleet:
        return await self._crossings.ask_slurm("fleet", self._slurm.fleet)

    async def node(self, name: str) -> NodeView | None:
        return await self._crossings.ask_slurm("node", lambda: self._slurm.node(name))

    async def job(self, job: int) -> JobView | None:
        return await self._crossings.ask_slurm("job", lambda: self._slurm.job(job))

    async def version(self) -> str:
        return self._slurm.release_name

    async def booted_at(self) -> datetime | None:
        return await self._crossings.ask_slurm("booted_at", self._slurm.booted_at)


class SlurmWriting:
    """``Verbs`` of the real writer over the network. ``wrote`` hears of each request that reaches slurmctld."""

    def __init__(
        self, slurm: SimulatedSlurm, crossings: Crossings, wrote: Callable[[str, str, Mapping[str, str]], None]
    ) -> None:
        self._slurm, self._crossings = slurm, crossings
        self._requests = Requests(slurm)
        self._wrote = wrote

    async def node(self, name: str) -> NodeView | None:
        return await self._crossings.ask_slurm("node", lambda: self._requests.node(name))

    async def job_record(self, job: int) -> Record | None:
        return await self._crossings.ask_slurm("job", lambda: self._requests.job_record(job))

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        await self._write(
            "set_node",
            node,
            {"state": state, "reason": reason or ""},
            lambda: self._requests.set_node(node, state, reason),
        )

    async def requeue_hold(self, job: str) -> None:
        await self._write("requeue_hold", job, {}, lambda: self._requests.requeue_hold(job))

    async def hold(self, job: str) -> None:
        await self._write("hold", job, {}, lambda: self._requests.hold(job))

    async def release(self, job: str) -> None:
        await self._write("release", job, {}, lambda: self._requests.release(job))

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        await self._write("set_job", job, fields, lambda: self._requests.set_job(job, fields))

    async def notify(self, job: str, text: str) -> None:
        await self._write("notify", job, {"text": text}, lambda: self._requests.notify(job, text))

    async def _write(
        self, verb: str, target: str, fields: Mapping[str, str], effect: Callable[[], Awaitable[None]]
    ) -> None:
        async def done() -> None:
            self._slurm.catch_up()
            self._wrote(verb, target, fields)  # sees the cluster as it was before
            await effect()

        await self._crossings.ask_slurm(verb, done)
