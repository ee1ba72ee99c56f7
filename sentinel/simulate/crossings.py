"""Delays, loses or refuses what leaves the daemon: calls to Slurm, the store, nodes and receivers. Each call is a crossing.

At a chosen crossing, counted from a chosen moment, the daemon is killed or the answer is lost: before the effect happens or
after it. While slurmctld is gone, slow or refuses, so are the crossings into it.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from sentinel.adapters.slurm.in_charge import by_own_clock
from sentinel.adapters.slurm.parse import Record
from sentinel.errors import Denied, SentinelError, Timeout, Unavailable
from sentinel.model.records import Fleet, JobView, NodeView
from sentinel.model.spares import Spares
from sentinel.ports import Clock
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
    """Those of one history; kept when the daemon is killed."""

    def __init__(
        self,
        rng: random.Random,
        later: Callable[[float, Callable[[], None]], None],
        kill: Callable[[int, float], None],
        lost: Callable[[int, float], None],
    ) -> None:
        """
        Args:
            later: has something happen outside of the daemon, in so many seconds, also while the daemon is frozen.
            kill: ends the daemon's present process; given the number of the crossing, and ``down_s``.
            lost: called when an answer is lost, with the number and after how many seconds the caller gives up.
        """
        self._rng = rng
        self._later = later
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

    async def ask(
        self, what: str, effect: Callable[[], Awaitable[T]], deadline_s: float, *, under_way_s: float | None = None
    ) -> T:
        """Send a request and wait for its answer.

        Args:
            under_way_s: it is a request to slurmctld, which it reaches after this long, whatever becomes of the daemon's
                loop meanwhile.

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
        if under_way_s is not None:
            answer = await self._arrived(effect, under_way_s + self.latency_s())
        else:
            await asyncio.sleep(self.latency_s())
            answer = await effect()
        waited = self.cut(number, after=True, deadline_s=deadline_s)
        if waited is not None:
            await asyncio.sleep(waited)
            raise Timeout(f"{what}: no answer within {deadline_s:g} s")
        return answer

    async def _arrived(self, effect: Callable[[], Awaitable[T]], after_s: float) -> T:
        """The answer of slurmctld, which the request reaches in the world's time: a frozen daemon does not hold it up."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()

        def arrives() -> None:
            if answer.get_loop().is_closed() or answer.done():
                return  # its daemon was killed
            if self.slurm == "gone":  # meanwhile
                answer.set_exception(Unavailable("Unable to contact slurm controller (connect failure)"))
                return
            try:
                answer.set_result(context.run(_at_once, effect))
            except SentinelError as no:
                answer.set_exception(no)

        self._later(after_s, arrives)
        return await answer

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
                await self.ask(what, effect, SLURM_DEADLINE_S, under_way_s=SLURM_DEADLINE_S)
                raise Timeout(f"{what}: no answer within {SLURM_DEADLINE_S:g} s")
            return await self.ask(what, effect, SLURM_DEADLINE_S, under_way_s=takes_s)
        return await self.ask(what, effect, SLURM_DEADLINE_S, under_way_s=0.0)


def _at_once(effect: Callable[[], Awaitable[T]]) -> T:
    """The result of a coroutine that waits for nothing, as everything in the simulated slurmctld."""
    coroutine: Any = effect()
    assert isinstance(coroutine, Coroutine)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("slurmctld waits for something")


class SlurmReading:
    """``SlurmReader`` over the network."""

    def __init__(self, slurm: SimulatedSlurm, crossings: Crossings, clock: Clock) -> None:
        """``clock``: that of who asks."""
        self._slurm, self._crossings, self._clock = slurm, crossings, clock

    async def fleet(self) -> Fleet:
        return await self._crossings.ask_slurm("fleet", self._fleet)

    async def _fleet(self) -> Fleet:
        return replace(await self._slurm.fleet(), at=self._clock.now())

    async def node(self, name: str) -> NodeView | None:
        return await self._crossings.ask_slurm("node", lambda: self._slurm.node(name))

    async def job(self, job: int) -> JobView | None:
        return await self._crossings.ask_slurm("job", lambda: self._slurm.job(job))

    async def steps(self, job: int) -> Mapping[int, str]:
        return await self._crossings.ask_slurm("steps", lambda: self._slurm.steps(job))

    async def version(self) -> str:
        return self._slurm.release_name

    async def booted_at(self) -> datetime | None:
        return await self._crossings.ask_slurm("booted_at", self._booted_at)

    async def _booted_at(self) -> datetime | None:
        booted = await self._slurm.booted_at()
        said, now = self._slurm.clock.now().replace(microsecond=0), self._clock.now()
        return by_own_clock(booted, said=said, asked=now, answered=now) if booted is not None else None

    async def spares(self, reservation: str) -> Spares | None:
        return await self._crossings.ask_slurm("spares", lambda: self._slurm.spares(reservation))


class SlurmWriting:
    """``Verbs`` of the real writer over the network."""

    def __init__(
        self,
        slurm: SimulatedSlurm,
        crossings: Crossings,
        wrote: Callable[[str, str, Mapping[str, str]], None],
        leaves: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            wrote: hears of each request that reaches slurmctld.
            leaves: hears of each when the daemon sends it.
        """
        self._leaves = leaves
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

    async def requeue_hold(self, job: str, *, incomplete: bool) -> None:
        await self._write(
            "requeue_hold",
            job,
            {"Incomplete": ""} if incomplete else {},
            lambda: self._requests.requeue_hold(job, incomplete=incomplete),
        )

    async def hold(self, job: str) -> None:
        await self._write("hold", job, {}, lambda: self._requests.hold(job))

    async def release(self, job: str) -> None:
        await self._write("release", job, {}, lambda: self._requests.release(job))

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        await self._write("set_job", job, fields, lambda: self._requests.set_job(job, fields))

    async def set_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        await self._write("set_reservation", name, fields, lambda: self._requests.set_reservation(name, fields))

    async def end_step(self, job: str, step: int) -> None:
        await self._write("end_step", job, {"step": f"{step}"}, lambda: self._requests.end_step(job, step))

    async def notify(self, job: str, text: str) -> None:
        await self._write("notify", job, {"text": text}, lambda: self._requests.notify(job, text))

    async def _write(
        self, verb: str, target: str, fields: Mapping[str, str], effect: Callable[[], Awaitable[None]]
    ) -> None:
        async def done() -> None:
            self._slurm.catch_up()
            self._wrote(verb, target, fields)  # sees the cluster as it was before
            await effect()

        if self._leaves is not None:
            self._leaves(f"{verb} {target}")
        await self._crossings.ask_slurm(verb, done)
