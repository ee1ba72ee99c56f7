"""Nodes that are gone, until Slurm notices, and come back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentinel.simulate.world import World

SLURMD_TIMEOUT_S = 300.0  # Slurm's default: then it sets a node that does not answer down


class Presence:
    def __init__(self, world: World) -> None:
        self._world = world
        self._when_back: dict[str, list[Callable[[], None]]] = {}

    def lose(self, node: str) -> None:
        """The machine is gone: its jobs make no step, and Slurm notices after SlurmdTimeout."""
        world = self._world
        world.slurm.lose(node)
        for program in world.programs.on(node):
            world.programs.hang(program, node)
        self.notice_later([node])

    def slurmctld_starts(self) -> None:
        """It waits anew for the nodes that are gone."""
        self.notice_later([name for name, node in self._world.slurm.nodes.items() if not node.alive])

    def notice_later(self, nodes: Collection[str]) -> None:
        slurm = self._world.slurm

        def notice() -> None:
            for node in nodes:
                if not slurm.nodes[node].alive and not slurm.nodes[node].down:
                    slurm.notice(node)

        self._world.later(SLURMD_TIMEOUT_S, notice)

    def when_back(self, node: str, what: Callable[[], None]) -> None:
        self._when_back.setdefault(node, []).append(what)

    def booted(self, node: str) -> None:
        """The node is back and registers; what Slurm still lists there has no process any more."""
        world = self._world
        if world.slurm.nodes[node].alive:
            return  # repaired meanwhile
        world.machines.booted(node)
        world.slurm.lost_processes(node)
        world.slurm.revive(node)
        world.observer.rebooted(node)
        for what in self._when_back.pop(node, []):
            what()
