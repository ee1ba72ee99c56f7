"""The daemon's deciding and acting half over a Slurm in memory, wired as the daemon wires it, to be killed and started."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from core_world import ACT, Fate, Killed, World
from prometheus_client import CollectorRegistry

from sentinel.actions import Means
from sentinel.adapters.rules_files import load_rules, rules_folder
from sentinel.adapters.store import Store
from sentinel.classify.ageing import Counter
from sentinel.daemon.fleets import Fleets
from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.judge import Judge
from sentinel.daemon.live import Live
from sentinel.daemon.recover import Recover
from sentinel.daemon.signals import Signals
from sentinel.daemon.tell import Tell
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model import Evidence, Notice
from sentinel.settings import Judgement, Limits, Settings
from sentinel.telemetry import Telemetry

RULES = load_rules([rules_folder()])
# Silences in the stories are counted in seconds: the default may be tuned without another story of each.
SETTINGS = Settings(modes=ACT, limits=Limits(drain_fraction=0.5), judgement=Judgement(stall_confirm=1.25))


class FakeSink:
    """A receiver that outlives the daemon; says no answer ``fails`` times."""

    def __init__(self, name: str = "pager", fails: int = 0) -> None:
        self.name, self.fails = name, fails
        self.got: list[Notice] = []

    async def send(self, notice: Notice) -> None:
        if self.fails > 0:
            self.fails -= 1
            raise Unavailable(f"{self.name} does not answer")
        self.got.append(notice)


class FakeOrders:
    """Agents that answer what they were given; every other node is not connected."""

    def __init__(self, answers: Mapping[tuple[str, str], object] | None = None) -> None:
        self.answers = dict(answers or {})
        self.asked: list[tuple[str, str, Mapping[str, object]]] = []

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        self.asked.append((node, str(kind), arguments))
        answer = self.answers.get((node, str(kind)))
        if answer is None:
            raise Unavailable(f"the agent of {node} is not connected")
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Daemon:
    """One run of the daemon. The store, Slurm and the sinks are there before it and after it."""

    def __init__(
        self,
        world: World,
        sinks: Sequence[FakeSink] = (),
        *,
        fate: Fate | None = None,
        settings: Settings = SETTINGS,
        orders: FakeOrders | None = None,
        signals: Callable[[Daemon, Log], Signals] | None = None,
        counters: Mapping[str, Counter] | None = None,
    ) -> None:
        fate = fate or Fate()
        self.fate, self.world = fate, world
        self.store: Store = fate.wrap(world.store, "store", only=lambda name: name != "engine")
        self.stream = io.StringIO()
        log, clock = Log(self.stream), world.slurm.clock
        self.telemetry = Telemetry(CollectorRegistry())
        self.live = Live()
        self.orders = orders or FakeOrders()
        means = world.means(fate)
        means = Means(
            clock=clock, reader=means.reader, writer=means.writer, ledger=self.store, checkpoints=means.checkpoints,
            resume=means.resume, progress=means.progress, pending_s=90.0, confirm_s=600.0,
        )  # fmt: skip
        self.fleets = Fleets(means.reader, self.live, self.telemetry, log)
        self.tell = Tell(
            store=self.store, live=self.live, sinks=sinks, attempts=3, clock=clock, telemetry=self.telemetry, log=log
        )
        self.recover = Recover(
            store=self.store, means=means, tell=self.tell, telemetry=self.telemetry, log=log, tell_within_s=5.0
        )
        self.judge = Judge(
            store=self.store, live=self.live, fleets=self.fleets, inquiry=Inquiry(self.orders, self.live, clock),
            rules=RULES, settings=settings, telemetry=self.telemetry, clock=clock, log=log,
            decided=self.recover.decided, signals=signals(self, log) if signals is not None else None,
            counters=counters,
        )  # fmt: skip
        self.recover.judge = self.judge

    async def start(self) -> None:
        """As the daemon's root does it."""
        self.tell.send_undelivered()
        self.recover.carry_on()
        await self.judge.carry_on()

    async def observe(self, items: Iterable[Evidence]) -> bool:
        """Whether the sender got its acknowledgement."""
        try:
            await self.judge.observe(list(items))
        except (Killed, Unavailable):
            return False
        return True

    async def quiet(self) -> None:
        """Until nothing is under way any more. What a kill left behind is gone with the process."""
        mine = asyncio.current_task()
        while others := asyncio.all_tasks() - {mine}:
            done, _ = await asyncio.wait(others, timeout=30.0, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"stuck: {others}"
            for task in done:
                error = None if task.cancelled() else task.exception()
                if error is not None and not isinstance(error, Killed):
                    raise error

    @property
    def said(self) -> str:
        return self.stream.getvalue()

    def bugs(self) -> float:
        return self.telemetry.registry.get_sample_value("sentinel_bugs_total") or 0.0


def incidents_of(store: Store) -> dict[str, Any]:
    return {row["id"]: (str(row["state"]), row["job"], row["cause"]) for row in store.incident_rows()}
