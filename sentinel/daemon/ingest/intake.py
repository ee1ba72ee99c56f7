"""Batches evidence from many nodes: requests that arrive while one batch is being stored form the next batch.

A single request is stored without delay. When hundreds arrive at once they share a transaction (one disk sync, one
holder of the store's write lock), and the event loop runs between batches, so that heartbeats are answered meanwhile.
Requests with convicting evidence have priority: they wait only for the batch that is being stored. A node sends its
next request after the previous one was acknowledged, so that requests of one node are never reordered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sentinel.errors import Refused
from sentinel.model.records import Evidence

_MOST = 500  # items per batch (at least one request): handling them blocks the event loop for a fraction of a second

Observe = Callable[[Sequence[Evidence]], Awaitable[None]]
Waiting = deque[tuple[Sequence[Evidence], "asyncio.Future[None]"]]


class Intake:
    """Hands evidence to ``observe``, one batch at a time; requests with an item that is ``hard`` go first."""

    def __init__(self, observe: Observe, hard: Callable[[Evidence], bool]) -> None:
        self._observe = observe
        self._hard = hard
        self._first: Waiting = deque()
        self._rest: Waiting = deque()
        self._running: asyncio.Task[None] | None = None

    async def take(self, items: Sequence[Evidence]) -> None:
        """Store ``items``; returns when they may be acknowledged. Raises what ``observe`` raised for their batch."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._first if any(map(self._hard, items)) else self._rest).append((items, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        overtook = False
        while self._first or self._rest:
            # Alternate after a priority batch, so that a storm of convicting evidence does not starve other requests.
            overtook = bool(self._first) and not (overtook and self._rest)
            await self._put(self._first if overtook else self._rest)

    async def _put(self, waiting: Waiting) -> None:
        batch: list[Evidence] = []
        parts: list[tuple[Sequence[Evidence], asyncio.Future[None]]] = []
        while waiting and (not parts or len(batch) + len(waiting[0][0]) <= _MOST):
            parts.append(waiting.popleft())
            batch.extend(parts[-1][0])
        (outcome,) = await asyncio.gather(self._observe(batch), return_exceptions=True)
        if isinstance(outcome, Refused) and len(parts) > 1:
            # The store saves all or nothing: retry by request, so that one node's items do not fail those of others.
            outcomes = [(await asyncio.gather(self._observe(items), return_exceptions=True))[0] for items, _ in parts]
        else:
            outcomes = [outcome] * len(parts)
        for (_, done), ended in zip(parts, outcomes, strict=True):
            if done.done():
                continue  # the node disconnected meanwhile; its evidence is stored all the same
            if isinstance(ended, BaseException):
                done.set_exception(ended)
            else:
                done.set_result(None)
