"""Bounds the memory that requests and answers take at once; those that do not fit wait for others to end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext


class MemoryBudget:
    """A number of bytes, given out first come, first served. A request for more than all of it takes all of it."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def taking(self, count_bytes: int) -> AbstractAsyncContextManager[None]:
        """Hold ``count_bytes`` while the block runs. Waits until they are free; the caller sets the deadline."""
        return self._taking(count_bytes) if count_bytes else nullcontext()

    @asynccontextmanager
    async def _taking(self, count_bytes: int) -> AsyncIterator[None]:
        count_bytes = min(count_bytes, self.most_bytes)
        await self._take(count_bytes)
        try:
            yield
        finally:
            self._give_back(count_bytes)

    async def _take(self, count_bytes: int) -> None:
        if not self._waiting and self.taken_bytes + count_bytes <= self.most_bytes:
            self.taken_bytes += count_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count_bytes, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(count_bytes)  # cancelled just after it got its bytes
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._next()  # a smaller request behind it may fit
            raise

    def _give_back(self, count_bytes: int) -> None:
        self.taken_bytes -= count_bytes
        self._next()

    def _next(self) -> None:
        while self._waiting and self.taken_bytes + self._waiting[0][0] <= self.most_bytes:
            count_bytes, turn = self._waiting.popleft()
            if turn.done():
                continue  # cancelled while it waited
            self.taken_bytes += count_bytes
            turn.set_result(None)
