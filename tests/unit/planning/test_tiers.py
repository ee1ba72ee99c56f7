"""Two tiers: first order against the vectors, the exact expectation against the simulated process."""

from __future__ import annotations

import pytest

from sentinel.planning import tiers
from sentinel.planning.interval import wall_per_work
from sentinel.planning.limits import OutOfRange, PlanningError

M = 11135.1


def of(share: float) -> tiers.Tiers:
    return tiers.Tiers(10, 180, 120, 900, M, share)


@pytest.mark.parametrize(
    ("share", "n", "t1", "t2", "overhead", "bound", "apart1", "apart2", "simulated"),
    [
        (0.9, 10, 496.1, 4961.3, 0.10729, 0.10926, 497.4, 5169.5, 0.115),
        (0.7, 5, 569.1, 2845.7, 0.14801, 0.15143, 564.0, 2984.6, 0.1622),
    ],
)
def test_first_order_reaches_the_vectors(share, n, t1, t2, overhead, bound, apart1, apart2, simulated) -> None:
    plan = tiers.plan_two_level(of(share))
    assert plan.first_order_saves_per_global == n
    assert plan.first_order_local_interval_s == pytest.approx(t1, abs=0.06)
    assert plan.first_order_global_interval_s == pytest.approx(t2, abs=0.06)
    assert plan.first_order_overhead_fraction == pytest.approx(overhead, abs=1e-5)
    assert plan.independent_local_interval_s == pytest.approx(apart1, abs=0.06)
    assert plan.independent_global_interval_s == pytest.approx(apart2, abs=0.06)
    assert plan.overhead_fraction == pytest.approx(simulated, rel=0.02)  # a simulation that is not ours


@pytest.mark.parametrize(
    ("share", "n", "interval"), [(0.9, 10, 496.0), (0.7, 5, 569.0), (0.5, 1, 800.0), (0.99, 40, 300.0), (0.0, 3, 900.0)]
)
def test_exact_expectation_agrees_with_simulation(share, n, interval, simulate_two_tiers) -> None:
    exact = tiers.two_level_wall_per_work(of(share), n, interval)
    seen = simulate_two_tiers(interval, n, (10, 120), (180, 900), M, share)
    assert exact == pytest.approx(seen, rel=0.02)
    assert exact - 1 == pytest.approx(seen - 1, rel=0.02)


def test_long_restarts_that_are_struck_themselves_agree_with_simulation(simulate_two_tiers) -> None:
    harsh = tiers.Tiers(20, 600, 200, 2500, 4000, 0.8)
    exact = tiers.two_level_wall_per_work(harsh, 4, 400)
    assert exact == pytest.approx(simulate_two_tiers(400, 4, (20, 200), (600, 2500), 4000, 0.8), rel=0.02)


@pytest.mark.parametrize(("share", "n"), [(0.9, 10), (0.7, 5)])
def test_first_order_overhead_is_within_two_percent_of_the_clock(share, n, simulate_two_tiers) -> None:
    interval = tiers.first_order_interval_s(of(share), n)
    seen = simulate_two_tiers(interval, n, (10, 120), (180, 900), M, share)
    assert 1 + tiers.first_order_overhead(of(share), n, interval) == pytest.approx(seen, rel=0.02)
    assert 1 + tiers.first_order_overhead(of(share), n, interval) < seen


def test_one_stretch_without_local_failures_is_one_tier() -> None:
    exact = tiers.two_level_wall_per_work(of(0.0), 1, 1500)
    assert exact == pytest.approx(wall_per_work(1500, 120, M, 900), rel=1e-12)


def test_the_chosen_pattern_is_a_minimum() -> None:
    plan = tiers.plan_two_level(of(0.9))
    for n in (plan.saves_per_global - 1, plan.saves_per_global, plan.saves_per_global + 1):
        for factor in (0.9, 1.0, 1.1):
            cost = tiers.two_level_wall_per_work(of(0.9), n, plan.local_interval_s * factor) - 1
            assert cost >= plan.overhead_fraction - 1e-9
    assert plan.single_level_overhead_fraction == pytest.approx(0.2603, abs=1e-4)


def test_the_break_even_share_is_where_two_tiers_cost_as_much_as_one() -> None:
    least = tiers.break_even_local_share(tiers.Tiers(60, 900, 120, 900, M, 0.5))
    assert least is not None and 0.2 < least < 0.8
    below = tiers.plan_two_level(tiers.Tiers(60, 900, 120, 900, M, least + 0.05))
    assert below.saves_per_global >= 2 and below.overhead_fraction < below.single_level_overhead_fraction
    assert tiers.break_even_local_share(tiers.Tiers(119, 900, 120, 100, M, 0.5)) is None


def test_senseless_tiers_are_refused() -> None:
    with pytest.raises(PlanningError, match="not shorter than the global"):
        tiers.plan_two_level(tiers.Tiers(120, 10, 120, 900, M, 0.9))
    with pytest.raises(PlanningError, match="no failure can be repaired locally"):
        tiers.plan_two_level(of(0.0))
    with pytest.raises(PlanningError, match="local share"):
        of(1.1)
    with pytest.raises(PlanningError, match="global restart"):
        tiers.Tiers(10, 180, 120, -1, M, 0.9)
    with pytest.raises(OutOfRange):
        tiers.plan_two_level(tiers.Tiers(10, 180, 120, 900, 100, 0.9))
    with pytest.raises(OutOfRange, match="no run gets"):
        tiers.two_level_wall_per_work(of(0.5), 10, 1e8)


def test_what_no_fleet_keeps_up_is_said() -> None:
    plan = tiers.plan_two_level(of(1.0))
    assert any("locally repairable" in w for w in plan.warnings)


def test_first_order_out_of_its_range_is_said() -> None:
    harsh = tiers.plan_two_level(tiers.Tiers(20, 600, 200, 2500, 4000, 0.8))
    assert any("first order is out of its range" in w for w in harsh.warnings)
    assert not any("out of its range" in w for w in tiers.plan_two_level(of(0.9)).warnings)
