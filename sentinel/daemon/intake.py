"""Evidence of many nodes, put through together: what comes in while one batch is being stored makes up the next one.

A node that tells of something alone waits for nobody. When hundreds do at once, their requests share a transaction (one
sync of the disk, one holder of the store's write lock) in place of queueing for one each, and the event loop is given back
between batches, so that heartbeats are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sentinel.model import Evidence

_MOST = 500  # items of one batch, one request at least: grouping them keeps the event loop for a fraction of a second

Observe = Callable[[Sequence[Evidence]], Awaitable[None]]


class Intake:
    """Hands what requests bring to ``observe``, one batch at a time."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._waiting: deque[tuple[Sequence[Evidence], asyncio.Future[None]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def take(self, items: Sequence[Evidence]) -> None:
        """Returns when ``items`` are safe to acknowledge; raises what ``observe`` raised for the batch they were in."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            batch: list[Evidence] = []
            waiters: list[asyncio.Future[None]] = []
            while self._waiting and (not waiters or len(batch) + len(self._waiting[0][0]) <= _MOST):
                items, done = self._waiting.popleft()
                batch.extend(items)
                waiters.append(done)
            outcome = await asyncio.gather(self._observe(batch), return_exceptions=True)
            for done in waiters:
                if done.done():
                    continue  # its node has gone meanwhile; what it told is kept all the same
                if isinstance(outcome[0], BaseException):
                    done.set_exception(outcome[0])
                else:
                    done.set_result(None)
