"""Evidence of many nodes, put through together: what comes in while one batch is being stored makes up the next one.

A node that tells of something alone waits for nobody. When hundreds do at once, their requests share a transaction (one
sync of the disk, one holder of the store's write lock) in place of queueing for one each, and the event loop is given back
between batches, so that heartbeats are answered meanwhile. A request with hard evidence overtakes those without: it waits
for the batch that is being stored and for no other. A node sends its next request when the last one was acknowledged, so
that nothing overtakes what the same node told before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sentinel.model import Evidence

_MOST = 500  # items of one batch, one request at least: grouping them keeps the event loop for a fraction of a second

Observe = Callable[[Sequence[Evidence]], Awaitable[None]]
Waiting = deque[tuple[Sequence[Evidence], "asyncio.Future[None]"]]


class Intake:
    """Hands what requests bring to ``observe``, one batch at a time; ``hard`` says what goes first."""

    def __init__(self, observe: Observe, hard: Callable[[Evidence], bool]) -> None:
        self._observe = observe
        self._hard = hard
        self._first: Waiting = deque()
        self._rest: Waiting = deque()
        self._running: asyncio.Task[None] | None = None

    async def take(self, items: Sequence[Evidence]) -> None:
        """Returns when ``items`` are safe to acknowledge; raises what ``observe`` raised for the batch they were in."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._first if any(map(self._hard, items)) else self._rest).append((items, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        overtook = False
        while self._first or self._rest:
            # After a batch that overtook comes one that was overtaken: a storm of hard evidence starves nobody.
            overtook = bool(self._first) and not (overtook and self._rest)
            await self._put(self._first if overtook else self._rest)

    async def _put(self, waiting: Waiting) -> None:
        batch: list[Evidence] = []
        waiters: list[asyncio.Future[None]] = []
        while waiting and (not waiters or len(batch) + len(waiting[0][0]) <= _MOST):
            items, done = waiting.popleft()
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
