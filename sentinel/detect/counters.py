"""Turns agents' hardware counters into rows of the store, which keeps one value a day for ageing trends.

Most counters are zero on most parts. Zeros are not stored: one row per source and day says that it reported, so that a
counter without a row was zero then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from sentinel.model.records import Evidence, Kind

TOLD = "told by "
_MOST_UNIT, _MOST_NAME = 64, 48  # characters: widths of the store's columns
_MOST = 2000  # counters taken from one item of evidence


def counter_rows(items: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Rows for the store from evidence of kind ``counters``; malformed counters are skipped."""
    return [row for item in items if item.kind == Kind.COUNTERS for row in _rows(item)]


def _rows(item: Evidence) -> Iterator[dict[str, Any]]:
    node = item.where.node
    if node is None:
        return
    at = min(item.at, item.seen_at)  # a node's clock may be years ahead: what it told then would be kept for as long
    yield {"node": node, "unit": "", "name": f"{TOLD}{item.source}", "at": at, "value": 1.0}
    for key, value in list(item.data.items())[:_MOST]:
        unit, _, name = key.rpartition("/")
        fits = name and len(unit) <= _MOST_UNIT and len(name) <= _MOST_NAME and not name.startswith(TOLD)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0
        if fits and number:
            yield {"node": node, "unit": unit, "name": name, "at": at, "value": float(value or 0)}
