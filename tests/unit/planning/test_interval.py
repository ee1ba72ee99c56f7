"""One tier: the formulas against published numbers, the simulated process and each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.planning import interval
from sentinel.planning.limits import OutOfRange, PlanningError

# save, mtbf, restart; Young, Daly first order, Daly, exact argmin, Saxena's period, wall per work at Daly
CASES = [
    (90, 11135.1, 600, 1415.7, 1325.7, 1356.4, 1355, 1546.2, 1.20175),
    (10, 11135.1, 600, 471.9, 461.9, 465.3, 465, 494.6, 1.10138),
    (60, 175781.2, 300, 4592.8, 4532.8, 4552.9, 4555, 4657.1, 1.02834),
    (300, 6490.4, 300, 1973.4, 1673.4, 1778.4, 1780, 2340.6, 1.44266),
    (600, 3600, 300, 2078.5, 1478.5, 1697.7, 1700, 2845.0, 2.05856),
]


@pytest.mark.parametrize("case", CASES)
def test_formulas_reach_the_vectors(case: tuple[float, ...]) -> None:
    c, m, r, young, daly1, daly, argmin, saxena, wall = case
    assert interval.young_s(c, m) == pytest.approx(young, abs=0.06)
    assert interval.daly_first_s(c, m) == pytest.approx(daly1, abs=0.06)
    assert interval.daly_s(c, m) == pytest.approx(daly, abs=0.06)
    assert interval.optimum_s(c, m) == pytest.approx(argmin, abs=2.6)  # the vectors' argmin is from a grid of 5 s
    assert interval.saxena_period_s(c, m, r) == pytest.approx(saxena, abs=0.06)
    assert interval.wall_per_work(interval.daly_s(c, m), c, m, r) == pytest.approx(wall, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_expected_time_and_its_parts_agree_with_simulation(case, simulate_one_tier) -> None:
    c, m, r = case[:3]
    plan = interval.plan_interval(c, m, r)
    seen = simulate_one_tier(plan.interval_s, c, m, r)
    assert plan.wall_per_work == pytest.approx(seen.wall_per_work, rel=0.02)
    assert plan.overhead_fraction == pytest.approx(seen.overhead, rel=0.02)
    assert plan.save_overhead_fraction == pytest.approx(seen.save, rel=0.02)
    assert plan.restart_overhead_fraction == pytest.approx(seen.restart, rel=0.02)
    assert plan.lost_overhead_fraction == pytest.approx(seen.lost, rel=0.02)


def test_being_wrong_by_two_agrees_with_simulation(simulate_one_tier) -> None:
    plan = interval.plan_interval(90, 11135.1, 600)
    half = simulate_one_tier(plan.interval_s / 2, 90, 11135.1, 600)
    double = simulate_one_tier(plan.interval_s * 2, 90, 11135.1, 600)
    assert plan.half_overhead_fraction == pytest.approx(half.overhead, rel=0.02)
    assert plan.double_overhead_fraction == pytest.approx(double.overhead, rel=0.02)
    assert plan.half_overhead_fraction > plan.overhead_fraction < plan.double_overhead_fraction


@pytest.mark.parametrize(("c", "m", "r"), [(10, 11135.1, 60), (60, 175781.2, 300), (5, 30000, 0)])
def test_first_order_waste_agrees_with_simulation_inside_its_range(c, m, r, simulate_one_tier) -> None:
    t = interval.daly_s(c, m)
    seen = simulate_one_tier(t, c, m, r)
    useful = 1 - interval.first_order_waste(t, c, m, r)
    assert useful == pytest.approx(1 / seen.wall_per_work, rel=0.02)


def test_first_order_waste_is_refused_where_it_would_pass_one() -> None:
    with pytest.raises(OutOfRange, match="does not hold"):
        interval.first_order_waste(5000, 90, 2000, 600)
    assert interval.plan_interval(600, 3600, 3000).first_order_waste_fraction is None


@given(st.floats(1e-5, 0.79), st.floats(1, 1e8))
def test_the_exact_optimum_is_a_minimum(ratio: float, m: float) -> None:
    c = ratio * m
    best = interval.optimum_s(c, m)
    x = best / m
    assert math.log1p(-x) + x + ratio == pytest.approx(0, abs=1e-9)
    least = interval.wall_per_work(best, c, m)
    for factor in (0.8, 1.25):
        assert interval.wall_per_work(best * factor, c, m) > least


@given(st.floats(1e-6, 0.1), st.floats(1, 1e8))
def test_daly_is_close_to_the_exact_optimum(ratio: float, m: float) -> None:
    """Within 0.06 % of the expected time where the save is up to a tenth of the MTBF."""
    c = ratio * m
    at_daly = interval.wall_per_work(interval.daly_s(c, m), c, m)
    assert at_daly <= interval.wall_per_work(interval.optimum_s(c, m), c, m) * 1.0006


def test_daly_beyond_its_series_is_the_mtbf() -> None:
    assert interval.daly_s(7200, 3600) == 3600
    with pytest.raises(OutOfRange):
        interval.daly_first_s(7200, 3600)


@pytest.mark.parametrize("save", [60, 48, 1e6])
def test_a_save_as_long_as_the_failures_are_apart_is_refused(save: float) -> None:
    with pytest.raises(OutOfRange, match="shorter than the save") as caught:
        interval.plan_interval(save, 60)
    assert "save shorter than 6 s" in caught.value.fix


def test_an_interval_shorter_than_the_save_is_refused() -> None:
    with pytest.raises(PlanningError, match="shorter than the save"):
        interval.plan_interval(90, 11135, interval_s=60)
    assert interval.plan_interval(90, 11135, interval_s=90).interval_s == 90


def test_first_order_out_of_range_warns_and_says_by_how_much() -> None:
    plan = interval.plan_interval(600, 3600)
    assert any("leave their range (Young is 22 % too long)" in w for w in plan.warnings)
    assert interval.plan_interval(10, 11135).warnings == ()


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, -math.inf, True, "90"])
def test_senseless_quantities_are_refused(bad: float) -> None:
    for call in (
        lambda: interval.young_s(bad, 100),
        lambda: interval.young_s(1, bad),
        lambda: interval.daly_s(bad, 100),
        lambda: interval.optimum_s(1, bad),
        lambda: interval.wall_per_work(bad, 1, 100),
        lambda: interval.plan_interval(bad, 100),
    ):
        with pytest.raises(PlanningError):
            call()
    with pytest.raises(PlanningError):
        interval.wall_per_work(10, 1, 100, -1)


def test_no_run_outlasts_a_hundred_thousand_mtbfs() -> None:
    with pytest.raises(OutOfRange, match="no run gets"):
        interval.wall_per_work(1e6, 1, 10)


def test_the_curve_surrounds_the_optimum_and_leaves_out_the_impossible() -> None:
    rows = interval.curve(90, 11135, 600, 1356)
    assert len(rows) == 33
    assert min(rows, key=lambda row: row[1])[0] == pytest.approx(1356)
    assert rows[0][0] == pytest.approx(1356 / 8) and rows[-1][0] == pytest.approx(1356 * 8)
    assert len(interval.curve(1, 10, 0, 1000)) < 33
