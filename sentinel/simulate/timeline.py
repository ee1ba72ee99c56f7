"""Virtual time, and the events scheduled in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)  # when every history begins


class Timeline:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._now = 0.0, AT
        self._queue: list[tuple[float, int, Callable[[], None], bool]] = []
        self._count = 0
        self._idle = 0  # of these, what happens over and over

    def now(self, more_s: float = 0.0) -> datetime:
        if more_s:
            return AT + timedelta(seconds=self.now_s + more_s)
        if self._now[0] != self.now_s:
            self._now = self.now_s, AT + timedelta(seconds=self.now_s)
        return self._now[1]

    def at(self, at_s: float, what: Callable[[], None], *, idle: bool = False) -> None:
        """``idle``: it happens over and over, also when nothing else will happen any more."""
        self._count += 1
        self._idle += idle
        heapq.heappush(self._queue, (max(at_s, self.now_s), self._count, what, idle))

    def later(self, after_s: float, what: Callable[[], None], *, idle: bool = False) -> None:
        self.at(self.now_s + after_s, what, idle=idle)

    def next_s(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def do_due(self) -> bool:
        """Let happen what is due; whether something was."""
        if not self._queue or self._queue[0][0] > self.now_s:
            return False
        while self._queue and self._queue[0][0] <= self.now_s:
            _, _, what, idle = heapq.heappop(self._queue)
            self._idle -= idle
            what()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether nothing will happen but what happens over and over."""
        return len(self._queue) == self._idle
