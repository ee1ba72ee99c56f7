"""Recommendations for a running job, and the arithmetic of one recovery."""

from __future__ import annotations

import pytest

from sentinel.planning.advice import recommend
from sentinel.planning.limits import PlanningError
from sentinel.planning.recovery import restart_cost, waiting_for_checkpoint, waiting_for_nodes


def test_a_job_that_saves_too_rarely_is_told_what_it_would_gain() -> None:
    found = recommend(save_s=90, mtbf_s=11135, restart_s=600, interval_s=3600)
    assert found.verdict == "save_more_often"
    assert found.interval_s == pytest.approx(1356.4, abs=0.1)
    assert found.gain_fraction == pytest.approx(0.0522, abs=5e-4)
    assert "every 22.6 min instead of every 60 min" in found.reason
    assert found.warnings == ()


def test_a_job_that_saves_too_often() -> None:
    found = recommend(save_s=90, mtbf_s=11135, restart_s=600, interval_s=300)
    assert found.verdict == "save_less_often"
    assert found.overlap is not None and not found.overlap.within


def test_a_small_gain_is_not_worth_a_word() -> None:
    assert recommend(save_s=90, mtbf_s=11135, restart_s=600, interval_s=1600).verdict == "keep"
    far = recommend(save_s=90, mtbf_s=11135, mtbf_low_s=3000, mtbf_high_s=90000, restart_s=600, interval_s=3600)
    assert far.verdict == "keep"  # within what the few failures leave open


def test_without_a_measured_interval_the_best_is_stated() -> None:
    found = recommend(save_s=90, mtbf_s=11135, restart_s=600)
    assert found.verdict == "set" and found.gain_fraction is None


def test_what_was_not_measured_is_named() -> None:
    assert "no save" in recommend(save_s=None, mtbf_s=11135).reason
    assert "no failure rate" in recommend(save_s=90, mtbf_s=None).reason
    bound = recommend(save_s=90, mtbf_s=None, mtbf_low_s=11135)
    assert bound.verdict == "unknown" and bound.low_interval_s == pytest.approx(1356.4, abs=0.1)
    assert any("restart was not measured" in w for w in recommend(save_s=90, mtbf_s=11135).warnings)


def test_a_drain_holds_the_interval_up() -> None:
    found = recommend(save_s=5, mtbf_s=11135, restart_s=60, drain_s=900)
    assert found.interval_s == 895
    assert any("faster" in w for w in found.warnings)
    judged = recommend(save_s=5, mtbf_s=11135, restart_s=60, drain_s=90, interval_s=600)
    assert judged.overlap is not None and not judged.overlap.blocking
    assert judged.overlap.overlap_fraction == pytest.approx(90 / 605)


def test_measurements_that_do_not_fit_are_unknown_and_no_crash() -> None:
    assert recommend(save_s=90, mtbf_s=60).verdict == "unknown"
    assert recommend(save_s=-1, mtbf_s=60).verdict == "unknown"
    piled = recommend(save_s=5, mtbf_s=11135, drain_s=900, interval_s=60)
    assert piled.verdict == "unknown" and "pile up" in piled.reason
    lost = recommend(save_s=5, mtbf_s=60, restart_s=5, interval_s=1e6)
    assert lost.verdict == "save_more_often"


def test_what_a_restart_costs() -> None:
    near = restart_cost(40, 5, 30)
    far = restart_cost(400, 5, 28.35)
    assert near.total_s == 230 and far.total_s == pytest.approx(2028.35)
    verdict = waiting_for_checkpoint(restart_cost(40, 5, 30, wait_s=600), far)
    assert verdict.pays and verdict.gain_s == pytest.approx(1198.35)
    assert verdict.longest_wait_s == pytest.approx(1798.35)
    late = waiting_for_checkpoint(restart_cost(40, 5, 30, wait_s=2000), far)
    assert not late.pays and "costs 202 s" in late.reason
    assert restart_cost(0, 5, 10, validate_s=5).restore_s == 15
    with pytest.raises(PlanningError):
        restart_cost(-1, 5, 30)


@pytest.mark.parametrize("wait", [60, 600, 3600])
def test_waiting_for_nodes_agrees_with_counting_seconds(wait: int) -> None:
    until, restart, speed = 3600, 120, 0.9
    waiting = sum(1.0 for second in range(until) if second >= wait)
    small = sum(speed for _ in range(until)) - restart
    found = waiting_for_nodes(wait, speed, reduced_s=until, restart_s=restart)
    assert found.gain_s == pytest.approx(waiting - small)
    assert found.pays is (waiting > small)
