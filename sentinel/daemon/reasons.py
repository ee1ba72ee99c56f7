"""Nodes that our own prolog refused: Slurm drains them with words that explain nothing. The daemon puts the reason there.

The agent's verdict, on which the prolog acted, comes with each heartbeat; a prolog without an agent sends its proof. Only
Slurm's own "Prolog error" is replaced, only on such a conviction, and only where draining is switched on (promise 7); then
the drain is ours to take back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sentinel.daemon.live import Live
from sentinel.errors import Refused, Unavailable
from sentinel.log import Log
from sentinel.model import OURS, PROLOG_ERROR, NodeView
from sentinel.ports import SlurmWriter
from sentinel.settings import Modes
from sentinel.telemetry import Telemetry

LOOK_S = 5.0  # at the snapshot that is there anyway: Slurm is asked nothing


class Reasons:
    """Looks at the newest snapshot of the fleet now and then.

    Args:
        incident: id and cause of the incident that convicts a node, if there is one.
    """

    def __init__(
        self,
        *,
        writer: SlurmWriter,
        live: Live,
        modes: Modes,
        incident: Callable[[str], tuple[str, str] | None],
        telemetry: Telemetry,
        log: Log,
    ) -> None:
        self._writer = writer
        self._live = live
        self._modes = modes
        self._incident = incident
        self._telemetry = telemetry
        self._log = log
        self._done: dict[str, str] = {}  # what we wrote: the snapshot may be older

    async def forever(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:
                self._telemetry.bugs.inc()
                self._log.error("bug", where="reasons", error=repr(error))
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Explain every refused node that we can speak for, once."""
        fleet = self._live.fleet
        refused = (
            [node for node in fleet.nodes.values() if node.drained and node.reason == PROLOG_ERROR] if fleet else []
        )
        for name in set(self._done) - {node.name for node in refused}:
            del self._done[name]  # it was given back; if it is refused again, that is another matter
        for node in refused:
            reason = self._reason(node)
            if reason is None or self._done.get(node.name) == reason:
                continue
            try:
                await self._writer.explain(node.name, reason)
            except Unavailable as error:
                self._log.warning("refusal-not-explained", node=node.name, reason=error.message)
                continue
            except Refused as error:  # somebody was quicker
                self._log.info("refusal-explained-already", node=node.name, reason=error.message)
            else:
                self._log.info("refusal-explained", node=node.name, reason=reason)
            self._done[node.name] = reason

    def _reason(self, node: NodeView) -> str | None:
        mode = next((self._modes.partitions[p] for p in node.partitions if p in self._modes.partitions), None)
        if (mode or self._modes.default).drain != "act":
            return None
        seen, convicting = self._live.nodes.get(node.name), self._incident(node.name)
        if seen is not None and seen.verdict.get("word") == "BAD":
            incident = convicting[0] if convicting else "prolog"
            return f"{OURS}{incident} {seen.verdict.get('code', '')}: {seen.verdict.get('sentence', '')}"[:200]
        # Without an agent the prolog itself sent its proof, and an incident came of it.
        return f"{OURS}{convicting[0]} {convicting[1]}" if convicting else None
