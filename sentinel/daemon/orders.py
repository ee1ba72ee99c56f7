"""Orders for agents: asked by the daemon, fetched by long poll, answered by result. Implements ``ports.Orders``."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.errors import Timeout, Unavailable

_CONNECT_S = 5.0  # an agent that polled within this time, or a daemon this young, is worth asking


@dataclass(slots=True)
class Order:
    id: str
    kind: str
    arguments: Mapping[str, object]
    until_s: float
    answer: asyncio.Future[object]

    def to_json(self) -> dict[str, object]:
        left = max(0.1, self.until_s - time.monotonic())
        return {"id": self.id, "kind": self.kind, "arguments": dict(self.arguments), "deadline_s": left}


class OrderBook:
    def __init__(self) -> None:
        self._orders: dict[str, dict[str, Order]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._polled_s: dict[str, float] = {}
        self._polling: dict[str, int] = {}
        self._count = itertools.count(1)
        self._run = secrets.token_hex(4)  # ids of one run of the daemon never meet those of another
        self._started_s = time.monotonic()

    def connected(self, node: str) -> bool:
        if self._polling.get(node, 0) > 0:
            return True
        now = time.monotonic()
        return now - self._polled_s.get(node, float("-inf")) < _CONNECT_S or now - self._started_s < _CONNECT_S

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        if not self.connected(node):
            raise Unavailable(f"the agent of {node} is not connected")
        loop = asyncio.get_running_loop()
        order = Order(
            id=f"{self._run}-{next(self._count)}",
            kind=kind,
            arguments=arguments,
            until_s=time.monotonic() + deadline_s,
            answer=loop.create_future(),
        )
        self._orders.setdefault(node, {})[order.id] = order
        self._event(node).set()
        try:
            return await asyncio.wait_for(order.answer, deadline_s)
        except TimeoutError as error:
            raise Timeout(f"the agent of {node} did not answer {kind} within {deadline_s:g} s") from error
        finally:
            self._orders.get(node, {}).pop(order.id, None)

    async def wait(self, node: str, for_s: float) -> list[dict[str, object]]:
        """Orders of ``node``, as soon as there are some; empty after ``for_s``."""
        self._polling[node] = self._polling.get(node, 0) + 1
        try:
            event = self._event(node)
            event.clear()
            if not self._orders.get(node):
                try:
                    await asyncio.wait_for(event.wait(), for_s)
                except TimeoutError:
                    return []
            return [order.to_json() for order in self._orders.get(node, {}).values()]
        finally:
            self._polling[node] -= 1
            self._polled_s[node] = time.monotonic()

    def result(self, node: str, order: str, ok: bool, result: object, error: str) -> None:
        """A result that nobody waits for any more is dropped."""
        known = self._orders.get(node, {}).get(order)
        if known is None or known.answer.done():
            return
        if ok:
            known.answer.set_result(result)
        else:
            known.answer.set_exception(Unavailable(f"the agent of {node} could not do {known.kind}: {error:.300}"))

    def _event(self, node: str) -> asyncio.Event:
        return self._wake.setdefault(node, asyncio.Event())
