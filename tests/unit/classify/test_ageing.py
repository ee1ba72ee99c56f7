"""Trends of counters that age: growth with an interval, faster growth, limits, restarts at zero; noise is no trend."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.classify.ageing import Counter, Trend, Value, trends
from sentinel.model.records import Cause

AT = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = Counter("remapped_rows", "remapped rows", Cause.GPU_MEMORY_ECC, per_day=0.1, least_days=7, limit=64)


def one(values: Sequence[float], counter: Counter = ROWS, *, every_days: float = 1.0) -> Trend | None:
    points = [
        Value(AT + timedelta(days=every_days * day), "n1", "gpu3", counter.name, value)
        for day, value in enumerate(values)
    ]
    found = trends(points, {counter.name: counter})
    return found[0] if found else None


def test_counter_that_stands_still_has_no_trend() -> None:
    assert one([7.0] * 30) is None and one([0.0] * 30) is None and one([]) is None and one([5.0]) is None


def test_steady_growth_makes_a_suspect_with_its_reason() -> None:
    trend = one([float(day // 2) for day in range(30)])
    assert trend is not None and trend.suspect and not trend.faster
    assert trend.low < trend.per_day < trend.high and 0.4 < trend.per_day < 0.6 and trend.low > ROWS.per_day
    assert trend.reason.startswith("remapped rows of gpu3: 0.48 a day (") and "more than 0.1" in trend.reason


def test_one_remapped_row_is_no_trend() -> None:
    trend = one([0.0] * 15 + [1.0] * 15)
    assert trend is not None and not trend.suspect and trend.low == 0.0 and trend.reason == ""


def test_few_days_say_nothing() -> None:
    trend = one([0.0, 3.0, 6.0, 9.0])
    assert trend is not None and not trend.suspect


def test_thousand_errors_on_one_day_are_one_bad_day() -> None:
    errors = Counter("corrected_errors", "corrected errors", Cause.GPU_MEMORY_ECC, per_day=5.0)
    burst = one([0.0] * 20 + [1000.0] * 10, errors)
    steady = one([40.0 * day for day in range(30)], errors)
    assert burst is not None and steady is not None
    assert not burst.suspect and burst.low == 0.0
    assert steady.suspect and steady.low > 30.0


def test_growth_that_quickens_is_seen() -> None:
    quick = one([0.0] * 15 + [float(day) for day in range(1, 16)])
    assert quick is not None and quick.faster and quick.suspect and "faster than before" in quick.reason
    even = one([float(day) for day in range(30)])
    assert even is not None and not even.faster


def test_counter_begins_again_when_the_driver_is_loaded_anew() -> None:
    trend = one([10.0, 11.0, 12.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert trend is not None and abs(trend.per_day * trend.days - 8.0) < 1e-9


def test_limit_of_the_maker_counts_whatever_the_growth() -> None:
    trend = one([64.0])
    assert trend is not None and trend.suspect and "64" in trend.reason and "replaced" in trend.reason


def test_unknown_counters_have_no_trend_and_suspects_come_first() -> None:
    def values(node: str, name: str, step: float) -> list[Value]:
        return [Value(AT + timedelta(days=day), node, "gpu0", name, step * day) for day in range(20)]

    found = trends([*values("n1", "remapped_rows", 0.01), *values("n2", "remapped_rows", 2.0), *values("n3", "other", 9.0)],
                   {ROWS.name: ROWS})  # fmt: skip
    assert [(trend.node, trend.suspect) for trend in found] == [("n2", True), ("n1", False)]


@pytest.mark.parametrize("rate", [0.02, 0.05])
def test_healthy_parts_are_seldom_suspects(rate: float) -> None:
    """Poisson growth below the threshold: at most one part in twenty may cross it by chance."""
    rng = random.Random(3)
    suspects = 0
    for _ in range(400):
        value, series = 0.0, []
        for _ in range(30):
            value += sum(rng.random() < rate / 10 for _ in range(10))
            series.append(value)
        trend = one(series)
        suspects += trend is not None and trend.suspect
    assert suspects <= 20


@given(st.lists(st.floats(0, 1e9), min_size=0, max_size=40))
def test_any_series_gives_an_interval_around_its_rate(values: list[float]) -> None:
    trend = one(values)
    if trend is not None:
        assert 0.0 <= trend.low <= trend.per_day <= trend.high or trend.days == 0
