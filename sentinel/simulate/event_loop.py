"""An asyncio event loop on virtual time: nothing waits, the clock jumps to the next moment at which something happens.

The loop never asks the operating system for anything: where an ordinary loop would sleep until the next timer, this one
lets the simulated cluster go on until then. What code hands to a thread (``asyncio.to_thread``) is done on the loop a
little later.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Time(Protocol):
    """Virtual time, and what happens in it outside of the loop."""

    now_s: float

    def go_on(self, until_s: float | None) -> None:
        """Let time pass until ``until_s`` or to the next thing that happens, whichever comes first.

        Args:
            until_s: None: the loop waits for no timer.
        """
        ...

    def thread_s(self) -> float:
        """How long a call that was handed to a thread takes."""
        ...


class _NoSockets(selectors.BaseSelector):
    """The loop registers one socket of its own, which is never read."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj, events, data)  # the loop registers numbers only
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def close(self) -> None:
        self._keys.clear()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs until somebody calls ``stop``; what is left then is dropped, as in a process that was killed."""

    def __init__(self, time: Time) -> None:
        self._virtual = time
        super().__init__(_NoSockets())
        self.set_exception_handler(lambda _loop, _context: None)  # tasks that a killed process leaves behind

    def _run_once(self) -> None:
        """One round, as asyncio's own but for sockets and debugging.

        A history takes a thousand rounds: asyncio's own take a tenth of its time.
        """
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        time = self._virtual
        if not (ready or self._stopping):  # type: ignore[attr-defined]
            if not scheduled:
                time.go_on(None)
            elif (wait_s := scheduled[0].when() - time.now_s) > 0:
                time.go_on(time.now_s + wait_s)
        due_s = time.now_s + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and scheduled[0].when() < due_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def drop(self) -> None:
        """Forget everything that is under way, at once: nothing of it goes on."""
        self.call_soon = _nothing  # type: ignore[method-assign,assignment]
        for task in asyncio.all_tasks(self):
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                coroutine.close()
        self.close()

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call ``func`` on the loop, after the time that a thread takes."""
        answer: asyncio.Future[T] = self.create_future()
        self.call_later(self._virtual.thread_s(), _answer, answer, func, args)
        return answer


def _answer(answer: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        result = func(*args)
    except BaseException as error:  # whoever waits gets it, also when the daemon is killed in there
        if not answer.cancelled():
            answer.set_exception(error)
        raise  # to the loop's handler, which drops it
    else:
        if not answer.cancelled():
            answer.set_result(result)


def _nothing(*_arguments: Any, **_named: Any) -> Any:
    """Stands in for ``call_soon`` while a killed process is cleared away."""
