"""Calls that block, done by a few threads beside the event loop, and handed back many at a time.

Thousands of small calls a second go this way (two credentials for each request of a node). An executor of the standard
library makes two futures, wakes a thread and wakes the event loop for each of them, which costs more than the call. Here a
thread that is awake does what waits before another is woken, and what has ended when the loop looks comes back together.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sentinel.errors import SentinelError
from sentinel.log import Log

_EACH = 2  # calls that may wait for each thread that is awake before another one is woken

T = TypeVar("T")
Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Beside:
    """Made and used in one event loop. ``threads`` are started with the first call and end with ``stop``."""

    def __init__(self, threads: int, name: str, log: Log) -> None:
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first: deque[Job] = deque()
        self._rest: deque[Job] = deque()
        self._bells: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in range(threads)]  # False: end
        self._awake = [False] * threads
        self._ended: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._told = False  # the loop, that something has ended
        self._threads = [
            threading.Thread(target=self._work, args=(at,), name=f"{name}_{at}", daemon=True) for at in range(threads)
        ]

    async def call(self, function: Callable[..., T], *arguments: object, first: bool = False) -> T:
        """What ``function`` returns or raises. ``first``: before all that wait and are not."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            for thread in self._threads:
                thread.start()
        answer: asyncio.Future[T] = self._loop.create_future()
        (self._first if first else self._rest).append((answer, partial(function, *arguments)))
        if sum(self._awake) * _EACH < len(self._first) + len(self._rest):
            self._wake_one()
        return await answer

    def stop(self) -> None:
        """The threads end when what waits is done; nobody waits for them."""
        for bell in self._bells:
            bell.put(False)

    def _wake_one(self) -> None:
        for at, awake in enumerate(self._awake):
            if not awake:
                self._awake[at] = True
                self._bells[at].put(True)
                return

    def _hand_back(self) -> None:
        self._told = False  # before looking: what ends from here on tells the loop again
        while self._ended:
            answer, value, error = self._ended.popleft()
            if answer.done():
                continue  # whoever asked has gone
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

    # --- in the threads -----------------------------------------------------------------------------------------------

    def _work(self, at: int) -> None:
        while self._bells[at].get():
            while (job := self._next(at)) is not None:
                answer, function = job
                try:
                    value = function()
                except SentinelError as error:  # raised again where the answer is awaited
                    self._over(answer, None, error)
                except Exception as error:  # the same, and seen; the thread goes on
                    self._log.error("bug", where=threading.current_thread().name, error=repr(error))
                    self._over(answer, None, error)
                else:
                    self._over(answer, value, None)

    def _next(self, at: int) -> Job | None:
        """What waits longest. None: thread ``at`` sleeps, and had said so before it looked for the last time."""
        for awake in (True, False):
            self._awake[at] = awake
            for jobs in (self._first, self._rest):
                with contextlib.suppress(IndexError):  # empty, or another thread was faster
                    return jobs.popleft()
        return None

    def _over(self, answer: asyncio.Future[Any], value: object, error: Exception | None) -> None:
        assert self._loop is not None, "threads are started by the first call"
        self._ended.append((answer, value, error))
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for an answer any more
                self._loop.call_soon_threadsafe(self._hand_back)
