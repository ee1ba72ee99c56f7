"""Counters that age with their part: remapped rows, PCIe replays, corrected errors. In: one value a day; out: a trend.

One value says little; what counts is how fast it grows, how sure that is, and whether it grows faster than before. A counter
begins again at zero when its driver is loaded anew. Errors come in bursts, so that the interval is one of days, not of
errors: a thousand errors on one day are one bad day. A trend makes its node a suspect, with its reason; it drains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import sqrt

from sentinel.model.records import Cause

_Z = 1.645  # 90 % interval


@dataclass(frozen=True, slots=True)
class Counter:
    """What is known of one counter: from ``rules/signals/counters.toml``."""

    name: str
    words: str  # as a person calls it
    cause: Cause  # what it speaks for
    per_day: float  # growth from which on the part ages, where the whole interval lies above it
    least_days: int = 7  # days with values before anything is said
    limit: float | None = None  # a value at which the maker replaces the part, whatever the growth


@dataclass(frozen=True, slots=True)
class Value:
    """What one counter of one part said at one time."""

    at: datetime
    node: str
    unit: str  # "gpu3", "mlx5_0", "" for the node
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Trend:
    node: str
    unit: str
    name: str
    words: str
    cause: Cause
    value: float  # the newest
    days: float  # between the first value and the newest
    per_day: float
    low: float
    high: float
    faster: bool  # the newer half grew clearly faster than the older one
    suspect: bool
    reason: str  # why it is a suspect; "" otherwise


def trends(values: Iterable[Value], counters: Mapping[str, Counter]) -> list[Trend]:
    """Of each counter of each part that grew, suspects first, then by growth. Unknown counters have no trend."""
    series: dict[tuple[str, str, str], list[Value]] = {}
    for value in values:
        if value.name in counters:
            series.setdefault((value.node, value.unit, value.name), []).append(value)
    made = []
    for (_, _, name), points in series.items():
        points.sort(key=lambda point: point.at)
        trend = _trend(points, counters[name])
        if trend is not None:
            made.append(trend)
    made.sort(key=lambda trend: (not trend.suspect, trend.name, -trend.low, trend.node, trend.unit))
    return made


def _trend(points: Sequence[Value], counter: Counter) -> Trend | None:
    newest = points[-1]
    days = (newest.at - points[0].at).total_seconds() / 86400
    grown = [
        (later.value - earlier.value if later.value >= earlier.value else later.value, later.at)
        for earlier, later in pairwise(points)
    ]
    total = sum(amount for amount, _ in grown)
    at_limit = counter.limit is not None and newest.value >= counter.limit
    if (total <= 0 or days <= 0) and not at_limit:
        return None
    low, high = _interval([amount for amount, _ in grown], days)
    per_day = total / days if days > 0 else 0.0
    middle = points[0].at + (newest.at - points[0].at) / 2
    faster = _faster(
        [amount for amount, at in grown if at <= middle], [amount for amount, at in grown if at > middle], days / 2
    )
    known = len(points) > 1 and days >= counter.least_days
    grows = known and low > counter.per_day
    quickens = known and faster and per_day > counter.per_day
    part = f"{counter.words} of {newest.unit}" if newest.unit else counter.words
    reason = ""
    if at_limit:
        reason = f"{part}: {newest.value:g}, and at {counter.limit:g} it is replaced"
    elif grows or quickens:
        reason = f"{part}: {per_day:.2g} a day ({low:.2g} to {high:.2g}), more than {counter.per_day:g}"
        reason += "; faster than before" if faster else ""
    return Trend(
        node=newest.node,
        unit=newest.unit,
        name=counter.name,
        words=counter.words,
        cause=counter.cause,
        value=newest.value,
        days=days,
        per_day=per_day,
        low=low,
        high=high,
        faster=faster,
        suspect=bool(reason),
        reason=reason,
    )


def _interval(amounts: Sequence[float], days: float) -> tuple[float, float]:
    """90 % interval of the growth a day. The spread of the daily amounts widens it beyond that of single events."""
    if days <= 0:
        return 0.0, float("inf")
    total = sum(amounts)
    spread = sqrt(max(total, _variance(amounts) * len(amounts)))
    return max(0.0, total - _Z * spread) / days, (total + _Z * max(spread, 1.0)) / days


def _variance(amounts: Sequence[float]) -> float:
    if len(amounts) < 2:
        return amounts[0] ** 2 if amounts else 0.0
    mean = sum(amounts) / len(amounts)
    return sum((amount - mean) ** 2 for amount in amounts) / (len(amounts) - 1)


def _faster(older: Sequence[float], newer: Sequence[float], days: float) -> bool:
    """Whether the newer half grew at least twice as fast, and by more than the spread of both explains."""
    if not newer or days <= 0:  # an empty older half: the counter stood still
        return False
    spread = sqrt(max(sum(older), _variance(older) * len(older)) + max(sum(newer), _variance(newer) * len(newer), 1.0))
    return sum(newer) >= 2 * sum(older) and sum(newer) - sum(older) > _Z * spread
