"""Limits evidence of one rule and unit per log, so that a hostile log cannot fill the memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sentinel.model.records import Scalar, Trust, Where

LIMIT = 6  # evidences kept per rule and unit; further ones are counted, and of them the last one is kept
UNIT_LIMIT = 2048  # rules times units kept


class Limits:
    """How many evidences of one rule and unit are kept, and how many units.

    By trust: what users wrote into a machine's own log must not use up the limits of what the machine says.
    """

    def __init__(self) -> None:
        self._kept: dict[Trust, dict[tuple[str | None, object], int]] = defaultdict(dict)

    def takes(self, trust: Trust, rule: str | None, where: Where, data: Mapping[str, Scalar]) -> bool | None:
        """Whether one more is kept; counts it. None where the unit has enough: of these the last one counts."""
        of = data.get("pci"), data.get("xid"), data.get("peer"), data.get("comm")
        unit = (rule, (where.node, where.rank, where.gpu, *of))
        kept = self._kept[trust]
        seen = kept.get(unit, 0)
        if seen >= LIMIT:
            return None
        if not seen and len(kept) >= UNIT_LIMIT:
            return False
        kept[unit] = seen + 1
        return True

    def clear(self) -> None:
        self._kept.clear()
