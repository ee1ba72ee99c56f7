"""What proves a drained node good again, by the cause for which it was drained: tests, reset or reboot, patience.

The rows come from ``[[return]]`` in ``rules/returns.toml`` and the site's files; ``returns_toml`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


_STRENGTH = (Remedial.NONE, Remedial.RESET, Remedial.REBOOT)


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

    def of_all(self, causes: Sequence[Cause]) -> ReturnRow:
        """What all of these causes ask for: every test, the strongest action of each round, the least patience."""
        rows = [self.of(cause) for cause in causes]
        if len(rows) == 1:
            return rows[0]
        rounds = range(max(len(row.actions) for row in rows))
        return ReturnRow(
            tests=tuple(sorted({level for row in rows for level in row.tests})),
            actions=tuple(max((row.action(failed) for row in rows), key=_STRENGTH.index) for failed in rounds),
            failures=min(row.failures for row in rows),
            source="; ".join(row.source for row in rows),
        )

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
