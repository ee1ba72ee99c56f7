"""Ends transactions that a database server does not answer.

A driver waits for an answer as long as the connection stands, and a connection across a cut network stands for minutes. A
thread shuts down the socket of a transaction that is overdue; who waits on it then gets the driver's own error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

_LOOK_S = 0.2  # how often running transactions are looked at


class Deadlines:
    """
    Args:
        seconds: a monotonic clock.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._due: dict[object, tuple[float, int]] = {}  # when, and which file descriptor
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, for_s: float, descriptor: int) -> Iterator[None]:
        """The connection behind ``descriptor`` is shut down if the block takes longer than ``for_s``."""
        key = object()
        with self._changed:
            self._due[key] = (self._seconds() + for_s, descriptor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="database deadlines", daemon=True)
                self._thread.start()
            elif len(self._due) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(key, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(_LOOK_S if self._due else None)
                now_s = self._seconds()
                for key in [key for key, (due_s, _) in self._due.items() if due_s <= now_s]:
                    _shut_down(self._due.pop(key)[1])


def _shut_down(descriptor: int) -> None:
    """Called while the transaction waits, so that the descriptor is still its connection's."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
