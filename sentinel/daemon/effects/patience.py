"""For how long steps have been tried in vain, so that a restart goes on in the end without what does not answer."""

from __future__ import annotations

from collections.abc import Callable

_REMEMBERED = 4096  # steps: more than are tried at once; a plan that was dropped under way leaves its own behind


class Patience:
    """``seconds``: a monotonic clock."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failed_s: dict[str, float] = {}  # step's key in the ledger -> time of its first failure

    def lasts(self, step: str, for_s: float) -> bool:
        """Note that a try of ``step`` failed; whether its first one did so less than ``for_s`` ago.

        If not, it is given up, and forgotten.
        """
        now_s = self._seconds()
        if now_s - self._failed_s.setdefault(step, now_s) >= for_s:
            self.ended(step)
            return False
        while len(self._failed_s) > _REMEMBERED:
            del self._failed_s[next(iter(self._failed_s))]
        return True

    def ended(self, step: str) -> None:
        """Forget the failures of a step that is done, or has failed for good."""
        self._failed_s.pop(step, None)
