"""What proves a drained node good again, by the cause for which it was drained: tests, reset or reboot, patience.

The rows come from ``[[return]]`` in ``rules/returns.toml`` and the site's files; ``returns_toml`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.model.records import Cause

OTHER = "other"  # the row of every cause that has none
DEEPEST = 4  # level of DCGM's diagnostic


class Remedial(StrEnum):
    """An action on a node before its tests: nothing, a reset, or a reboot."""

    NONE = "none"
    RESET = "reset"  # of its GPUs
    REBOOT = "reboot"


@dataclass(frozen=True, slots=True)
class ReturnRow:
    """What one cause asks for.

    Attributes:
        tests: levels of the diagnostic, each of which must pass on all GPUs, in this order.
        actions: what is done before the tests: the first before the first round of tests, the second after a failure, ...;
            the last one repeats.
        failures: after so many within ``returns.within_s`` the node waits for repair.
    """

    tests: tuple[int, ...] = (1, 2, 3)
    actions: tuple[Remedial, ...] = ()
    failures: int = 2
    source: str = ""

    def action(self, failed: int) -> Remedial:
        """What this round of tests begins with, after ``failed`` failures."""
        return self.actions[min(failed, len(self.actions) - 1)] if self.actions else Remedial.NONE


@dataclass(frozen=True, slots=True)
class Returns:
    rows: Mapping[str, ReturnRow] = field(default_factory=dict, hash=False)  # by cause, or "other"

    def of(self, cause: Cause | None) -> ReturnRow:
        """The row of the cause; None: it is not known."""
        return self.rows.get(cause or OTHER) or self.rows.get(OTHER) or ReturnRow()

    def proving_level(self, cause: Cause | None, failed: int = 0) -> int:
        """The least level of the diagnostic whose pass on all GPUs disproves what was found: a lower one leaves tests out.

        Args:
            failed: the level that found it, if a diagnostic did and its level is known; else that of the cause counts.
        """
        return failed or self.of(cause).tests[-1]


def level_told(value: object) -> int:
    """The level of a diagnostic as an answer, evidence or a file tells it; 0 where that is none."""
    known = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= DEEPEST
    return value if known and isinstance(value, int) else 0
