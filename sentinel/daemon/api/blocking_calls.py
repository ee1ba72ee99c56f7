"""Runs short blocking calls in a few threads and returns their results to the event loop in batches.

Used for thousands of small calls a second (two MUNGE credentials for each request of a node). An executor of the standard
library makes two futures, wakes a thread and wakes the event loop for each call, which costs more than the call itself. Here
a running thread takes waiting calls before another thread is woken, and the loop is woken once for all finished calls.
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

_EACH = 2  # calls that may wait per running thread before another thread is woken

T = TypeVar("T")
Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class BlockingCalls:
    """A thread pool for one event loop. Its threads start with the first call and end with ``stop``."""

    def __init__(self, threads: int, name: str, log: Log) -> None:
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first: deque[Job] = deque()
        self._rest: deque[Job] = deque()
        self._bells: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in range(threads)]  # False: end
        self._awake = [False] * threads
        self._ended: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._told = False  # whether the loop was woken to collect finished calls
        self._threads = [
            threading.Thread(target=self._work, args=(at,), name=f"{name}_{at}", daemon=True) for at in range(threads)
        ]

    async def call(self, function: Callable[..., T], *arguments: object, first: bool = False) -> T:
        """Run ``function`` in a thread and return or raise what it does. ``first``: ahead of calls without it."""
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
        """End the threads after the waiting calls; does not wait for them."""
        for bell in self._bells:
            bell.put(False)

    def _wake_one(self) -> None:
        for at, awake in enumerate(self._awake):
            if not awake:
                self._awake[at] = True
                self._bells[at].put(True)
                return

    def _hand_back(self) -> None:
        self._told = False  # reset before collecting: calls that end from here on wake the loop again
        while self._ended:
            answer, value, error = self._ended.popleft()
            if answer.done():
                continue  # the caller was cancelled
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
                except Exception as error:  # raised again too, and logged as a bug; the thread keeps running
                    self._log.error("bug", where=threading.current_thread().name, error=repr(error))
                    self._over(answer, None, error)
                else:
                    self._over(answer, value, None)

    def _next(self, at: int) -> Job | None:
        """The call that waits longest. None: thread ``at`` sleeps; it was marked so before its last look at the queues,
        so that no call is missed."""
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
            with contextlib.suppress(RuntimeError):  # the loop was closed: no caller waits any more
                self._loop.call_soon_threadsafe(self._hand_back)
