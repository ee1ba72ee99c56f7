"""What a program may cause is a node's only where other jobs failed on it, and where it was not another GPU that failed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from shipped import shipped_rules

from sentinel.classify import History, PastFailure, classify, node_scores
from sentinel.model.records import Cause, Evidence, Incident, Kind, Restart, Source, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()


def xid(number: int, gpu: int | None = 1) -> Evidence:
    text = f"NVRM: Xid (PCI:0000:43:00): {number}, pid=77, name=python"
    where = Where(node="n1", gpu=gpu)
    return Evidence(
        "e1", NOW, NOW, Source.KERNEL, Kind.XID, where, text=text, data={"xid": number, "pci": "0000:43:00"}
    )


def judged(past: list[PastFailure], *, job: int | None = 7, item: Evidence | None = None) -> Verdict:
    incident = Incident("i1", NOW, NOW, job=job, nodes=("n1",), evidence=(item or xid(13),))
    return classify(incident, rules=RULES, now=NOW + timedelta(minutes=5), history=History(tuple(past)))


def lost(at: datetime, *, job: int | None = 5, gpu: str | None = "1", incident: str = "i0") -> PastFailure:
    return PastFailure(at, Cause.GPU_FALLEN_OFF_BUS, node="n1", gpu=gpu, job=job, incident=incident)


def burst(count: int, *, gap_s: float = 0.4) -> list[PastFailure]:
    """Incidents without a job, as a daemon opened them for each line."""
    begun = NOW - timedelta(hours=1)
    return [lost(begun + i * timedelta(seconds=gap_s), job=None, incident=f"b{i}") for i in range(count)]


def test_what_a_node_without_a_job_said_is_no_failure_under_another_job() -> None:
    verdict = judged(burst(30))
    assert (verdict.cause, verdict.suspect) == (Cause.USER_CODE, ()), verdict
    assert not any("under other jobs" in ground.note for ground in verdict.grounds)


def test_what_is_of_no_known_job_may_be_of_the_one_that_failed_before() -> None:
    past = [
        dataclasses.replace(lost(NOW - timedelta(days=n)), cause=Cause.USER_CODE, job=n, blamed=False)
        for n in (1, 2, 3)
    ]
    assert judged(past, job=7).suspect == ("n1",)
    assert judged(past, job=None).suspect == () == judged(past, job=2, item=xid(45)).suspect


def test_another_gpu_s_failure_says_nothing_of_this_one() -> None:
    before = NOW - timedelta(days=9)
    assert judged([lost(before, gpu="0")]).suspect == ()
    assert judged([lost(before, gpu="1")]).suspect == ("n1",)
    assert judged([lost(before, gpu=None)]).suspect == ("n1",)  # which one it was is not known
    assert judged([lost(before, gpu="0000:1b:00")]).suspect == ("n1",)  # nor whether that is the one at this index
    assert judged([lost(before, gpu="0000:1b:00")], item=xid(13, gpu=None)).suspect == ()
    assert judged([lost(before, gpu="0000:43:00")], item=xid(13, gpu=None)).suspect == ("n1",)


def test_one_burst_is_one_failure_in_scores_and_rates() -> None:
    (score,) = node_scores(History(tuple(burst(30))), NOW)
    assert (score.failures, score.lemon, score.burst_s) == (1, False, None)
    apart = burst(3, gap_s=600.0)
    (score,) = node_scores(History(tuple(apart)), NOW)
    assert score.failures == 3
    assert not any("rates of" in ground.note for ground in judged(burst(30)).grounds)


OUT_OF_MEMORY = Evidence(
    "e1", NOW, NOW, Source.JOB_LOG, "oom-gpu", Where(node="n1", job=7), rule="oom-gpu-bare", line=33,
    text="RuntimeError: CUDA error: out of memory",
)  # fmt: skip


@pytest.mark.parametrize("users_words", [False, True])
@pytest.mark.parametrize(
    "cause",
    [Cause.NCCL_HANG_UNKNOWN, Cause.NETWORK_BOOTSTRAP, Cause.NETWORK_FABRIC, Cause.FILESYSTEM_STORAGE,
     Cause.NODE_OS_OR_HOST],
)  # fmt: skip
def test_a_failure_that_says_nothing_of_a_gpu_makes_no_later_one_the_gpu_s(cause: Cause, users_words: bool) -> None:
    past = [
        dataclasses.replace(
            lost(NOW - timedelta(days=n), job=n, gpu=None), cause=cause, user=user, users_words=users_words
        )
        for n, user in ((1, "ada"), (20, "bob"))
    ]
    for item, own in ((xid(13), Cause.USER_CODE), (OUT_OF_MEMORY, Cause.APP_OOM_GPU)):
        verdict = judged(past, item=item)
        assert (verdict.cause, verdict.suspect, verdict.restart) == (own, (), Restart.HOLD), verdict


def test_memory_that_is_used_up_is_the_gpu_s_only_by_a_machine_s_own_word() -> None:
    programs = [
        dataclasses.replace(lost(NOW - timedelta(days=n), job=n), cause=Cause.APP_OOM_GPU, user=user, blamed=False)
        for n, user in ((1, "ada"), (2, "bob"), (3, "eve"))
    ]
    assert judged(programs, item=OUT_OF_MEMORY).cause is Cause.APP_OOM_GPU
    assert judged(programs).suspect == ("n1",)  # what a failing GPU prints as well
    assert judged([lost(NOW - timedelta(days=9))], item=OUT_OF_MEMORY).suspect == ("n1",)


def test_what_one_user_s_programs_failed_by_is_not_counted_beside_the_machine_s_failures() -> None:
    own = [
        dataclasses.replace(lost(NOW - timedelta(days=n), job=n), cause=Cause.USER_CODE, user="ada", blamed=False)
        for n in (1, 2, 3)
    ]
    verdict = judged([lost(NOW - timedelta(days=9)), *own])
    assert "n1 failed 1 time in 30 days under other jobs" in [ground.note for ground in verdict.grounds]
