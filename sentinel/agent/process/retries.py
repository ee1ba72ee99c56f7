"""Computes pauses between retries: they grow up to a limit and differ from node to node."""

from __future__ import annotations

import random

from sentinel.errors import StandingBy

FIRST_S = 0.2  # the first pause; it doubles
STANDBY_S = 1.0  # the longest while a daemon stands by: it becomes active within seconds


class Retries:
    """Counts failures in a row.

    Args:
        longest_s: upper limit of a pause before the random spread of +-50 %.
    """

    def __init__(self, longest_s: float) -> None:
        self.failures = 0
        self._longest_s = longest_s
        self._said = ""
        self._stands_by = False

    def succeeded(self) -> None:
        self.failures, self._said = 0, ""

    def failed(self, error: Exception) -> bool:
        """Count a failure. True when it differs from the last one and should be logged."""
        self.failures += 1
        self._stands_by = isinstance(error, StandingBy)
        new = str(error) != self._said
        self._said = str(error)
        return new

    def pause_s(self) -> float:
        grown: float = FIRST_S * 2.0 ** min(max(self.failures - 1, 0), 12)
        return min(self._longest_s, grown, STANDBY_S if self._stands_by else grown) * (0.5 + random.random())  # noqa: S311 - spread, not secret
