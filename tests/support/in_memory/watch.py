"""The engine's watching half on virtual time, over a Slurm in memory.

Effects are performed at once by the daemon's own functions, on scripted agents and ports; timers of watching are due when
``advance`` reaches them. What the engine itself reports is kept (``reported``); it is not judged.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta

from in_memory.daemon import SETTINGS, Daemon, FakeOrders
from in_memory.world import World
from sentinel.config.settings import Settings
from sentinel.daemon.ingest.heartbeats import heartbeat_of
from sentinel.engine import Transition
from sentinel.engine.events import (
    Event,
    EvidenceReceived,
    FleetObserved,
    FleetUnavailable,
    SlurmReported,
    Started,
    TimerDue,
)
from sentinel.engine.transition import (
    AskHungJob,
    Effect,
    LookAtJob,
    ObserveFleet,
    ProbeNode,
    RunDiagnostic,
    StartTimer,
    WriteDrainReason,
)
from sentinel.engine.watch.events import NodeHeard
from sentinel.log import Log
from sentinel.model.changes import EvidenceAdded
from sentinel.model.records import Evidence, NodeView

_PERFORMED = (ObserveFleet, ProbeNode, LookAtJob, AskHungJob, RunDiagnostic, WriteDrainReason)
_TIMERS = ("probe", "job-answer", "job-ends")


class Seconds:
    """Stands in for the module ``time``: monotonic seconds that move by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Ports:
    """slurmd's port of each node: None where it answers, else the reason why it does not."""

    def __init__(self) -> None:
        self.answers: dict[str, str | None] = {}
        self.asked: list[str] = []

    async def __call__(self, view: NodeView, _deadline_s: float) -> str | None:
        self.asked.append(view.name)
        return self.answers.get(view.name)


class Scene:
    def __init__(self, world: World, *, orders: FakeOrders | None = None, settings: Settings = SETTINGS) -> None:
        self.world = world
        self.daemon = Daemon(world, orders=orders, settings=settings)
        self.engine, self.state = self.daemon.runner.engine, self.daemon.state
        self.live, self.fleets = self.daemon.live, self.daemon.fleets
        self.fleets._seconds = self.seconds
        self.fleets.observed = lambda fleet: self.apply(FleetObserved(self.now, fleet))
        self.fleets.unanswered = lambda error: self.apply(FleetUnavailable(self.now, error.message, error.fix))
        self.reported: list[Evidence] = []
        self.effects: deque[Effect] = deque()  # not performed yet
        self.timers: dict[str, datetime] = {}
        self.stepped_s = 0.0  # by how much the wall clock was set; the monotonic one does not follow
        self._log = Log(self.daemon.stream)

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return self.world.slurm.clock.now()

    def seconds(self) -> float:
        return self.now.timestamp() - self.stepped_s

    async def advance(self, span_s: float) -> None:
        """Let time pass, with the timers that become due."""
        clock, until = self.world.slurm.clock, self.now + timedelta(seconds=span_s)
        while self.timers and min(self.timers.values()) <= until:
            timer = min(self.timers, key=lambda name: self.timers[name])
            clock.at = max(clock.at, self.timers.pop(timer))
            await self.handle(TimerDue(self.now, timer))
        clock.at = max(clock.at, until)

    # --- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> Transition:
        """One event, without what it wants done."""
        if getattr(event, "now_s", 0.0) is None:
            event = dataclasses.replace(event, now_s=self.seconds())  # type: ignore[arg-type]
        out = self.engine.handle(event)
        self.world.store.commit(out.changes)
        for remark in out.remarks:
            (self._log.warning if remark.warning else self._log.info)(remark.name, **remark.fields)
        if not isinstance(event, EvidenceReceived):
            added = [change for change in out.changes if isinstance(change, EvidenceAdded)]
            self.reported.extend(item for change in added for item in change.items)
        for effect in out.effects:
            if isinstance(effect, _PERFORMED):
                self.effects.append(effect)
            elif isinstance(effect, StartTimer) and effect.id.startswith(_TIMERS):
                self.timers[effect.id] = effect.due
        return out

    async def handle(self, event: Event) -> None:
        self.apply(event)
        await self.perform()

    async def perform(self) -> None:
        """Perform what is wanted, and what that leads to."""
        while self.effects:
            effect = self.effects.popleft()
            answer = await self.daemon.runner.perform[type(effect)](effect)
            if answer is not None:
                self.apply(answer)

    async def settle(self) -> None:
        """Perform what is wanted, and let time pass until no timer of watching is left."""
        await self.perform()
        while self.timers:
            await self.advance(0.1)

    async def start(self) -> None:
        """The daemon has started with what was in the store."""
        await self.handle(Started(self.now, self.daemon.stored))

    async def check_nodes(self) -> None:
        await self.handle(TimerDue(self.now, "check-nodes"))

    async def check_jobs(self) -> None:
        await self.handle(TimerDue(self.now, "check-jobs"))

    async def reconcile(self) -> None:
        await self.advance(0.001)  # a snapshot of this very moment would count as new enough
        await self.handle(TimerDue(self.now, "reconcile"))

    async def report(self, event: str, *jobs: int) -> None:
        """A hook of Slurm's controller reports an event, and time passes until it is followed up."""
        self.apply(SlurmReported(self.now, event, frozenset(jobs)))
        await self.settle()

    def hear(self, *nodes: str) -> None:
        """The agents of these nodes sent a message."""
        for node in nodes:
            self.apply(NodeHeard(self.now, node))

    async def look(self) -> None:
        """A new snapshot of Slurm."""
        await self.advance(0.01)
        await self.fleets.take()

    async def pass_s(self, span_s: float, *heard: str) -> None:
        """Time passes in looks of a quarter second; the agents named are heard at each."""
        for _ in range(round(span_s / 0.25)):
            await self.advance(0.25)
            self.hear(*heard)
            await self.check_nodes()

    def beat(self, node: str, body: Mapping[str, object]) -> None:
        """The agent of the node sent a heartbeat."""
        self.apply(heartbeat_of(node, body, self.now, self.seconds()))

    def read(self, *jobs: int, node: str = "n1", ago_s: float = 0.0, attempt: int = 0) -> None:
        """The agent of a batch host reports that it has read the logs of this attempt of these jobs to their end."""
        logs = [{"job": job, "attempt": attempt, "looked_ago_s": ago_s} for job in jobs]
        self.beat(node, {"boot_id": "b", "sent_s": self.seconds(), "logs": logs})

    def settled(self) -> None:
        """The daemon has been up and the whole cluster in contact for long."""
        self.apply(TimerDue(self.now, "check-jobs"))
        assert self.state.watch.visibility is not None
        self.state.watch.visibility = dataclasses.replace(self.state.watch.visibility, disturbed_s=float("-inf"))

    @property
    def kinds(self) -> list[str]:
        return [item.kind for item in self.reported]
