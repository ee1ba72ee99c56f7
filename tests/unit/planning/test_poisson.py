"""The Poisson distribution and the exact interval of its mean."""

from __future__ import annotations

import math
import random

import pytest

from sentinel.planning import poisson
from sentinel.planning.limits import PlanningError


@pytest.mark.parametrize("mean", [0.3, 5.0, 60.0, 424.7])
def test_at_most_is_the_sum_of_the_terms(mean: float) -> None:
    total = 0.0
    for count in range(int(mean + 8 * math.sqrt(mean)) + 5):
        total += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        assert poisson.at_most(count, mean) == pytest.approx(total, abs=1e-10)
        assert poisson.pmf(count, mean) == pytest.approx(total - (poisson.at_most(count - 1, mean)), abs=1e-10)


def test_the_ends_of_the_distribution() -> None:
    assert poisson.at_most(-1, 3) == 0
    assert poisson.at_most(0, 0) == 1
    assert poisson.pmf(0, 0) == 1 and poisson.pmf(1, 0) == 0


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Garwood's table, 95 %
    [
        (0, 0.0, 3.689),
        (1, 0.0253, 5.572),
        (2, 0.242, 7.225),
        (10, 4.795, 18.39),
        (50, 37.11, 65.92),
        (100, 81.36, 121.63),
    ],
)
def test_the_interval_is_garwoods(count: int, low: float, high: float) -> None:
    found = poisson.mean_interval(count)
    assert found == pytest.approx((low, high), abs=0.006)


def test_the_interval_covers_the_mean_at_least_as_often_as_it_says() -> None:
    intervals = [poisson.mean_interval(k) for k in range(60)]
    for tenth in range(5, 200):
        mean = tenth / 10
        covered = sum(poisson.pmf(k, mean) for k, (low, high) in enumerate(intervals) if low <= mean <= high)
        assert covered >= 0.95 - 1e-9


def test_the_interval_covers_the_rate_of_simulated_failures() -> None:
    dice = random.Random(5)
    covered = 0
    for _ in range(2000):
        count, clock = 0, dice.expovariate(1.0)
        while clock < 12:
            count += 1
            clock += dice.expovariate(1.0)
        low, high = poisson.mean_interval(count)
        covered += low <= 12 <= high
    assert 0.945 <= covered / 2000 <= 0.99


@pytest.mark.parametrize("count", [10**5, 10**7, 10**9])
def test_large_counts_approach_the_normal_interval(count: int) -> None:
    low, high = poisson.mean_interval(count)
    assert (count - low) / math.sqrt(count) == pytest.approx(1.96, rel=0.01)
    assert (high - count) / math.sqrt(count) == pytest.approx(1.96, rel=0.01)


def test_the_range_of_a_count() -> None:
    low, high = poisson.count_interval(424.7)
    assert (low, high) == (385, 466)
    assert poisson.at_most(low - 1, 424.7) < 0.025 <= poisson.at_most(low, 424.7)
    assert poisson.at_most(high - 1, 424.7) < 0.975 <= poisson.at_most(high, 424.7)
    assert poisson.count_interval(0) == (0, 0)


def test_senseless_questions_are_refused() -> None:
    for call in (
        lambda: poisson.mean_interval(-1),
        lambda: poisson.mean_interval(3, 1.0),
        lambda: poisson.mean_interval(3, 0.0),
        lambda: poisson.count_interval(-2.0),
        lambda: poisson.at_most(3, math.nan),
    ):
        with pytest.raises(PlanningError):
            call()


def test_two_counts_of_one_rate() -> None:
    assert poisson.same_rate_probability(0, 1.0, 5, 1.0) == pytest.approx(2 * 0.5**5)
    assert poisson.same_rate_probability(3, 2.0, 0, 1.0) == pytest.approx(2 * (2 / 3) ** 3)
    assert poisson.same_rate_probability(4, 1.0, 4, 1.0) == 1.0 and poisson.same_rate_probability(0, 1.0, 0, 9.0) == 1.0
    assert poisson.same_rate_probability(300, 1.0, 200, 1.0) < 1e-4 < poisson.same_rate_probability(300, 3.0, 200, 2.0)
