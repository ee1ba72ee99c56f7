"""Counters that age, as agents tell them: one value a day is kept, and read again as trends.

Most are zero on most parts. A zero is not kept: a row for each source and day says that it was told, so that a counter
without a row was zero then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import inf, isfinite
from typing import Any

from sentinel.adapters.store import Store
from sentinel.classify.ageing import Counter, Trend, Value, trends
from sentinel.classify.history import WINDOW
from sentinel.model import Evidence, Kind

TOLD = "told by "
_MOST_UNIT, _MOST_NAME = 64, 48  # characters; what the store's columns hold
_MOST = 2000  # counters of one node that are taken


def counter_rows(items: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Rows of the store of evidence of kind ``counters``; what is no counter is left out."""
    return [row for item in items if item.kind == Kind.COUNTERS for row in _rows(item)]


def _rows(item: Evidence) -> Iterator[dict[str, Any]]:
    node = item.where.node
    if node is None:
        return
    yield {"node": node, "unit": "", "name": f"{TOLD}{item.source}", "at": item.at, "value": 1.0}
    for key, value in list(item.data.items())[:_MOST]:
        unit, _, name = key.rpartition("/")
        fits = name and len(unit) <= _MOST_UNIT and len(name) <= _MOST_NAME and not name.startswith(TOLD)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0
        if fits and number:
            yield {"node": node, "unit": unit, "name": name, "at": item.at, "value": float(value or 0)}


def read_trends(store: Store, counters: Mapping[str, Counter], now: datetime) -> list[Trend]:
    """Blocking."""
    if not counters:
        return []
    since = now - WINDOW
    limits = [counter.limit for counter in counters.values() if counter.limit is not None]
    rows = store.counters(since, least=min(limits, default=inf))  # most stand still
    return trends(_values(rows, store.counters_told(since, TOLD)), counters)


def _values(rows: Iterable[Mapping[str, Any]], told: Mapping[str, datetime]) -> Iterator[Value]:
    """In order of time. A counter whose node was told of before its first row was zero then."""
    begun: set[tuple[str, str, str]] = set()
    for row in rows:
        node, unit, name, at = row["node"], row["unit"], row["name"], row["at"]
        if name.startswith(TOLD):
            continue
        if (node, unit, name) not in begun:
            begun.add((node, unit, name))
            if node in told and told[node] < at:
                yield Value(told[node], node, unit, name, 0.0)
        yield Value(at, node, unit, name, row["value"])
