"""Turns of deliveries to one receiver, and threads in which blocking ones wait for mail servers and chats.

A socket's deadline is that of one read: a server that sends a byte now and then holds its thread for ever. Each delivery
therefore has an outer deadline, at which its thread is left behind, and each receiver few threads of its own: one that hangs
delays nobody else's messages, and not the end of the process either, which waits for none of these threads.

A receiver that handles one message after the other would answer none of hundreds in time, and get each of them again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TypeVar

from sentinel.adapters.notify.turns import ORDINARY, Turns
from sentinel.errors import Unavailable

T = TypeVar("T")

_EACH = 2  # deliveries at once to one receiver; further ones wait for their turn
_LEFT_BEHIND = 2  # deliveries to one receiver that may hang: no further one begins until one of them ends


class DeliveryThreads:
    def __init__(self, most: int | None = None) -> None:
        """``most``: deliveries at once, to all receivers; None: as many as the receivers take."""
        self._turns: dict[str, Turns] = defaultdict(lambda: Turns(_EACH))
        self._all: AbstractAsyncContextManager[None] = asyncio.Semaphore(most) if most is not None else nullcontext()
        self._left: Counter[str] = Counter()  # by receiver: deliveries past their deadline that have not ended

    @asynccontextmanager
    async def turn(self, receiver: str, urgency: int = ORDINARY) -> AsyncIterator[None]:
        """For a delivery that blocks nobody and ends by itself: begins when its turn has come."""
        async with self._turns[receiver].turn(urgency), self._all:
            yield

    async def call(
        self, receiver: str, deadline_s: float, function: Callable[..., T], *arguments: object, urgency: int = ORDINARY
    ) -> T:
        """Call ``function`` in a thread of the receiver's.

        Args:
            deadline_s: of this call, from when its turn has come.
            urgency: see ``urgency_of``.

        Raises:
            TimeoutError: it did not end in time; its thread ends by itself.
            Unavailable: too many calls for this receiver have not ended.
        """
        async with self._turns[receiver].turn(urgency):
            if self._left[receiver] >= _LEFT_BEHIND:
                raise Unavailable(f"{receiver}: earlier deliveries have not ended: its service keeps them waiting")
            async with self._all:
                return await self._call(receiver, deadline_s, function, *arguments)

    async def _call(self, receiver: str, deadline_s: float, function: Callable[..., T], *arguments: object) -> T:
        loop, running = asyncio.get_running_loop(), _begun(function, *arguments)

        def ended() -> None:
            self._left[receiver] -= 1

        def end(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the daemon has stopped
                loop.call_soon_threadsafe(ended)

        try:
            return await asyncio.wait_for(asyncio.wrap_future(running), deadline_s)
        except (TimeoutError, asyncio.CancelledError):
            self._left[receiver] += 1
            running.add_done_callback(end)
            raise


class _Call(Future[T]):
    """What becomes of a call in a thread; whatever it raises is the caller's."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is not None:
            self.set_exception(error)
        return True


def _begun(function: Callable[..., T], *arguments: object) -> Future[T]:
    """The call, in a thread of its own that ends with it. An executor's would be waited for at the end of the process."""
    made = _Call[T]()
    made.set_running_or_notify_cancel()  # from now on it cannot be cancelled, only left behind

    def run() -> None:
        with made:
            made.set_result(function(*arguments))

    threading.Thread(target=run, name="alerts", daemon=True).start()
    return made
