"""Tracks how far a job's log is read and how much of that the daemon acknowledged, for the heartbeat."""

from __future__ import annotations

import threading
from collections import deque

_LOOKS = 256  # that wait for an acknowledgement; while more do, the newest of them are enough


class Reading:
    """Of one log. A look at its end proves silence only once all that was read before it is with the daemon: a step line
    that waits in the spool is no silence. Times are monotonic seconds. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = 0  # number in the spool of the newest evidence of this log
        self._looks: deque[tuple[int, float]] = deque(
            maxlen=_LOOKS
        )  # that number at a look, when the newest such look was
        self._told_s: float | None = None

    def kept(self, number: int) -> None:
        """Evidence of the log was put into the spool."""
        with self._lock:
            self._kept = max(self._kept, number)

    def looked(self, at_s: float) -> None:
        """Its end was seen at ``at_s``, and all that was read by then has been kept."""
        with self._lock:
            if self._looks and self._looks[-1][0] == self._kept:
                self._looks.pop()
            self._looks.append((self._kept, at_s))

    def looked_ago_s(self, acknowledged: int, now_s: float) -> float | None:
        """Since the newest look of which all evidence is acknowledged; None when there was none."""
        with self._lock:
            while self._looks and self._looks[0][0] <= acknowledged:
                self._told_s = self._looks.popleft()[1]
            return None if self._told_s is None else max(0.0, now_s - self._told_s)
