"""The history record: strict reading, estimates with their intervals, unknown as a value."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

import pytest

from sentinel.planning import history as h
from sentinel.planning import poisson
from sentinel.planning.limits import PlanningError


def test_a_document_becomes_a_record(history_document) -> None:
    past = h.history_from(history_document)
    assert past.wall_s == 10 * 86400
    assert past.mean_gpus == 512
    assert past.gpus_per_node == 8
    assert len(past.failures) == 12
    assert past.failures[0].repaired_by is None and past.failures[2].node_lost is None
    assert past.saves[3].size_bytes is None and past.saves[3].blocking is None


def test_exposure_may_be_given_exactly(history_document) -> None:
    del history_document["gpus"]
    history_document["gpu_s"] = 1e8
    assert h.history_from(history_document).gpu_s == 1e8


def test_the_mtbf_scales_with_the_job_and_has_its_interval(history_document) -> None:
    past = h.history_from(history_document)
    whole = h.job_mtbf(past, 512)
    assert whole.failures == 12
    assert whole.mtbf_s == pytest.approx(72000)
    # Garwood for 12: 6.201 to 20.962
    assert whole.mtbf_low_s == pytest.approx(864000 / 20.962, rel=1e-3)
    assert whole.mtbf_high_s == pytest.approx(864000 / 6.201, rel=1e-3)
    assert h.job_mtbf(past, 256).mtbf_s == pytest.approx(144000)
    assert h.job_mtbf(past, 512, 0.8).mtbf_low_s > whole.mtbf_low_s


def test_llama_3_has_3_093_h_and_50677_h_a_gpu() -> None:
    estimate = h.estimate_mtbf(419, 54 * 86400)
    assert estimate.mtbf_s is not None
    assert estimate.mtbf_s / 3600 == pytest.approx(3.093, abs=5e-4)
    assert estimate.mtbf_s * 16384 / 3600 == pytest.approx(50677, abs=1)
    assert h.estimate_mtbf(466, 54 * 86400).mtbf_s == pytest.approx(2.7811 * 3600, rel=1e-4)
    assert estimate.mtbf_low_s < estimate.mtbf_s < (estimate.mtbf_high_s or 0)


def test_no_failure_is_a_bound_and_not_an_estimate() -> None:
    estimate = h.estimate_mtbf(0, 86400)
    assert estimate.mtbf_s is None and estimate.mtbf_high_s is None
    assert estimate.mtbf_low_s == pytest.approx(86400 / 3.689, rel=1e-3)


def test_the_interval_of_one_count_is_made_once_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of thousands of running jobs asks for each; the count of the cluster's failures is the same."""
    made, below = [], poisson.gamma_below

    def counted(shape: float, value: float) -> float:
        made.append(shape)
        return below(shape, value)

    monkeypatch.setattr(poisson, "gamma_below", counted)
    h.estimate_mtbf(7919, 86400)
    once = len(made)
    for gpus in range(1, 50):
        h.estimate_mtbf(7919, 86400 / gpus)
    assert len(made) == once > 0


def test_the_interval_holds_the_truth_in_simulated_fleets() -> None:
    dice = random.Random(11)
    held = 0
    for _ in range(1000):
        clock, count = dice.expovariate(1 / 5000), 0
        while clock < 100_000:
            count += 1
            clock += dice.expovariate(1 / 5000)
        estimate = h.estimate_mtbf(count, 100_000)
        held += estimate.mtbf_low_s <= 5000 <= (estimate.mtbf_high_s or float("inf"))
    assert held / 1000 >= 0.94


def test_shares_count_only_what_is_known(history_document) -> None:
    past = h.history_from(history_document)
    assert h.local_share(past) == h.Share(6 / 9, 9, 3)
    assert h.node_loss_share(past) == h.Share(0.5, 8, 4)
    for failure in history_document["failures"]:
        failure["repaired_by"] = None
    assert h.local_share(h.history_from(history_document)) == h.Share(None, 0, 12)


def test_means_leave_out_the_unknown(history_document) -> None:
    past = h.history_from(history_document)
    assert h.mean_save_s(past, "global") == 90  # the drain of 600 s stops nothing
    assert h.mean_save_s(past, "local") == 5
    assert h.mean([None, 2.0, None, 4.0]) == 3
    assert h.mean([None]) is None and h.mean([]) is None


def test_causes_come_most_frequent_first(history_document) -> None:
    history_document["failures"] = history_document["failures"][:5]
    assert h.by_cause(h.history_from(history_document)) == (("gpu_memory", 2), ("nic", 2), ("software", 1))


def _past(times: list[float]) -> h.FleetHistory:
    start = datetime(2025, 1, 1, tzinfo=UTC)
    failures = tuple(h.Failure(start + timedelta(seconds=t), "x") for t in times)
    return h.FleetHistory(start, start + timedelta(seconds=1e6), 1e9, failures)


def test_clusters_are_told_from_a_constant_rate() -> None:
    dice = random.Random(13)
    alarms = sum(h.clustered(_past([dice.uniform(0, 1e6) for _ in range(200)])) is not None for _ in range(200))
    assert alarms <= 8  # one in a hundred is meant
    bad_day = [dice.uniform(0, 1e6) for _ in range(100)] + [dice.uniform(5e5, 5.2e5) for _ in range(60)]
    found = h.clustered(_past(bad_day))
    assert found is not None and found > 2
    assert h.clustered(_past(bad_day[-39:])) is None  # too few to tell


@pytest.mark.parametrize(
    ("path", "value", "key", "why"),
    [
        (("extra",), 1, "", "'extra' is not known"),
        (("start",), None, "start", "missing"),
        (("start",), 5, "start", "not a text"),
        (("start",), "yesterday", "start", "not an ISO 8601 time"),
        (("start",), "2025-06-01T00:00:00", "start", "no time zone"),
        (("end",), "2025-05-01T00:00:00Z", "end", "not after start"),
        (("gpus",), 0, "gpus", "more than zero"),
        (("gpus",), -4, "gpus", "more than zero"),
        (("gpus",), True, "gpus", "not a number"),
        (("gpus",), float("nan"), "gpus", "not a finite"),
        (("gpus",), 1e300, "gpus", "beyond anything real"),
        (("gpu_s",), 5, "gpus", "exactly one"),
        (("gpus_per_node",), 0, "gpus_per_node", "whole number"),
        (("failures",), {}, "failures", "not a list"),
        (("failures", 3), 7, "failures[3]", "not an object"),
        (("failures", 3, "colour"), "red", "failures[3]", "'colour' is not known"),
        (("failures", 3, "time"), "2026-01-01T00:00:00Z", "failures[3].time", "outside start and end"),
        (("failures", 3, "cause"), "", "failures[3].cause", "must be a text"),
        (("failures", 3, "repaired_by"), "peer", "failures[3].repaired_by", "neither local, global nor null"),
        (("failures", 3, "node_lost"), "yes", "failures[3].node_lost", "neither true, false nor null"),
        (("failures", 3, "restart_s"), -1, "failures[3].restart_s", "must not be negative"),
        (("saves", 1, "tier"), "cloud", "saves[1].tier", "neither local nor global"),
        (("saves", 1, "duration_s"), 0, "saves[1].duration_s", "more than zero"),
        (("saves", 1, "duration_s"), None, "saves[1].duration_s", "is missing"),
        (("repairs_s", 0), "long", "repairs_s[0]", "not a number"),
    ],
)
def test_bad_content_is_refused_by_key(history_document, path, value, key, why) -> None:
    document = copy.deepcopy(history_document)
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(h.HistoryError, match=why.replace("[", r"\[")) as caught:
        h.history_from(document)
    assert caught.value.key == key


def test_missing_failures_are_not_no_failures(history_document) -> None:
    del history_document["failures"]
    with pytest.raises(h.HistoryError, match="is missing"):
        h.history_from(history_document)


def test_the_record_checks_itself() -> None:
    now = datetime(2025, 1, 1, tzinfo=UTC)
    later = now + timedelta(days=1)
    with pytest.raises(PlanningError, match="time zone"):
        h.FleetHistory(datetime(2025, 1, 1), later, 1, ())
    with pytest.raises(PlanningError, match="not after"):
        h.FleetHistory(later, now, 1, ())
    with pytest.raises(PlanningError, match="outside"):
        h.FleetHistory(now, later, 1, (h.Failure(later + timedelta(1), "x"),))
