"""Which nodes keep failing, measured against how long they worked."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sentinel.classify import History, PastFailure, node_scores
from sentinel.classify.history import _at_least, span
from sentinel.model.identity import taken_along_id
from sentinel.model.records import Cause

NOW = datetime(2026, 3, 4, tzinfo=UTC)
DAY_S = 86400.0


def history(*counts: tuple[str, int, float], cause: Cause = Cause.GPU_MEMORY_ECC) -> History:
    failures = [
        PastFailure(NOW - timedelta(days=1 + i % 20), cause, node=node, job=1000 * k + i)
        for k, (node, count, _) in enumerate(counts)
        for i in range(count)
    ]
    return History(tuple(failures), {node: days * DAY_S for node, _, days in counts})


def test_three_failures_in_an_hour_and_in_a_month_differ() -> None:
    fleet = [(f"n{i}", 0, 28.0) for i in range(40)]
    scores = {score.node: score for score in node_scores(history(*fleet, ("busy", 3, 28.0), ("new", 3, 0.05)), NOW)}
    assert scores["new"].low > scores["busy"].low
    assert scores["busy"].lemon and scores["new"].lemon
    assert "under 3 different jobs" in scores["busy"].reasons
    assert not any(scores[f"n{i}"].lemon for i in range(40))


def test_one_failure_is_not_a_lemon_and_application_failures_do_not_count() -> None:
    fleet = [(f"n{i}", i % 2, 28.0) for i in range(20)]
    assert not any(score.lemon for score in node_scores(history(*fleet), NOW))
    blamed = history(("n1", 9, 28.0), ("n2", 0, 28.0), cause=Cause.USER_CODE)
    assert [score.failures for score in node_scores(blamed, NOW)] == [0, 0]


def test_one_failure_under_several_jobs_is_one_failure() -> None:
    others = {f"n{i}": 28 * DAY_S for i in range(20)}
    at, jobs = NOW - timedelta(days=1), range(4)
    failures = [
        PastFailure(
            at, Cause.GPU_MEMORY_ECC, node="shared", gpu="3", job=job, attempt=0,
            incident=taken_along_id("0f3a", job, 0) if job else "0f3a",
        )
        for job in jobs
    ]  # fmt: skip
    (score,) = (s for s in node_scores(History(tuple(failures), {**others, "shared": 28 * DAY_S}), NOW) if s.failures)
    assert (score.node, score.failures, score.lemon) == ("shared", 1, False)


def test_a_very_bad_node_does_not_hide_the_next() -> None:
    fleet = [(f"n{i}", i % 2, 28.0) for i in range(60)]
    scores = node_scores(history(*fleet, ("worst", 400, 28.0), ("bad", 6, 28.0)), NOW)
    assert {score.node for score in scores if score.lemon} == {"worst", "bad"}


def test_chance_alone_names_nobody_in_nine_fleets_of_ten() -> None:
    rng = random.Random(7)
    named = 0
    for _ in range(100):
        fleet = [(f"n{i}", sum(rng.random() < 0.01 for _ in range(28)), rng.uniform(10, 28)) for i in range(100)]
        named += any(score.lemon for score in node_scores(history(*fleet), NOW))
    assert named <= 10


@pytest.mark.parametrize(
    ("count", "mean", "chance"), [(0, 2.0, 1.0), (1, 1.0, 0.6321205588), (2, 0.01, 4.966791e-5), (3, 50.0, 1.0)]
)
def test_the_chance_of_so_many_failures(count: int, mean: float, chance: float) -> None:
    assert _at_least(count, mean) == pytest.approx(chance, rel=1e-6)


def test_old_failures_are_forgotten() -> None:
    old = History((PastFailure(NOW - timedelta(days=40), Cause.PCIE, node="n1"),), {"n1": DAY_S})
    assert node_scores(old, NOW)[0].failures == 0


def test_the_interval_holds_the_rate() -> None:
    for score in node_scores(history(("a", 5, 20.0), ("b", 0, 20.0), ("c", 1, 3.0)), NOW):
        assert score.low <= score.rate <= score.high


def test_reasons_name_causes_jobs_the_gpu_and_the_burst() -> None:
    def failure(minutes: float, gpu: str | None) -> PastFailure:
        return PastFailure(NOW - timedelta(minutes=minutes), Cause.PCIE, node="n1", gpu=gpu, job=int(minutes))

    burst = History((failure(50, "3"), failure(20, "3"), failure(5, "3")), {"n1": 3600.0, "n2": 20 * DAY_S})
    (score, _) = node_scores(burst, NOW)
    assert score.reasons == ("3 x pcie", "under 3 different jobs", "always GPU 3", "3 within 45 min")
    assert score.burst_s == 45 * 60 and score.last_at == NOW - timedelta(minutes=5) and score.suspicion > 1.0
    part = History((failure(50, "3"), failure(20, None)), {"n1": DAY_S, "n2": 20 * DAY_S})
    assert node_scores(part, NOW)[0].reasons == ("2 x pcie", "under 2 different jobs", "GPU 3 where one was named")


def test_where_words_were_seen_is_no_failure_of_that_node() -> None:
    seen = PastFailure(NOW - timedelta(days=1), Cause.NUMERICAL_NAN, node="n1", blamed=False)
    assert node_scores(History((seen,), {"n1": 20 * DAY_S}), NOW)[0].failures == 0


def test_lengths_of_time_for_people() -> None:
    assert [span(s) for s in (5, 90, 5400, 40000, 3 * DAY_S, 20 * DAY_S)] == [
        "5 s",
        "2 min",
        "1.5 h",
        "11 h",
        "3.0 d",
        "20 d",
    ]


def test_two_failures_of_one_part_are_rarer_than_two_of_any() -> None:
    """Of 400 nodes with two weeks of work each: the same cause on the same GPU twice, and two that differ."""
    rng = random.Random(3)
    causes = (Cause.GPU_MEMORY_ECC, Cause.GPU_FALLEN_OFF_BUS, Cause.GPU_NVLINK, Cause.GPU_GSP_OR_DRIVER)
    named = [(f"n{i}", rng.choice(causes), str(rng.randrange(8))) for i in range(24)]
    named += [(f"part{i}", causes[i], str(i)) for i in (0, 1, 2) for _ in range(2)]
    named += [("any", causes[0], "1"), ("any", causes[2], "6")]
    failures = [
        PastFailure(NOW - timedelta(days=1 + i % 13), cause, node=node, gpu=gpu, job=i)
        for i, (node, cause, gpu) in enumerate(named)
    ]
    busy = {f"n{i}": 14 * DAY_S for i in range(400)} | dict.fromkeys(("part0", "part1", "part2", "any"), 14 * DAY_S)
    found = {score.node for score in node_scores(History(tuple(failures), busy), NOW) if score.lemon}
    assert found == {"part0", "part1", "part2"}


def test_what_only_programs_tell_of_is_counted_beside_the_failures() -> None:
    def failure(job: int, **changes: Any) -> PastFailure:
        at = NOW - timedelta(hours=job)
        return PastFailure(at, Cause.NCCL_HANG_UNKNOWN, node="n1", job=job, **changes)

    code = PastFailure(NOW, Cause.USER_CODE, node="n1", job=9, users_words=True)
    known = (failure(1), failure(2, users_words=True), failure(3, users_words=True, blamed=False), code)
    (score,) = node_scores(History(known, {"n1": 20 * DAY_S}), NOW)
    assert (score.failures, score.told, score.reasons) == (1, 1, ("1 x nccl_hang_unknown",))
