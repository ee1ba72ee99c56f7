"""One run of the daemon's process: the live engine, runner, actions and ingest, wired as the live daemon wires them.

What it leaves out: the HTTP server, MUNGE, log and GPU collectors, diagnostics, Prometheus. What those would bring comes
from ``sentinel.simulate.agents``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from sentinel.actions import Means
from sentinel.adapters.slurm.writer import Writer
from sentinel.adapters.store.store import Store
from sentinel.classify.history import WINDOW
from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.daemon.effects.checkpoints import FleetCheckpoints
from sentinel.daemon.effects.diagnostics import Diagnostics
from sentinel.daemon.effects.node_returns import NodeReturnEffects
from sentinel.daemon.effects.perform import Effects
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.lease import Lease
from sentinel.daemon.runner import Perform, Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import ApprovalGiven, Event, Started
from sentinel.engine.loading import state_of
from sentinel.engine.mass_failures import counted_since
from sentinel.engine.transition import CarryOutStep, LendSpares, ProbeNode, RunSiteCommand
from sentinel.engine.watch.events import HeartbeatReceived, NodeProbed, WatchStarted
from sentinel.engine.watch.reconciliation import RECONCILE
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.changes import Change
from sentinel.model.records import Evidence, NodeView, Notice, Task
from sentinel.ports import Orders
from sentinel.simulate.agents import signatures
from sentinel.simulate.crossings import SlurmReading, SlurmWriting
from sentinel.simulate.event_loop import VirtualLoop
from sentinel.simulate.happened import Bug, NoticeArrived, ResumeWritten, StepBegan
from sentinel.simulate.machines import HEARTBEAT_S

if TYPE_CHECKING:
    from sentinel.simulate.two_daemons import Membership
    from sentinel.simulate.world import World

RECEIVER = "pager"
_HOUSEKEEPING_S = 10.0  # as in the live daemon
_RESTART_S = 2.0  # RestartSec of sentinel-daemon.service
_RESUME_FILE_S = 10.0  # deadline of the shared file system
under_way: ContextVar[Task | None] = ContextVar("under_way", default=None)  # the step that asks for a write


@cache
def _telemetry() -> Any:
    """One for all daemons simulated in this process: a registry is slow to make, and nobody reads it."""
    from sentinel.telemetry import Telemetry

    return Telemetry(CollectorRegistry())


class StoryLog(Log):
    """Keeps errors of our own, which break a promise; passes the rest to ``say`` when a history is printed."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def info(self, event: str, **values: object) -> None:
        self._world.say(event, values)

    def warning(self, event: str, **values: object) -> None:
        self._world.say(event, values)

    def error(self, event: str, **values: object) -> None:
        self._world.say(event, values)
        self._world.happened(Bug(f"{event}: {values}"))


class _Saving:
    """The store behind the crossings: full, lost, or the last thing that this daemon did."""

    def __init__(self, world: World, part: Membership | None) -> None:
        self._world = world
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)

    def commit(self, changes: Sequence[Change]) -> None:
        def saved() -> None:
            if self._part is not None:
                self._part.store.require_lease()
                self._part.writes("a transaction")
            self._world.store.commit(changes)

        self._world.save(saved)


class _Receiver:
    """Where notices arrive."""

    name = RECEIVER

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, notice: Notice) -> None:
        async def arrived() -> None:
            self._world.happened(NoticeArrived(notice, RECEIVER))

        await self._world.crossings.ask("notice", arrived, self._world.settings.alerts.deadline_s)


class _ResumePoints:
    def __init__(self, world: World) -> None:
        self._world = world

    async def write(self, job: int, values: Mapping[str, str]) -> None:
        async def written() -> None:
            self._world.programs.resume[job] = dict(values)
            self._world.happened(ResumeWritten(job, values))

        await self._world.crossings.ask("resume point", written, _RESUME_FILE_S)


class SimulatedDaemon:
    """Runs on its own event loop until it is killed or the history ends."""

    def __init__(self, world: World, part: Membership | None = None) -> None:
        """``part``: of one of two daemons."""
        self._world = world
        self._part = part
        self.name = part.name if part is not None else ""
        self.loop = VirtualLoop(world)
        self.ready = False
        self._begun = False
        self._tasks: set[asyncio.Task[None]] = set()
        settings, log, telemetry = world.settings, StoryLog(world), _telemetry()
        self.clock = clock = world.own_clock()
        self._store = cast(Store, _Saving(world, part))  # held to the real one by a test
        live = ClusterView()
        reader = SlurmReading(world.slurm, world.crossings, clock)
        self.fleets = FleetSnapshots(
            reader, live, telemetry, log, seconds=self.loop.time, spares=settings.recovery.spares
        )
        lately = clock.now() - timedelta(seconds=settings.judgement.group_s)
        counted = counted_since(settings.limits, clock.now())
        self._stored = world.store.load(
            month=clock.now() - WINDOW, lately=lately, evidence_ids=100_000, counted=counted
        )
        if (newest := self._stored.newest(timedelta(seconds=settings.judgement.group_s))) is not None:
            clock.go_on_from(newest)
        state = state_of(
            self._stored, live, rules=signatures().rules, settings=settings, receivers=[RECEIVER], metrics=False
        )
        self.runner = Runner(
            Engine(state), self._store, clock=clock, telemetry=telemetry, log=log, seconds=self.loop.time,
            may_act=part.lease.renewed if part is not None else None,
        )  # fmt: skip
        self.fleets.observed, self.fleets.unanswered = self.runner.observed, self.runner.unobserved
        orders: Orders = world.agents
        means = self._means(reader, live, orders, log)
        self.runner.perform = self._performing(
            Effects(
                means=means,
                fleets=self.fleets,
                inquiry=NodeQuestions(orders, live, clock),
                diagnostics=Diagnostics(orders=orders, store=self._store, live=live, counters={}, clock=clock, log=log),
                returns=NodeReturnEffects(
                    settings=settings.returns,
                    reader=reader,
                    writer=means.writer,
                    clock=clock,
                    fence=part.lease if part is not None else None,
                ),
                writer=means.writer,
                signals=None,
                sinks={RECEIVER: _Receiver(world)},
                clock=clock,
            ).table
        )

    def _means(self, reader: SlurmReading, live: ClusterView, orders: Orders, log: Log) -> Means:
        world, settings, part = self._world, self._world.settings, self._part
        writing = SlurmWriting(world.slurm, world.crossings, world.wrote, part.writes if part is not None else None)
        checkpoints = FleetCheckpoints(
            orders=orders, live=live, fleets=self.fleets, store=self._store, recovery=settings.recovery, log=log,
            seconds=self.loop.time,
        )  # fmt: skip
        return Means(
            clock=self.clock,
            reader=reader,
            writer=Writer(
                part.fenced(writing) if part is not None else writing,
                now=self._host_s,
            ),
            ledger=self.runner,
            checkpoints=checkpoints,
            resume=_ResumePoints(world),
            progress=self.runner,
            pending_s=settings.recovery.pending_s,
            refused_s=settings.recovery.refused_s,
            launch_s=settings.recovery.launch_s,
            booted_at=reader.booted_at,
            answers=self._answers,
        )

    def _host_s(self) -> float:
        return self._world.now(self._world.own_off_s).timestamp()

    async def _answers(self, node: NodeView) -> bool:
        await asyncio.sleep(self._world.crossings.latency_s())
        return self._world.slurm.nodes[node.name].alive

    def _performing(self, table: Mapping[type[Any], Perform]) -> Mapping[type[Any], Perform]:
        """The effects, with each step of a plan noted before it is carried out."""

        async def step(effect: CarryOutStep) -> Event | None:
            under_way.set(effect.task)
            self._world.happened(StepBegan(effect.task))
            return await table[CarryOutStep](effect)

        async def probe(effect: ProbeNode) -> Event | None:
            return NodeProbed(self.clock.now(), effect.id, None if await self._answers(effect.node) else "no answer")

        async def lend(effect: LendSpares) -> Event | None:
            under_way.set(None)  # it is of no plan, whatever led to the snapshot
            return await table[LendSpares](effect)

        return {
            **table,
            CarryOutStep: step,
            LendSpares: lend,
            ProbeNode: probe,
            RunSiteCommand: self._world.machines.command,
        }

    # -- living ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until somebody stops the loop: what is under way then is dropped if the process was killed, and goes on else."""
        if not self._begun:
            self._begun = True
            self._begin(self._live())
        self.loop.run_forever()
        if self._world.crossings.dead:
            self.loop.drop()

    def _begin(self, what: Any) -> None:
        task = self.loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self) -> None:
        """As the live daemon starts."""
        if self._part is not None:
            self._begin(self._renew(self._part.lease))
        with contextlib.suppress(Unavailable):
            await self.fleets.take()
        try:
            await self._take_up()
        except Unavailable as error:  # as live: the process ends with this error, and systemd starts another
            self._world.say("start-failed", {"reason": error.message})
            self._world.end_life(_RESTART_S)
            return
        self.ready = True
        if self._world.watched:
            self.runner.handle(WatchStarted(self.clock.now()))
        else:
            self._begin(self._every(self._world.settings.slurm.reconcile_s, self._reconcile))
        self._begin(self._every(_HOUSEKEEPING_S, self._forget))
        if self._world.history.setup.returns:
            self._begin(self._every(HEARTBEAT_S, self._heartbeats))

    async def _renew(self, lease: Lease) -> None:
        """As its thread does."""
        while True:
            await asyncio.sleep(lease.every_s)
            await asyncio.to_thread(lease.renew)

    async def _take_up(self) -> None:
        await self.runner.handle(Started(self.clock.now(), self._stored))

    async def _reconcile(self) -> None:
        """Without the checks of silent nodes and jobs: in most histories agents send no heartbeats."""
        await self.runner.timer_due(RECONCILE)

    async def _heartbeats(self) -> None:
        """Of nodes whose agents are there; the others fall silent. Without the watch that would ask them."""
        world, live = self._world, self.runner.state.cluster
        for name, node in world.slurm.nodes.items():
            if not node.alive or name in world.agents.network.cut_off:
                live.node(name).state = "silent"
                continue
            verdict, boot = {"word": world.machines.word(name)}, world.machines.boot(name)
            now_s = self.loop.time()
            await self.runner.handle(
                HeartbeatReceived(self.clock.now(), name, now_s, verdict=verdict, boot=boot, sent_s=now_s)
            )

    async def _forget(self) -> None:
        await self.runner.timer_due(HOUSEKEEPING)

    async def _every(self, seconds: float, what: Callable[[], Any]) -> None:
        while True:
            with contextlib.suppress(Unavailable):  # the scheduler of the live daemon logs it and goes on
                await what()
            await asyncio.sleep(seconds)

    # -- what arrives ----------------------------------------------------------------------------------------------

    def receive(self, items: Sequence[Evidence], heard: Callable[[], None]) -> None:
        """Evidence of an agent, whose clock its heartbeats have told; ``heard`` is called when it is acknowledged."""
        if self.ready:
            for name in {item.where.node for item in items if item.where.node is not None}:
                theirs = self._world.now(self._world.clock_off_s.get(name, 0.0))
                off_s = (theirs - self.clock.now()).total_seconds()
                self.runner.state.cluster.node(name).clock_offset_s = off_s
            self._begin(self._observe(items, heard))

    async def _observe(self, items: Sequence[Evidence], heard: Callable[[], None]) -> None:
        with contextlib.suppress(Unavailable):
            await self.runner.observe(items)
            heard()

    def heartbeat(self, event: HeartbeatReceived) -> None:
        if self.ready:
            self.runner.handle(event)

    def job_ended(self, job: int) -> None:
        """Slurm's hook on the controller."""
        if self.ready:
            self.runner.report("job_ended", {job})

    def command(self, command: str, heard: Callable[[], None]) -> None:
        """An operator's ``sentinel pause`` or ``resume``; ``heard`` is called when it is answered."""
        if self.ready:
            self._begin(self._command(command, heard))

    def answer(self, given: ApprovalGiven) -> None:
        """An operator's ``sentinel approve`` or ``refuse``."""
        if self.ready:
            self._begin(self._answer(given))

    async def _answer(self, given: ApprovalGiven) -> None:
        with contextlib.suppress(Unavailable):
            await self.runner.handle(given)

    async def _command(self, command: str, heard: Callable[[], None]) -> None:
        if command == "resume":
            self._world.paused = False  # from now on it may act, before the answer is there
        with contextlib.suppress(Unavailable):
            await self.runner.command(command, "olga")
            self._world.paused = command == "pause"
            heard()
