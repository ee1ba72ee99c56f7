"""Queues orders for agents, which fetch them by long poll and send back a result. Implements ``ports.Orders``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.errors import Timeout, Unavailable

_CONNECT_S = 5.0  # an agent counts as connected if it polled within this time, or if the daemon started within it
# An order is repeated in case it was lost. The interval is a share of its deadline, within a least and a greatest one.
_AGAIN_SHARE, _AGAIN_S, _AGAIN_MOST_S = 0.15, 0.3, 2.0  # share, seconds, seconds


@dataclass(slots=True)
class Order:
    id: str
    kind: str
    arguments: Mapping[str, object]
    until_s: float
    answer: asyncio.Future[object]
    again_s: float  # interval at which it is repeated
    due_s: float = float("-inf")  # when it is sent next

    def given(self) -> dict[str, object]:
        self.due_s = time.monotonic() + self.again_s
        return self.to_json()

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
        self._run = secrets.token_hex(4)  # part of order ids, so that those of different runs of the daemon differ
        self._started_s = time.monotonic()
        self._closed = False

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
            again_s=min(_AGAIN_MOST_S, max(_AGAIN_S, _AGAIN_SHARE * deadline_s)),
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
        """Wait until orders of ``node`` are due and return them; empty after ``for_s``, or once this is closed."""
        self._polling[node] = self._polling.get(node, 0) + 1
        until_s = time.monotonic() + for_s
        try:
            event = self._event(node)
            while True:
                event.clear()
                orders, now_s = self._orders.get(node, {}).values(), time.monotonic()
                due = [order.given() for order in orders if order.due_s <= now_s]
                if due or self._closed or now_s >= until_s:
                    return due
                next_s = min((order.due_s for order in orders), default=until_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(next_s, until_s) - now_s)
        finally:
            self._polling[node] -= 1
            self._polled_s[node] = time.monotonic()

    def close(self) -> None:
        """End every ``wait``, and each that begins: the daemon stops, and gives its lease up once they are answered."""
        self._closed = True
        for event in self._wake.values():
            event.set()

    def result(self, node: str, order: str, ok: bool, result: object, error: str) -> None:
        """Hand an agent's result to the caller of ``ask``; dropped if that caller no longer waits."""
        known = self._orders.get(node, {}).get(order)
        if known is None or known.answer.done():
            return
        if ok:
            known.answer.set_result(result)
        else:
            known.answer.set_exception(Unavailable(f"the agent of {node} could not do {known.kind}: {error:.300}"))

    def _event(self, node: str) -> asyncio.Event:
        return self._wake.setdefault(node, asyncio.Event())
