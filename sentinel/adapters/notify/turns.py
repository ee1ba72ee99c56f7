"""Turns of deliveries to one receiver: what asks for a person's decision goes first, then what needs a person now."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from sentinel.model.records import Notice

_DECISION, _NOW, ORDINARY = range(3)  # the most urgent first


def urgency_of(notice: Notice) -> int:
    """The lower, the sooner its turn comes."""
    if notice.data.get("stage") == "asked":
        return _DECISION
    return _NOW if notice.data.get("severity") == "critical" else ORDINARY


class Turns:
    """A semaphore whose next turn is that of the most urgent that waits, of these of the one that came first."""

    def __init__(self, most: int) -> None:
        """``most``: turns at once."""
        self._free = most
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = count()

    @asynccontextmanager
    async def turn(self, urgency: int = ORDINARY) -> AsyncIterator[None]:
        await self._come(urgency)
        try:
            yield
        finally:
            self._leave()

    async def _come(self, urgency: int) -> None:
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._came), mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._leave()  # its turn had come
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, one = heapq.heappop(self._waiting)
            if not one.done():  # else it was cancelled
                one.set_result(None)
                return
        self._free += 1
