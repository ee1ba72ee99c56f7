"""Effective training time: the published first order, the exact one, and the levers."""

from __future__ import annotations

import pytest

from sentinel.planning import ettr
from sentinel.planning.fleet import mtbf_from_node_days
from sentinel.planning.interval import young_s
from sentinel.planning.limits import OutOfRange, PlanningError


@pytest.mark.parametrize(
    ("rate", "save", "minutes", "ratio"),
    [(6.5, 300, 38.43, 0.7398), (6.5, 10, 7.02, 0.9205), (1.0, 300, 97.98, 0.8979)],
)
def test_first_order_reaches_the_vectors_at_12000_gpus(rate, save, minutes, ratio, simulate_one_tier) -> None:
    mtbf = mtbf_from_node_days(rate, 12000)
    interval = young_s(save, mtbf)
    assert interval / 60 == pytest.approx(minutes, abs=6e-3)
    assert ettr.ettr_first_order(mtbf, save, 300, interval) == pytest.approx(ratio, abs=6e-5)
    seen = simulate_one_tier(interval, save, mtbf, 300)
    assert ettr.ettr_first_order(mtbf, save, 300, interval) == pytest.approx(1 / seen.wall_per_work, rel=0.02)


def test_first_order_with_free_saves() -> None:
    assert ettr.ettr_first_order(mtbf_from_node_days(6.5, 2048), 0, 300, 3600) == pytest.approx(0.9596, abs=6e-5)
    assert ettr.ettr_first_order(mtbf_from_node_days(6.5, 8000), 0, 1200, 3600) == pytest.approx(0.7743, abs=6e-5)


@pytest.mark.parametrize(
    "run", [ettr.Run(11135, 90, 30, 60, 120, 60), ettr.Run(8861, 300, restart_s=300, interval_s=3600)]
)
def test_the_exact_ratio_agrees_with_simulation(run: ettr.Run, simulate_one_tier) -> None:
    seen = simulate_one_tier(run.chosen_interval_s, run.save_s, run.mtbf_s, run.downtime_s)
    assert ettr.ettr(run) == pytest.approx(1 / seen.wall_per_work, rel=0.02)
    assert 1 - ettr.ettr(run) == pytest.approx(1 - 1 / seen.wall_per_work, rel=0.02)


def test_first_order_is_refused_where_failures_lose_too_much() -> None:
    with pytest.raises(OutOfRange, match="does not hold"):
        ettr.ettr_first_order(3600, 60, 600, 1800)
    plan = ettr.plan_ettr(ettr.Run(3600, 60, restart_s=600, interval_s=1800))
    assert plan.first_order_fraction is None
    assert any("first order left out" in w for w in plan.warnings)


def test_levers_are_ranked_by_what_they_gain_alone() -> None:
    run = ettr.Run(11135, 90, detection_s=600, wait_s=300, restart_s=180, load_s=120, interval_s=3600)
    plan = ettr.plan_ettr(run)
    gains = [lever.gain_fraction for lever in plan.levers]
    assert gains == sorted(gains, reverse=True)
    assert {lever.name for lever in plan.levers} == {"detection", "restart", "spares", "storage", "interval"}
    assert plan.levers[0].name == "interval"
    by_name = {lever.name: lever for lever in plan.levers}
    fewer = ettr.Run(11135, 90, detection_s=300, wait_s=300, restart_s=180, load_s=120, interval_s=3600)
    assert by_name["detection"].ettr_fraction == pytest.approx(ettr.ettr(fewer))
    assert by_name["spares"].gain_fraction == pytest.approx(by_name["detection"].gain_fraction)  # 300 s either way
    assert plan.half_failures_ettr_fraction > plan.ettr_fraction


def test_an_interval_at_its_best_gains_nothing_more() -> None:
    plan = ettr.plan_ettr(ettr.Run(11135, 90, restart_s=300))
    interval = next(lever for lever in plan.levers if lever.name == "interval")
    assert interval.gain_fraction == 0 and interval.change == "is at its best"


def test_senseless_runs_are_refused() -> None:
    with pytest.raises(PlanningError, match="shorter than the save"):
        ettr.Run(11135, 90, interval_s=60)
    with pytest.raises(PlanningError, match="no best interval"):
        ettr.Run(11135, 0)
    with pytest.raises(OutOfRange, match="hardly any save"):
        ettr.Run(60, 90)
    with pytest.raises(PlanningError):
        ettr.Run(11135, 90, detection_s=-1)
