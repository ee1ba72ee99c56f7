"""The daemon's own host: while the daemon is late, nodes may seem silent; while its clock is off, theirs seem wrong."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from datetime import datetime, timedelta

_MOST_S = 10.0  # silence of nodes is excused for at most twice this, however late the daemon is
MOST_SKEW_S = 1.0  # evidence of several hosts is put in order by their clocks
_FEWEST = 3  # nodes: of two clocks that differ nobody knows which one is right


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


def ahead_s(offsets_s: Collection[float]) -> float | None:
    """How far this host's clock is ahead of its nodes' clocks (negative: behind). 0.0: it is right; None: not known.

    Args:
        offsets_s: of each node heard, its clock minus this host's.
    """
    if len(offsets_s) < _FEWEST:
        return None
    usual_s = statistics.median(offsets_s)
    alike = sum(abs(offset_s - usual_s) <= MOST_SKEW_S for offset_s in offsets_s)
    if 2 * alike <= len(offsets_s):
        return None
    return round(-usual_s, 1) if abs(usual_s) > MOST_SKEW_S else 0.0


def of_own_clock(slurm_time: datetime, ahead_s: float | None) -> datetime:
    """A time of slurmctld's, whose clock is taken to go with its nodes', by this host's clock. ``ahead_s`` as above."""
    return slurm_time + timedelta(seconds=ahead_s or 0.0)


def in_words(ahead_s: float) -> str:
    """``300.0 s ahead of``, to stand before whose clocks."""
    return f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'}"
