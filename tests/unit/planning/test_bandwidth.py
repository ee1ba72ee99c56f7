"""Storage: the figures that sources state or get wrong, wear, overlap."""

from __future__ import annotations

import random

import pytest

from sentinel.planning import bandwidth as b
from sentinel.planning.limits import PlanningError

MIN = 60.0
TB = 1e12


def test_405b_every_15_min_needs_63_and_not_631_gb_per_s() -> None:
    plan = b.plan_bandwidth(b.checkpoint_bytes(405e9), 15 * MIN, 0.10)
    assert plan.checkpoint_bytes == 5.67 * TB
    assert plan.write_window_s == 90
    assert plan.bandwidth_bytes_per_s == pytest.approx(63e9)
    assert {share: rate for share, _, rate in plan.budgets}[0.01] == pytest.approx(630e9)
    assert plan.warnings == ()
    strict = b.plan_bandwidth(b.checkpoint_bytes(405e9), 15 * MIN, 0.01)
    assert strict.bandwidth_bytes_per_s == pytest.approx(630e9)
    assert any("10 times the bandwidth of the usual 10 %: 63 GB/s would do" in w for w in strict.warnings)


def test_published_sizes() -> None:
    assert b.checkpoint_bytes(175e9) == pytest.approx(2.45 * TB)
    assert b.checkpoint_bytes(500e9) == pytest.approx(7 * TB)
    hourly = b.plan_bandwidth(2.45 * TB, 3600, 0.05)
    assert hourly.write_window_s == pytest.approx(3 * MIN)
    assert hourly.bandwidth_bytes_per_s == pytest.approx(13.6e9, rel=0.002)


def test_5_tb_every_6_2_min_is_some_233_saves_and_1_1_pb_a_day() -> None:
    plan = b.plan_bandwidth(5 * TB, 6.2 * MIN)
    assert plan.saves_per_day == pytest.approx(233, rel=0.005)
    assert plan.bytes_per_day == pytest.approx(1.16e15, rel=0.005)
    assert plan.average_bandwidth_bytes_per_s == pytest.approx(13.4e9, rel=0.005)


def test_a_restart_reads_eight_times_what_a_save_writes() -> None:
    plan = b.plan_bandwidth(5.67 * TB, 15 * MIN)
    assert plan.restore_bytes == pytest.approx(8 * 5.67 * TB)
    assert plan.restore_bandwidth_bytes_per_s == pytest.approx(504e9)
    assert b.plan_bandwidth(5.67 * TB, 15 * MIN, read_factor=1).restore_bytes == pytest.approx(5.67 * TB)


def test_the_bandwidth_keeps_the_promised_overlap_when_simulated() -> None:
    """Saves of that size at that bandwidth, started every interval: the storage is busy for that share."""
    plan = b.plan_bandwidth(5.67 * TB, 15 * MIN, 0.10)
    dice = random.Random(7)
    busy = 0
    for _ in range(100_000):
        since_start = dice.uniform(0, 1e6) % plan.interval_s
        busy += since_start * plan.bandwidth_bytes_per_s < plan.checkpoint_bytes
    assert busy / 100_000 == pytest.approx(0.10, rel=0.03)


def test_the_800b_run_overlaps_by_nine_percent() -> None:
    seen = b.overlap(3.6 * MIN, 40 * MIN, blocking=False)
    assert seen.overlap_fraction == pytest.approx(0.09)
    assert seen.within
    stopping = b.overlap(3.6 * MIN, 40 * MIN, blocking=True)
    assert not stopping.within
    assert "above the 5 %" in stopping.reason and "1.8 times as fast" in stopping.reason
    assert b.overlap(4 * MIN, 40 * MIN, blocking=False).within
    assert not b.overlap(4.1 * MIN, 40 * MIN, blocking=False).within


def test_saves_that_pile_up_are_refused() -> None:
    with pytest.raises(PlanningError, match="pile up"):
        b.overlap(901, 900, blocking=False)
    assert b.overlap(900, 900, blocking=False).overlap_fraction == 1


def test_an_offer_is_judged_both_ways() -> None:
    enough = b.offer(5.67 * TB, 900, 0.1, 63e9)
    assert enough.enough and enough.save_s == pytest.approx(90) and enough.least_interval_s == pytest.approx(900)
    short = b.offer(5.67 * TB, 900, 0.1, 20e9)
    assert not short.enough and short.overlap_fraction == pytest.approx(0.315)
    assert b.plan_bandwidth(5.67 * TB, short.least_interval_s, 0.1).bandwidth_bytes_per_s == pytest.approx(20e9)


def test_wear_of_a_local_tier() -> None:
    worn = b.wear(5.67 * TB, 300, 1024, 30e12, copies=2)
    assert worn.save_bytes_per_node == pytest.approx(5.67 * TB / 1024 * 2)
    assert worn.bytes_per_day_per_node == pytest.approx(worn.save_bytes_per_node * 288)
    assert worn.drive_writes_per_day == pytest.approx(worn.bytes_per_day_per_node / 30e12)
    assert worn.within
    years = worn.lifetime_s / 86400 / 365.25
    assert years * 365.25 * worn.bytes_per_day_per_node == pytest.approx(5 * 365.25 * 30e12)
    rated = b.wear(5.67 * TB, 300, 1024, 30e12, copies=2, endurance_bytes=56e15)
    assert rated.lifetime_s / 86400 * rated.bytes_per_day_per_node == pytest.approx(56e15)
    assert not b.wear(5.67 * TB, 10, 128, 8e12).within


def test_a_shard_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanningError, match="do not fit"):
        b.wear(5.67 * TB, 300, 2, 1e12)
    with pytest.raises(PlanningError):
        b.wear(5.67 * TB, 300, 2, 30e12, copies=3)


def test_gb_for_gib_is_seen_in_two_sizes() -> None:
    assert b.binary_mixup(5.67 * TB, 5.67 * 2**40) == "TB for TiB"
    assert b.binary_mixup(80 * 2**30, 80e9) == "GB for GiB"
    assert b.binary_mixup(5 * TB, 5.67 * TB) is None


def test_warnings() -> None:
    assert any("above the 10 %" in w for w in b.plan_bandwidth(TB, 900, 0.2).warnings)
    assert any("check the unit" in w for w in b.plan_bandwidth(405, 900).warnings)
    assert any("beyond any storage" in w for w in b.plan_bandwidth(5e15, 60).warnings)


def test_peers_take_their_copies_over_one_link() -> None:
    assert b.stall_s(5.67 * TB, 2048, 40e9) == pytest.approx(5.67 * TB / 2048 / 40e9)
    assert b.stall_s(5.67 * TB, 2048, 40e9, copies=3) == pytest.approx(2 * 5.67 * TB / 2048 / 40e9)
    assert b.stall_s(5.67 * TB, 2048, 40e9, copies=1) == 0


@pytest.mark.parametrize(
    ("size", "interval", "share"), [(0, 1, 0.1), (1, 0, 0.1), (1, 1, 0), (1, 1, 1.1), (1, -1, 0.1)]
)
def test_senseless_quantities_are_refused(size: float, interval: float, share: float) -> None:
    with pytest.raises(PlanningError):
        b.plan_bandwidth(size, interval, share)
