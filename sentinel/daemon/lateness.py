"""How late the daemon itself is: while it is, the silence of nodes may be its own doing."""

from __future__ import annotations

_MOST_S = 10.0  # however late we are, silence is never excused for longer than twice this


class Lateness:
    """The longest wait of the last ``kept_s`` seconds. Times are monotonic seconds of the caller."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._longest_s = 0.0
        self._at_s = float("-inf")
        self._looked_s = float("inf")

    def waited(self, for_s: float, now_s: float) -> None:
        """Somebody waited ``for_s`` before we knew who it was."""
        if for_s >= self._longest_s or now_s - self._at_s > self._kept_s:
            self._longest_s, self._at_s = for_s, now_s

    def looked(self, now_s: float, every_s: float) -> None:
        """A look that is due ``every_s`` after the last one: what it is late by, everything else is late by too."""
        self.waited(max(0.0, now_s - self._looked_s - every_s), now_s)
        self._looked_s = now_s

    @property
    def excuse_s(self) -> float:
        """An agent's next heartbeat waits for the answer to the last: it may come late by both."""
        return 2 * min(self._longest_s, _MOST_S)
