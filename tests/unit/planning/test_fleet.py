"""Fleets: published figures, superposition, interruptions, saves between failures and the rule of twenty."""

from __future__ import annotations

import random

import pytest

from sentinel.planning import fleet
from sentinel.planning.limits import OutOfRange, PlanningError

HOUR = 3600.0


@pytest.mark.parametrize(
    ("gpus", "hours"), [(8, 6250.0), (1024, 48.828), (8192, 6.104), (16384, 3.052), (100_000, 0.5)]
)
def test_mtbf_of_a_fleet_at_50000_h_a_gpu(gpus: int, hours: float) -> None:
    assert fleet.fleet_mtbf_s(50_000 * HOUR, gpus) / HOUR == pytest.approx(hours, abs=6e-4)


def test_superposition_agrees_with_simulation() -> None:
    dice = random.Random(17)
    gaps = [min(dice.expovariate(1 / 1000.0) for _ in range(16)) for _ in range(20_000)]
    assert fleet.fleet_mtbf_s(1000.0, 16) == pytest.approx(sum(gaps) / len(gaps), rel=0.02)


def test_rates_per_node_day() -> None:
    assert fleet.failures_per_1000_node_days(11135.1, 16384) == pytest.approx(3.789, abs=1e-3)
    for gpus, hours in ((8, 3692.308), (1024, 28.846), (4096, 7.212), (16384, 1.803), (131072, 0.225)):
        assert fleet.mtbf_from_node_days(6.5, gpus) / HOUR == pytest.approx(hours, abs=6e-4)
    assert fleet.failures_per_1000_node_days(fleet.mtbf_from_node_days(2.34, 4096), 4096) == pytest.approx(2.34)


def test_interruptions_of_a_run_agree_with_simulation() -> None:
    mtbf, run = 10986.3, 54 * 86400.0
    found = fleet.interruptions(mtbf, run, fleet.PUBLISHED_CAUSES)
    assert found.expected == pytest.approx(424.7, abs=0.05)
    dice = random.Random(19)
    counts = []
    for _ in range(300):
        clock, count = dice.expovariate(1 / mtbf), 0
        while clock < run:
            count += 1
            clock += dice.expovariate(1 / mtbf)
        counts.append(count)
    assert found.expected == pytest.approx(sum(counts) / 300, rel=0.02)
    assert 0.92 <= sum(found.low <= c <= found.high for c in counts) / 300 <= 1
    assert sum(n for _, _, n in found.by_cause) == pytest.approx(found.expected)


def test_published_causes_sum_to_419() -> None:
    assert sum(count for _, count in fleet.PUBLISHED_CAUSES) == 419
    assert dict(fleet.PUBLISHED_CAUSES)["faulty GPU"] == 148


@pytest.mark.parametrize(("n", "c", "r"), [(20, 10, 60), (8, 90, 600), (40, 10, 0), (20, 0, 0), (10, 0, 0)])
def test_goodput_agrees_with_simulation(n, c, r, simulate_one_tier) -> None:
    m = 11135.1
    seen = simulate_one_tier(m / n - c, c, m, r)
    assert fleet.goodput_at(n, c, m, r) == pytest.approx(1 / seen.wall_per_work, rel=0.02)
    assert 1 - fleet.goodput_at(n, c, m, r) == pytest.approx(1 - 1 / seen.wall_per_work, rel=0.02)


def test_twenty_for_95_percent_is_folklore() -> None:
    free = fleet.checkpoints_for_goodput(0.95, 0.0, 11135.1)
    assert free.at_20_free_goodput_fraction == pytest.approx(0.9752, abs=1e-4)
    assert free.least == pytest.approx(9.83, abs=0.01)
    assert free.most is None and free.best is None
    assert "10 already 95.1 %" in free.folklore
    cheap = fleet.checkpoints_for_goodput(0.95, 10, 11135.1, 60)
    assert cheap.least is not None and cheap.most is not None and cheap.best is not None
    assert cheap.least < cheap.best < cheap.most
    for n in (cheap.least, cheap.most):
        assert fleet.goodput_at(n, 10, 11135.1, 60) == pytest.approx(0.95, abs=1e-6)
    assert fleet.goodput_at(cheap.best, 10, 11135.1, 60) == pytest.approx(cheap.best_goodput_fraction)
    dear = fleet.checkpoints_for_goodput(0.95, 90, 11135.1, 600)
    assert dear.least is None and dear.best_goodput_fraction == pytest.approx(0.832, abs=1e-3)
    assert dear.save_limit_s is None  # exp(-600/11135) is below 0.95
    assert "no number gives 95 %" in dear.folklore


def test_the_longest_save_for_a_wish_just_reaches_it() -> None:
    found = fleet.checkpoints_for_goodput(0.95, 90, 11135.1, 60)
    assert found.least is None and found.save_limit_s is not None
    at_limit = fleet.checkpoints_for_goodput(0.95, found.save_limit_s, 11135.1, 60)
    assert at_limit.best_goodput_fraction == pytest.approx(0.95, abs=1e-6)


def test_twenty_saves_that_do_not_fit_are_said_so() -> None:
    found = fleet.checkpoints_for_goodput(0.5, 600, 7200)
    assert found.at_20_goodput_fraction is None
    assert "do not even fit" in found.folklore


def test_saves_a_day_at_a_twentieth_of_124_min() -> None:
    often = fleet.interval_for_checkpoints(20, 124 * 60)
    assert often == pytest.approx(6.2 * 60)
    assert 86400 / often == pytest.approx(233, rel=0.005)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(OutOfRange, match="no training is possible") as caught:
        fleet.fleet_mtbf_s(3600, 16384)
    assert "50000h" in caught.value.fix
    with pytest.raises(OutOfRange, match="do not fit"):
        fleet.goodput_at(100, 60, 3600)
    with pytest.raises(OutOfRange, match="hardly any save"):
        fleet.checkpoints_for_goodput(0.9, 100, 150)
    with pytest.raises(PlanningError):
        fleet.checkpoints_for_goodput(1.0, 10, 3600)
    with pytest.raises(PlanningError):
        fleet.fleet_mtbf_s(3600, 0)
    with pytest.raises(PlanningError, match="beyond anything real"):
        fleet.check_gpu_mtbf(1e13 * HOUR)


def test_an_unusual_mtbf_of_a_gpu_is_warned_about() -> None:
    assert fleet.check_gpu_mtbf(50_000 * HOUR) is None
    assert "far from published" in (fleet.check_gpu_mtbf(500 * HOUR) or "")
    assert "far from published" in (fleet.check_gpu_mtbf(5e6 * HOUR) or "")
