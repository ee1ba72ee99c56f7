"""Spare nodes against a simulated pool."""

from __future__ import annotations

import pytest

from sentinel.planning import spares
from sentinel.planning.limits import OutOfRange, PlanningError

RATE = 1 / 10986.3  # 2,048 nodes at 6,250 h
DAY = 86400.0


@pytest.mark.parametrize("pool", [6, 10, 14])
def test_waiting_agrees_with_simulation(pool, simulate_spares) -> None:
    waits = simulate_spares(pool, RATE, lambda dice: DAY)
    count = len(waits)
    at_once = sum(w == 0 for w in waits) / count
    assert spares.no_wait_probability(pool, RATE * DAY) == pytest.approx(at_once, rel=0.02)
    soon = sum(w <= 3 * 3600 for w in waits) / count
    assert spares.within_wait_probability(pool, RATE, DAY, 3 * 3600) == pytest.approx(soon, rel=0.02)


@pytest.mark.parametrize("pool", [4, 6, 9])
def test_the_mean_wait_holds_for_any_repair_times(pool, simulate_spares) -> None:
    expected = spares.mean_wait_s(pool, RATE, DAY)
    fixed = simulate_spares(pool, RATE, lambda dice: DAY)
    drawn = simulate_spares(pool, RATE, lambda dice: dice.expovariate(1 / DAY))
    assert expected == pytest.approx(sum(fixed) / len(fixed), rel=0.02)
    assert expected == pytest.approx(sum(drawn) / len(drawn), rel=0.03)


def test_without_spares_every_failure_waits_for_its_repair() -> None:
    assert spares.mean_wait_s(0, RATE, DAY) == pytest.approx(DAY)
    assert spares.no_wait_probability(0, 8.0) == 0
    assert spares.within_wait_probability(0, RATE, DAY, DAY - 1) == 0
    assert spares.within_wait_probability(0, RATE, DAY, DAY) == 1


def test_the_far_tail_of_the_mean_wait_keeps_its_precision() -> None:
    assert 0 < spares.mean_wait_s(40, RATE, DAY) < spares.mean_wait_s(39, RATE, DAY) < 1e-6


def test_the_plan_is_the_least_number_that_does() -> None:
    plan = spares.plan_spares(RATE, DAY, 600, 0.99, 2048)
    assert plan.spares == 16
    assert (
        spares.within_wait_probability(16, RATE, DAY, 600) >= 0.99 > spares.within_wait_probability(15, RATE, DAY, 600)
    )
    assert plan.in_repair_mean == pytest.approx(7.864, abs=1e-3)
    assert [p.spares for p in plan.pools] == list(range(13, 20))


def test_waiting_as_long_as_the_repair_needs_no_spare() -> None:
    plan = spares.plan_spares(RATE, 3600, 3600, 0.99, 2048)
    assert plan.spares == 0
    assert any("without any spare" in w for w in plan.warnings)


def test_a_fleet_that_is_half_in_repair_is_refused() -> None:
    with pytest.raises(OutOfRange, match="in repair at any time"):
        spares.plan_spares(1 / 100, DAY, 600, 0.99, 1000)
    with pytest.raises(PlanningError):
        spares.plan_spares(RATE, DAY, 600, 1.0, 2048)
    with pytest.raises(PlanningError):
        spares.plan_spares(0, DAY, 600, 0.9, 2048)


def test_many_spares_are_warned_about() -> None:
    assert any("more than a tenth" in w for w in spares.plan_spares(1 / 3600, DAY, 60, 0.99, 100).warnings)
