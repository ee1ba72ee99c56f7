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
from typing import Any

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
        self._closed = False
        self._here = threading.local()  # ``opens``: what a connection that this thread makes is told to

    @contextlib.contextmanager
    def within(self, for_s: float, descriptor: int) -> Iterator[None]:
        """The connection behind ``descriptor`` is shut down if the block takes longer than ``for_s``."""
        key = object()
        self._begin(key, for_s, descriptor)
        try:
            yield
        finally:
            self._end(key)

    @contextlib.contextmanager
    def opening(self, for_s: float) -> Iterator[Callable[[], bool]]:
        """A connection that this thread makes in the block is shut down if the rest of the block takes more than ``for_s``.

        A driver asks questions of its own before anybody has the connection; the pool says that it is made (``connected``).
        Yields whether one was shut down.
        """
        kept: dict[object, int] = {}

        def made(descriptor: int) -> None:
            key = object()
            kept[key] = os.dup(descriptor)  # whoever gives up closes the connection, and its number is given again
            self._begin(key, for_s, kept[key])

        self._here.opens = made
        try:
            yield lambda: not self._due.keys() >= kept.keys()
        finally:
            self._here.opens = None
            for key, descriptor in kept.items():
                self._end(key)
                os.close(descriptor)

    def connected(self, connection: Any, _record: object) -> None:
        """For the event *connect* of SQLAlchemy's pools, before all others."""
        if (made := getattr(self._here, "opens", None)) is not None:
            made(connection.fileno())

    def close(self) -> None:
        """Let the thread end once no transaction is under way; one that begins later is ended in time, too."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _begin(self, key: object, for_s: float, descriptor: int) -> None:
        with self._changed:
            self._due[key] = (self._seconds() + for_s, descriptor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="database deadlines", daemon=True)
                self._thread.start()
            elif len(self._due) == 1:
                self._changed.notify()

    def _end(self, key: object) -> None:
        with self._changed:
            self._due.pop(key, None)

    def _watch(self) -> None:
        with self._changed:
            while self._due or not self._closed:
                self._changed.wait(_LOOK_S if self._due else None)
                now_s = self._seconds()
                for key in [key for key, (due_s, _) in self._due.items() if due_s <= now_s]:
                    _shut_down(self._due.pop(key)[1])
            self._thread = None


def _shut_down(descriptor: int) -> None:
    """Called while the transaction waits, so that the descriptor is still its connection's."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
