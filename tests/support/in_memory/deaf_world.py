"""Twenty jobs whose agents can be cut off from the daemon: they go on reading logs, keep what they read, and come back.

cluster = Deaf(world(nodes=40, wide=2), jobs=20)
await cluster.run(40.0)
await cluster.run(25.0, unheard=cluster.nodes)   # the network is cut; the jobs go on
await cluster.run(60.0)                          # it is back, and the backlog comes in
cluster.scene.reported                           # what the daemon concluded
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from made_records import OPTED_IN, evidence

from in_memory.daemon import FakeOrders
from in_memory.watch import Scene
from in_memory.world import World
from sentinel.agent.collectors.log_reading import Reading
from sentinel.errors import Unavailable
from sentinel.model.records import Evidence, Kind, Source

TICK_S = 0.25  # as the daemon looks
BEAT_S = 2.0
BATCH = 40  # items of one request; a request each tick
FIRST_S = 5.0e6  # an agent's monotonic clock has nothing to do with the daemon's


@dataclass
class Training:
    """One job: a step each ``gap_s``, unless it hangs or pauses from a moment on (``still``: from, until)."""

    job: int
    host: str
    gap_s: float
    still: tuple[float, float] | None = None
    next_s: float = 0.0
    step: int = 0

    def printed(self, now_s: float) -> int | None:
        if self.still is not None and self.still[0] <= now_s < self.still[1]:
            self.next_s = now_s
            return None
        if now_s < self.next_s:
            return None
        self.next_s += self.gap_s
        self.step += 1
        return self.step


@dataclass
class Agent:
    """The agent of one node: a spool, a reading of its job's log where it is the batch host, heartbeats."""

    node: str
    beat_s: float  # when the next one is due
    training: Training | None = None
    reading: Reading = field(default_factory=Reading)
    spool: list[tuple[int, Evidence]] = field(default_factory=list)
    count: int = 0
    acknowledged: int = 0

    def read(self, now_s: float) -> None:
        """Follows the log, heard or not."""
        if self.training is None:
            return
        step = self.training.printed(now_s)
        if step is not None:
            self.count += 1
            where = {"node": self.node, "job": self.training.job, "attempt": 0}
            item = evidence(Kind.STEP, at_s=now_s, source=Source.JOB_LOG, data={"step": step}, **where)  # type: ignore[arg-type]
            self.spool.append((self.count, item))
            self.reading.kept(self.count)
        self.reading.looked(FIRST_S + now_s)

    def heartbeat(self, now_s: float) -> dict[str, object]:
        ago_s = self.reading.looked_ago_s(self.acknowledged, FIRST_S + now_s)
        logs = []
        if self.training is not None and ago_s is not None:
            logs.append({"job": self.training.job, "attempt": 0, "looked_ago_s": ago_s})
        return {"boot_id": "boot", "sent_s": FIRST_S + now_s, "logs": logs}


class Nodes(FakeOrders):
    """Nodes that answer while they are heard; ``moves``: the processes do something, else they only wait."""

    def __init__(self) -> None:
        super().__init__()
        self.unheard: Collection[str] = ()
        self.moves = True
        self.now_s = 0.0

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        if node in self.unheard or kind != "task_states":
            raise Unavailable(f"the agent of {node} is not connected")
        cpu_s = self.now_s if self.moves else 5.0
        task = {"rank": 0, "state": "S", "pid": 40, "cpu_s": cpu_s, "read_bytes": 10, "written_bytes": 10}
        return {"tasks": [task], "has_gpus": False, "gpus": None, "at_s": self.now_s}


class Deaf:
    def __init__(self, world: World, *, jobs: int, gap_s: float = 1.0) -> None:
        self.world, self.clock = world, world.slurm.clock
        self.began = self.clock.at
        wide = world.slurm.jobs[world.job].nodes
        ids = [world.job, *(world.slurm.submit(nodes=wide, comment=OPTED_IN) for _ in range(jobs - 1))]
        self.orders = Nodes()
        self.scene = Scene(world, orders=self.orders)
        self.jobs = [Training(job, world.slurm.jobs[job].on[0], gap_s) for job in ids]
        hosts = {training.host: training for training in self.jobs}
        self.agents = [
            Agent(name, beat_s=index % 8 * TICK_S, training=hosts.get(name))
            for index, name in enumerate(world.slurm.nodes)
        ]
        self.nodes = [agent.node for agent in self.agents]
        self.late: dict[str, dict[str, object]] = {}  # heartbeats in the socket of a daemon that stands still

    @property
    def now_s(self) -> float:
        return (self.clock.at - self.began).total_seconds()

    async def run(self, span_s: float, *, unheard: Collection[str] = (), daemon: bool = True) -> None:
        """Time passes. ``unheard``: agents cut off meanwhile; ``daemon`` False: it is the daemon that stands still."""
        self.orders.unheard = unheard
        if self.scene.live.fleet is None:
            await self.scene.fleets.take()
        for _ in range(round(span_s / TICK_S)):
            self.clock.advance(TICK_S)
            self.orders.now_s = now_s = self.now_s
            for agent in self.agents:
                agent.read(now_s)
                if agent.node not in unheard:
                    self._speaks(agent, now_s, daemon)
            if daemon:
                await self.scene.check_nodes()
                await self.scene.check_jobs()

    def _speaks(self, agent: Agent, now_s: float, daemon: bool) -> None:
        """One request with the oldest evidence, and a heartbeat when it is due."""
        beats = now_s >= agent.beat_s
        body = agent.heartbeat(now_s) if beats else {}
        if beats:
            agent.beat_s = now_s + BEAT_S
        if not daemon:
            if beats:
                self.late.setdefault(agent.node, body)  # it waits for the answer, and sends nothing else
            return
        if agent.node in self.late:
            self._hears(agent.node, self.late.pop(agent.node))
        if beats:  # first, as it may be: only then what waits
            self._hears(agent.node, body)
        if beats or agent.spool:
            self.scene.hear(agent.node)
        for number, item in agent.spool[:BATCH]:
            self.scene.live.note(item)
            agent.acknowledged = number
        del agent.spool[:BATCH]

    def _hears(self, node: str, body: dict[str, object]) -> None:
        self.scene.beat(node, body)
