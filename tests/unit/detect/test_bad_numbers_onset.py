"""From which step on a job's checkpoints hold bad numbers, over its attempts and restarts of the daemon."""

from __future__ import annotations

import dataclasses
import json
from math import nan
from typing import Any

import pytest
from made_records import evidence, fleet, later
from made_records import job as made_job

from sentinel.config.settings import Judgement
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers import bad_numbers_onset
from sentinel.detect.numbers.bad_numbers import QUIET, Run
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.model.records import Kind, Source

JOB, BAD = 1, [nan] * 8


class Job:
    def __init__(self) -> None:
        self.tracker = OnsetTracker(ClusterView(), Judgement())

    def prints(self, attempt: int, first: int, *losses: float | None) -> None:
        for step, loss in enumerate(losses, first):
            data = {"step": step} if loss is None else {"step": step, "loss": loss}
            item = evidence(Kind.STEP, job=JOB, attempt=attempt, source=Source.JOB_LOG, data=data)
            self.tracker.with_findings([item])

    def daemon_restarts(self) -> None:
        kept = self.tracker.unsaved()
        assert kept is not None
        self.tracker = OnsetTracker(ClusterView(), Judgement(), json.loads(json.dumps(kept)))

    def onset(self, attempt: int) -> int | None:
        return self.tracker.onset_step(JOB, attempt)


@pytest.fixture
def job() -> Job:
    job = Job()
    job.prints(0, 10, 2.0, 2.1, *BAD)
    assert job.onset(0) == 12
    return job


def test_an_attempt_that_has_shown_nothing_may_run_on_the_bad_numbers_of_the_one_before(job: Job) -> None:
    assert job.onset(1) == 12 and job.onset(2) == 12
    job.daemon_restarts()
    assert job.onset(1) == 12
    job.prints(1, 20, nan)
    assert job.onset(1) == 12


@pytest.mark.parametrize("good", [[2.0], [None] * QUIET], ids=["a loss", "steps without numbers"])
def test_good_steps_end_it_for_good(job: Job, good: list[float | None]) -> None:
    job.prints(1, 10, *good)
    assert job.onset(1) is None and job.onset(2) is None and job.onset(0) == 12
    job.daemon_restarts()
    assert job.onset(1) is None and job.onset(2) is None and job.onset(0) == 12


def test_numbers_that_go_bad_again_have_an_onset_of_their_own(job: Job) -> None:
    job.prints(1, 10, 2.0, 2.1, 2.0, 2.2, *BAD)
    assert job.onset(1) == 14 and job.onset(2) == 14


def test_an_attempt_that_has_shown_good_numbers_did_not_start_from_bad_ones(job: Job) -> None:
    job.prints(1, 10, 2.0, 2.0, 2.0, 2.0, nan, nan)
    assert job.onset(1) is None  # two are not called bad yet
    job.daemon_restarts()
    assert job.onset(1) is None


@pytest.mark.parametrize("bad", [2, 8])
def test_a_line_that_the_next_daemon_reads_is_of_numbers_that_went_bad_before_it(bad: int) -> None:
    job = Job()
    job.prints(0, 10, 2.0, 2.1, *BAD[:bad])
    job.daemon_restarts()
    line = evidence("nan", job=JOB, attempt=0, source=Source.JOB_LOG, data={"step": 20})
    assert job.tracker.with_findings([line])[0].data["onset_step"] == 12


def test_another_job_and_one_that_is_not_known_have_none(job: Job) -> None:
    assert job.tracker.onset_step(2, 1) is None and job.tracker.onset_step(None, 1) is None
    assert job.tracker.onset_step(JOB, None) is None


def test_attempts_of_which_nothing_is_known_are_not_gone_through(job: Job) -> None:
    """A line of attempt 65,535 (the last that Slurm counts) took 22 ms."""
    looked: list[object] = []

    class Counting(dict[tuple[int, int], Run]):
        def get(self, key: Any, default: Any = None) -> Any:
            looked.append(key)
            return super().get(key, default)

    job.tracker._runs = Counting(job.tracker._runs)
    job.prints(65535, 10, None)
    assert job.onset(65535) == job.onset(1) and len(looked) < 20


def test_of_many_attempts_those_of_jobs_that_are_gone_are_forgotten_and_not_those_that_have_just_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bad_numbers_onset, "_MOST_ATTEMPTS", 20)
    view = ClusterView()
    tracker = OnsetTracker(view, Judgement())

    def prints(number: int, *losses: float) -> None:
        for step, loss in enumerate(losses):
            item = evidence(Kind.STEP, job=number, attempt=0, source=Source.JOB_LOG, data={"step": step, "loss": loss})
            tracker.with_findings([item])
            view.note(item)

    waits, ended = 100, 101  # what both left counts for the attempts that follow
    view.see_fleet(fleet(4, [made_job(waits), made_job(ended)]))
    prints(waits, *BAD)
    prints(ended, *BAD)
    queued = made_job(waits, state="pending", nodes=(), restarts=1)
    for number in range(1, 60):
        at = later(number * 600.0)
        view.see_fleet(dataclasses.replace(fleet(4, [made_job(number), queued]), at=at))
        prints(number, 2.0)
        view.forget(at)
        assert tracker.onset_step(waits, 0) == 0 and tracker.onset_step(waits, 1) == 0
        if number < 5:
            assert tracker.onset_step(ended, 0) == 0
    assert tracker.newest_run(3) is None and tracker.newest_run(ended) is None, "long gone"
    assert tracker.newest_run(58) == 0
