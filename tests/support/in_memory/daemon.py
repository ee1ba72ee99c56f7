"""The daemon's deciding and acting half over a Slurm in memory, wired as the daemon wires it, to be killed and started."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry
from shipped import shipped_rules

from in_memory.direct_store import DirectStore
from in_memory.world import ACT, Fate, Killed, World
from sentinel.classify.ageing import Counter
from sentinel.classify.history import WINDOW
from sentinel.config.settings import Alerts, Judgement, Limits, Settings
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.daemon.effects.diagnostics import Diagnostics
from sentinel.daemon.effects.node_returns import NodeReturnEffects
from sentinel.daemon.effects.perform import Effects
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals
from sentinel.daemon.ingest.trends import read_trends
from sentinel.daemon.runner import Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine, Transition, recovery
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import Started, TrendsRead
from sentinel.engine.loading import state_of
from sentinel.engine.mass_failures import counted_since
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.approvals import asked, open_names, request_of
from sentinel.model.records import Evidence, IncidentState, Notice, Plan
from sentinel.telemetry import Telemetry

RULES = shipped_rules()
# Silences in the stories are counted in seconds: the default may be tuned without another story of each. Their jobs are all
# young: what a first pause is given is tested by itself.
SETTINGS = Settings(
    modes=ACT,
    limits=Limits(drain_fraction=0.5),
    judgement=Judgement(stall_confirm=1.25, stall_first_pause_s=1.0),
)
WIDE = dataclasses.replace(
    SETTINGS, limits=Limits(drain_fraction=1.0, drain_count=99, drain_per_hour=99)
)  # no budget waits


WAITS = ("timer wait:",)  # of plans that wait for a budget's hour or a breaker's window: minutes to hours


class FakeSink:
    """A receiver that outlives the daemon; says no answer ``fails`` times.

    ``all``: as they came; of these ``got``: the first of each incident, ``later``: the rest of its thread.
    """

    def __init__(self, name: str = "pager", fails: int = 0) -> None:
        self.name, self.fails = name, fails
        self.got: list[Notice] = []
        self.later: list[Notice] = []
        self.all: list[Notice] = []

    @property
    def stages(self) -> list[str]:
        return [str(notice.data["stage"]) for notice in self.all]

    async def send(self, notice: Notice) -> None:
        if self.fails > 0:
            self.fails -= 1
            raise Unavailable(f"{self.name} does not answer")
        self.all.append(notice)
        (self.got if notice.data.get("message", 1) == 1 else self.later).append(notice)


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


class SteppingView(ClusterView):
    """A view in which restarted jobs print steps as the world says, besides those of evidence."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def first_step(self, job: int, attempt: int) -> int | None:
        printed = super().first_step(job, attempt)
        return printed if printed is not None or attempt == 0 else self._world.progress.first_step(job, attempt)


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
        signals: Callable[[Daemon, Log], PrometheusSignals] | None = None,
        counters: Mapping[str, Counter] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        fate = fate or Fate()
        self.fate, self.world, self.sinks, self.settings = fate, world, tuple(sinks), settings
        self.store: DirectStore = fate.wrap(world.store, "store", only=lambda name: name != "engine")
        self.stream = io.StringIO()
        log, clock = Log(self.stream), world.slurm.clock
        self.telemetry = telemetry or Telemetry(CollectorRegistry())
        self.live = SteppingView(world)
        self.orders = orders or FakeOrders()
        means = world.means(fate)
        self.fleets = FleetSnapshots(means.reader, self.live, self.telemetry, log)
        heard = signals(self, log) if signals is not None else None
        self.counters = counters or {}
        counted = counted_since(settings.limits, clock.now())
        self.stored = world.store.load(
            month=clock.now() - WINDOW, lately=self._lately(settings), evidence_ids=1000, counted=counted
        )
        if settings.alerts.attempts == Alerts().attempts:
            settings = dataclasses.replace(settings, alerts=dataclasses.replace(settings.alerts, attempts=3))
        state = state_of(
            self.stored, self.live, rules=RULES, settings=settings, receivers=[sink.name for sink in sinks],
            metrics=heard is not None,
        )  # fmt: skip
        self.runner = Runner(Engine(state), self.store, clock=clock, telemetry=self.telemetry, log=log)
        self.state = self.runner.state
        self.fleets.observed, self.fleets.unanswered = self.runner.observed, self.runner.unobserved
        means = dataclasses.replace(means, ledger=self.runner)
        self.runner.perform = Effects(
            means=means, fleets=self.fleets, inquiry=NodeQuestions(self.orders, self.live, clock), signals=heard,
            diagnostics=Diagnostics(
                orders=self.orders, store=self.store, live=self.live, counters=self.counters, clock=clock, log=log
            ),
            returns=NodeReturnEffects(
                settings=settings.returns, reader=means.reader, writer=means.writer, clock=clock
            ),
            writer=means.writer,
            sinks={sink.name: sink for sink in sinks}, clock=clock,
        ).table  # fmt: skip

    def _lately(self, settings: Settings) -> datetime:
        return self.world.slurm.clock.now() - timedelta(seconds=settings.judgement.group_s)

    async def start(self) -> None:
        """As the daemon's root does it."""
        with contextlib.suppress(Unavailable):
            await self.fleets.take()
        await self.runner.handle(Started(self.world.slurm.clock.now(), self.stored))

    async def close(self, incident: str, reached: IncidentState, outcome: str) -> None:
        """As at the end of a plan."""
        out = Transition()
        recovery.close(self.state, out, incident, reached, outcome, self.world.slurm.clock.now())
        self.store.commit(out.changes)

    async def housekeeping(self) -> None:
        await self.runner.timer_due(HOUSEKEEPING)

    async def look_back(self) -> None:
        now = self.world.slurm.clock.now()
        trends = read_trends(self.store, self.counters, now)
        await self.runner.handle(TrendsRead(now, tuple(trend for trend in trends if trend.suspect)))

    async def observe(self, items: Iterable[Evidence]) -> bool:
        """Whether the sender got its acknowledgement."""
        try:
            await self.runner.observe(list(items))
        except (Killed, Unavailable):
            return False
        return True

    async def pass_time(self, seconds: float) -> None:
        """Time passes on the fake clock, with a snapshot of Slurm at its end as a daemon takes them."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(Unavailable):
            await self.fleets.take()
        await self.quiet()

    async def quiet(self) -> None:
        """Until nothing is under way any more but waits. What a kill left behind is gone with the process."""
        mine = asyncio.current_task()
        while others := {task for task in asyncio.all_tasks() - {mine} if not task.get_name().startswith(WAITS)}:
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
        # Of this metric alone: asked after each of a thousand daemons, all of them took a tenth of the time.
        found = self.telemetry.registry.restricted_registry(["sentinel_bugs_total"]).collect()
        return sum(
            sample.value for metric in found for sample in metric.samples if sample.name == "sentinel_bugs_total"
        )


def incidents_of(store: DirectStore) -> dict[str, Any]:
    return {row["id"]: (str(row["state"]), row["job"], row["cause"]) for row in store.incident_rows()}


def states(there: World) -> list[str]:
    return sorted(str(state) for state, _, _ in incidents_of(there.store).values())


def outcomes(there: World) -> list[str]:
    return [row["outcome"] for row in there.store.incident_rows()]


def heard(sink: FakeSink) -> list[str]:
    return [str(notice.data["stage"]) for notice in (*sink.got, *sink.later)]


def beside(there: World, node: str, *, comment: str | None = None) -> int:
    """One more job on a node that another one is on, too: each has some of its GPUs."""
    first = there.slurm.jobs[there.job]
    job = there.slurm.submit(nodes=99, user="bo", uid=1002, comment=comment or str(first.record["comment"]))
    this = there.slurm.jobs[job]
    this.state, this.on, this.nodes, this.started = "RUNNING", (node,), 1, first.started
    return job


async def fail(daemon: Daemon, *items: Evidence) -> None:
    await daemon.fleets.take()
    assert await daemon.observe(items)
    await daemon.quiet()


def open_plan(there: World) -> Plan:
    """The plan of the only incident that is not over."""
    (plan,) = there.store.open_plans()
    return plan


def commands_of(daemon: Daemon) -> OperatorCommands:
    there = daemon.world
    return OperatorCommands(
        store=there.store, live=daemon.live, fleets=daemon.fleets, clock=there.slurm.clock, reader=there.slurm,
        writer=there.slurm, runner=daemon.runner, log=Log(daemon.stream),
    )  # fmt: skip


async def answer(daemon: Daemon, word: str = "approve", what: list[str] | None = None, **how: Any) -> None:
    """As ``sentinel approve`` and ``refuse`` do it."""
    plan = open_plan(daemon.world)
    shown = {
        "incident": plan.incident,
        "request": request_of(plan, daemon.runner.state.verdicts[plan.incident].cause),
        "what": what or list(open_names(asked(plan))),
        **how,
    }
    try:
        await commands_of(daemon).make(word, shown, 0, "10.0.0.9")
    finally:
        await daemon.quiet()


def silent(there: World) -> World:
    """Its jobs print no steps: nothing confirms a restart early."""
    there.progress._steps = False
    return there
