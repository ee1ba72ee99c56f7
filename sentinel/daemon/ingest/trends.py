"""Reads the daily values of hardware counters from the store and computes their ageing trends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import inf
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.classify.ageing import Counter, Trend, Value, trends
from sentinel.classify.history import WINDOW
from sentinel.detect.counters import TOLD


def read_trends(store: Store, counters: Mapping[str, Counter], now: datetime) -> list[Trend]:
    """The trends of all counters over the last month. Blocks: reads the store."""
    if not counters:
        return []
    since = now - WINDOW
    limits = [counter.limit for counter in counters.values() if counter.limit is not None]
    rows = store.counters(since, least=min(limits, default=inf))  # most counters never change
    return trends(_values(rows, store.counters_told(since, TOLD)), counters)


def _values(rows: Iterable[Mapping[str, Any]], told: Mapping[str, datetime]) -> Iterator[Value]:
    """Counter values in order of time, with a leading zero where the node reported before the counter's first row.

    Zeros are not stored (see ``sentinel.detect.counters``).
    """
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
