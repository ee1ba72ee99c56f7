"""Heartbeats of the nodes' agents, in histories in which the daemon itself must miss them, and step lines that stay away.

Other histories have none, and what the watch on nodes and jobs would conclude is put in by ``faults``: heartbeats every two
seconds and checks four times a second make a history ten times as long to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sentinel.detect.observed_silence import LogRead
from sentinel.engine.watch.events import HeartbeatReceived

if TYPE_CHECKING:
    from sentinel.simulate.world import World

BEAT_S = 2.0  # as agents do
_TRANSIT_S = (0.005, 0.1)


class Heartbeats:
    def __init__(self, world: World) -> None:
        self._world = world
        self.dead: set[str] = set()  # nodes whose agent does not run, while the node does

    def begin(self) -> None:
        for node in self._world.slurm.nodes:
            self._world.later(self._world.rng.uniform(0.0, BEAT_S), lambda name=node: self._beat(name), idle=True)  # type: ignore[misc]

    def _beat(self, node: str) -> None:
        world = self._world
        world.later(BEAT_S, lambda: self._beat(node), idle=True)
        if not world.slurm.nodes[node].alive or node in self.dead or not world.agents.network.passes(world, node):
            return
        sent_s = world.now_s
        world.later(world.rng.uniform(*_TRANSIT_S), lambda: self._arrives(node, sent_s))

    def _arrives(self, node: str, sent_s: float) -> None:
        world = self._world
        if world.daemon is None:
            return
        unsent = world.agents.unsent[node]
        here = world.programs.on(node)
        world.daemon.heartbeat(
            HeartbeatReceived(
                world.daemon.clock.now(),
                node,
                spool={"pending": unsent},
                jobs=tuple((program.job, program.attempt) for program in here),
                logs=tuple(LogRead(p.job, p.attempt, 0.0) for p in here if p.nodes[0] == node and not unsent),
                boot="1",
                sent_s=sent_s,
            )
        )
