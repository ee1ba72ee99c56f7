"""Measures the daemon's own delays: while it is late, nodes may seem silent because of it."""

from __future__ import annotations

_MOST_S = 10.0  # silence of nodes is excused for at most twice this, however late the daemon is


class OwnDelays:
    """The longest wait of the last ``kept_s`` seconds. Times are monotonic seconds of the caller."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._longest_s = 0.0
        self._at_s = float("-inf")
        self._checked_s = float("inf")

    def request_waited(self, for_s: float, now_s: float) -> None:
        """A request waited ``for_s`` before its sender was identified."""
        if for_s >= self._longest_s or now_s - self._at_s > self._kept_s:
            self._longest_s, self._at_s = for_s, now_s

    def checked(self, now_s: float, every_s: float) -> None:
        """Called by a loop every ``every_s``: its lateness is taken as the lateness of the whole daemon."""
        self.request_waited(max(0.0, now_s - self._checked_s - every_s), now_s)
        self._checked_s = now_s

    @property
    def excuse_s(self) -> float:
        """Extra patience with heartbeats: twice the longest wait, since an agent sends the next one after the answer to the
        last, so that both delays add up."""
        return 2 * min(self._longest_s, _MOST_S)
