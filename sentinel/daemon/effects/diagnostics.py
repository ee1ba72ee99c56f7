"""Has agents run the diagnostics that the engine orders, and reads the nodes' scores for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.classify.ageing import Counter
from sentinel.config.settings import Settings
from sentinel.daemon.api.scores import read_scores
from sentinel.daemon.ingest.stated import as_received, may_state
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.events import DiagnosticEnded, ScoresRead
from sentinel.engine.transition import ReadScores, RunDiagnostic
from sentinel.errors import ProtocolError, SentinelError, UserError
from sentinel.log import Log
from sentinel.model.orders import Diagnose
from sentinel.model.records import Evidence
from sentinel.ports import Clock, Orders
from sentinel.wire import evidence_from


def check_deadlines(settings: Settings) -> None:
    """Check the deadlines in the settings.

    Raises:
        UserError: ``diagnostics.deadline_s`` is not one positive number for each level.
    """
    deadlines_s = settings.diagnostics.deadline_s
    if len(deadlines_s) != 4 or min(deadlines_s) <= 0:
        raise UserError("diagnostics.deadline_s: needs four positive numbers", fix="one for each level")


class Diagnostics:
    def __init__(
        self,
        *,
        orders: Orders,
        store: Store,
        live: ClusterView,
        counters: Mapping[str, Counter],
        clock: Clock,
        log: Log,
    ) -> None:
        self._orders = orders
        self._store = store
        self._live = live
        self._counters = counters
        self._clock = clock
        self._log = log

    async def run(self, effect: RunDiagnostic) -> DiagnosticEnded:
        # It yields to a job that starts on the node. It tests all GPUs, as only a pass on all of them clears the node.
        order = Diagnose(effect.level, gpus=None, yields=True)
        result, reason = "unknown", ""
        found: tuple[Evidence, ...] = ()
        try:
            answer = await self._orders.ask(effect.node, order.kind, order.arguments(), deadline_s=effect.deadline_s)
            if isinstance(answer, dict):
                result, reason = str(answer.get("result", "unknown")), str(answer.get("reason", ""))[:300]
                found = self._evidence(effect.node, answer)
        except SentinelError as error:
            reason = error.message
        return DiagnosticEnded(self._clock.now(), effect.id, effect.node, result, reason, found)

    def _evidence(self, node: str, answer: Mapping[str, Any]) -> tuple[Evidence, ...]:
        items = answer.get("evidence")
        try:
            now, stated = self._clock.now(), items if isinstance(items, list) else ()
            found = tuple(as_received(self._live, node, evidence_from(item), now) for item in stated)
            if not all(may_state(self._live, node, item) for item in found):
                raise ProtocolError(f"{node} may not state all of it")
            return found
        except SentinelError as error:  # the agent sends it again as ordinary evidence
            self._log.warning("diagnostic-not-kept", node=node, reason=error.message)
            return ()

    async def scores(self, _effect: ReadScores) -> ScoresRead | None:
        """Read the nodes' scores; None if the store does not answer. The engine asks again."""
        now = self._clock.now()
        try:
            scores = await asyncio.to_thread(read_scores, self._store, self._live, self._counters, now)
        except SentinelError as error:
            self._log.warning("scores-not-read", reason=error.message)
            return None
        return ScoresRead(now, scores.by_node, scores.trends)
