"""Tracks how far a job's log is read and how much of that the daemon acknowledged, for the heartbeat."""

from __future__ import annotations

import threading
from collections import deque

_LOOKS = 256  # looks kept until acknowledged; of more, the newest are enough


class Reading:
    """Reading progress of one log. Times are monotonic seconds. Safe from any thread.

    Reaching the end of the log proves silence only once the daemon has acknowledged all evidence read before it: until
    then a step line may be in the spool.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = 0  # spool number of this log's newest evidence
        self._looks: deque[tuple[int, float]] = deque(
            maxlen=_LOOKS
        )  # that number at a look, when the newest such look was
        self._told_s: float | None = None

    def kept(self, number: int) -> None:
        """Evidence of the log was put into the spool."""
        with self._lock:
            self._kept = max(self._kept, number)

    def looked(self, at_s: float) -> None:
        """The end of the log was reached at ``at_s``; all evidence read by then is in the spool."""
        with self._lock:
            if self._looks and self._looks[-1][0] == self._kept:
                self._looks.pop()
            self._looks.append((self._kept, at_s))

    def looked_ago_s(self, acknowledged: int, now_s: float) -> float | None:
        """Seconds since the end was last reached with all evidence acknowledged; None when it never was."""
        with self._lock:
            while self._looks and self._looks[0][0] <= acknowledged:
                self._told_s = self._looks.popleft()[1]
            return None if self._told_s is None else max(0.0, now_s - self._told_s)
