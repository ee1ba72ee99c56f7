"""What is really wrong with the machines: whether a test shows it, and whether a reset or a reboot cures it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from sentinel.config.returns import Remedial
from sentinel.engine.events import NodeReturnAnswered
from sentinel.engine.transition import RunSiteCommand
from sentinel.errors import Timeout, Unavailable

if TYPE_CHECKING:
    from sentinel.simulate.world import World

HEARTBEAT_S = 5.0
_REBOOT_S = 50.0
_TEST_S = 5.0  # a level takes this long, times its number
_CURES = ("nothing", "reset", "reboot", "repair")  # what it takes; "nothing": it passed by itself


class Machines:
    """Only of histories in which nodes are tested and returned: the others draw nothing here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.history.seed}/{world.history.number}/machines")  # noqa: S311 - repeatable
        self.ill: dict[str, str] = {}  # node -> what cures it
        self.bad: set[str] = set()  # nodes whose agent speaks against them
        self.boots: dict[str, int] = {}
        self.passed: dict[str, list[tuple[float, int]]] = {}  # node -> tests that passed: when, level

    def broke(self, node: str) -> None:
        self.ill[node] = self._rng.choice(_CURES)
        self.bad.add(node)

    def boot(self, node: str) -> str:
        return f"{node}-{self.boots.get(node, 0)}"

    def word(self, node: str) -> str:
        return "BAD" if node in self.bad else "OK"

    def booted(self, node: str) -> None:
        self.boots[node] = self.boots.get(node, 0) + 1
        self.bad.discard(node)
        if self.ill.get(node) in ("reset", "reboot"):
            del self.ill[node]

    # -- what is ordered -------------------------------------------------------------------------------------------

    async def diagnose(self, node: str, level: int) -> object:
        await asyncio.sleep(_TEST_S * level)
        if not self._world.slurm.nodes[node].alive:
            raise Unavailable(f"the agent of {node} is gone")
        if self._rng.random() < 0.1:
            return {"result": "inconclusive", "reason": "DCGM was busy", "evidence": []}
        if self.ill.get(node, "nothing") != "nothing":
            return {"result": "fail", "reason": "GPU 3: memory", "evidence": []}
        self.bad.discard(node)
        self.passed.setdefault(node, []).append((self._world.now_s, level))
        return {"result": "pass", "reason": "", "evidence": []}

    async def command(self, effect: RunSiteCommand) -> NodeReturnAnswered:
        """The site's command: it may fail, or hang until it is killed."""
        world, result, reason = self._world, "done", ""

        async def done() -> None:
            if self._rng.random() < 0.15:
                await asyncio.sleep(effect.deadline_s)
                raise Timeout("/site/command did not end within its deadline and was killed")
            if effect.action == Remedial.RESET:
                self.bad.discard(effect.node)
                if self.ill.get(effect.node) == "reset":
                    del self.ill[effect.node]
            elif world.slurm.nodes[effect.node].alive:
                world.presence.lose(effect.node)
                world.later(_REBOOT_S, lambda: world.presence.booted(effect.node))

        try:
            await world.crossings.ask(f"{effect.action} {effect.node}", done, 2 * effect.deadline_s)
        except Unavailable as error:
            result, reason = "failed", error.message
        return NodeReturnAnswered(world.now(), effect.id, effect.node, result, reason)
