"""The shared vectors, where the checkout has them beside it; their numbers are also facts in the other tests."""

from __future__ import annotations

import pytest

from sentinel.planning import bandwidth, ettr, fleet, history, interval, replicas, tiers


def test_intervals(vectors) -> None:
    assert vectors["intervals"]
    for case in vectors["intervals"]:
        c, m, r = case["C_s"], case["MTBF_s"], case["R_s"]
        plan = interval.plan_interval(c, m, r)
        assert interval.young_s(c, m) == pytest.approx(case["young_s"], abs=0.06)
        assert interval.daly_first_s(c, m) == pytest.approx(case["daly1_s"], abs=0.06)
        assert plan.interval_s == pytest.approx(case["daly_s"], abs=0.06)
        assert interval.saxena_period_s(c, m, r) == pytest.approx(case["saxena_period_s"], abs=0.06)
        assert interval.optimum_s(c, m) == pytest.approx(case["exact_argmin_s"], abs=2.6)
        assert plan.wall_per_work == pytest.approx(case["wall_per_work_at_daly"], abs=1e-5)
        best = interval.wall_per_work(interval.optimum_s(c, m), c, m, r)
        assert best == pytest.approx(case["wall_per_work_min"], abs=1e-5)
        assert plan.wall_per_work == pytest.approx(case["mc_at_daly"], rel=0.02)
        assert plan.first_order_waste_fraction == pytest.approx(case["first_order_waste_at_daly"], abs=6e-5)


def test_two_tiers(vectors) -> None:
    assert len(vectors["two_level"]) == 2
    for case, share in zip(vectors["two_level"], (0.9, 0.7), strict=True):
        of = tiers.Tiers(10, 180, 120, 900, 54 * 86400 / 419, share)
        plan = tiers.plan_two_level(of)
        assert plan.first_order_saves_per_global == case["n"]
        assert plan.first_order_local_interval_s == pytest.approx(case["T1"], abs=0.06)
        assert plan.first_order_global_interval_s == pytest.approx(case["T2"], abs=0.06)
        assert plan.independent_local_interval_s == pytest.approx(case["T1_indep"], abs=0.06)
        assert plan.independent_global_interval_s == pytest.approx(case["T2_indep"], abs=0.06)
        assert plan.first_order_overhead_fraction == pytest.approx(case["overhead"], abs=1e-5)
        assert plan.overhead_fraction == pytest.approx(case["mc_overhead"], rel=0.02)


def test_sizing(vectors) -> None:
    sizing = vectors["sizing"]
    size = bandwidth.checkpoint_bytes(405e9)
    assert size == sizing["ckpt_bytes_405B_x14"]
    assert bandwidth.bandwidth_bytes_per_s(size, 900, 0.1) / 1e9 == pytest.approx(sizing["bw_15min_10pct_GBps"])
    assert bandwidth.bandwidth_bytes_per_s(size, 900, 0.01) / 1e9 == pytest.approx(sizing["bw_15min_1pct_GBps"])
    for gpus, hours in sizing["mtbf_h_50kh"].items():
        assert fleet.fleet_mtbf_s(50_000 * 3600, int(gpus)) / 3600 == pytest.approx(hours, abs=6e-4)
    llama = history.estimate_mtbf(419, 54 * 86400).mtbf_s
    assert llama is not None
    assert llama / 3600 == pytest.approx(sizing["llama3_mtbf_h_unexpected"], abs=6e-5)
    assert llama * 16384 / 3600 == pytest.approx(sizing["llama3_per_gpu_mtbf_h"], abs=0.6)
    assert fleet.failures_per_1000_node_days(llama, 16384) == pytest.approx(
        sizing["llama3_rf_per_1000_node_days"], abs=6e-4
    )


def test_effective_training_time(vectors) -> None:
    ratios = vectors["ettr"]
    for gpus, hours in ratios["mttf_h_rsc1"].items():
        assert fleet.mtbf_from_node_days(6.5, int(gpus)) / 3600 == pytest.approx(hours, abs=6e-4)
    for key, rate, save in (
        ("rsc1_12000gpu_w300_u300_dtopt", 6.5, 300),
        ("rsc1_12000gpu_w10_u300_dtopt", 6.5, 10),
        ("rf1_12000gpu_w300_u300_dtopt", 1.0, 300),
    ):
        mtbf = fleet.mtbf_from_node_days(rate, 12000)
        interval_s = interval.young_s(save, mtbf)
        minutes, ratio = ratios[key]
        assert interval_s / 60 == pytest.approx(minutes, abs=6e-3)
        assert ettr.ettr_first_order(mtbf, save, 300, interval_s) == pytest.approx(ratio, abs=6e-5)
    for key, gpus, restart in (
        ("rsc1_2048gpu_dt3600_u300_w0", 2048, 300),
        ("rsc1_8000gpu_dt3600_u1200_w0", 8000, 1200),
    ):
        found = ettr.ettr_first_order(fleet.mtbf_from_node_days(6.5, gpus), 0, restart, 3600)
        assert found == pytest.approx(ratios[key], abs=6e-5)


def test_replicas(vectors) -> None:
    table = vectors["replicas"]
    flat = {
        (16, 2, 2, "group"): table["N16_m2_k2"],
        (16, 2, 3, "group"): table["N16_m2_k3"],
        (16, 2, 2, "ring"): table["N16_ring_k2"],
        (16, 2, 3, "ring"): table["N16_ring_k3"],
        (128, 3, 3, "group"): table["N128_m3_k3"],
    }
    flat |= {(128, 2, int(k), "group"): p for k, p in table["N128_m2"].items()}
    flat |= {(2048, 2, int(k), "group"): p for k, p in table["N2048_m2"].items()}
    for (nodes, copies, losses, placement), expected in flat.items():
        digits = len(str(expected).partition(".")[2])
        found = replicas.survival(nodes, copies, losses, placement)
        assert found == pytest.approx(expected, abs=0.51 * 10**-digits), (nodes, copies, losses, placement)
