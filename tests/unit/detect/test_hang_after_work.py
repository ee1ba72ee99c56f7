"""A silence in which the job was seen to work, and then was not: what may be concluded of it, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from sentinel.config.settings import Judgement
from sentinel.detect.activity import Motion
from sentinel.detect.hang import SilenceObservations, after_look, hung_after_s
from sentinel.detect.step_rhythm import PAUSE, Rhythm, observe
from sentinel.model.records import Evidence, Kind, Source, Where, utc

LIMITS = Judgement()
START = utc(1_900_000_000)
LOOK_S = 2.5
FIRST_S = 10.0  # of the first observation in a silence


def training(gap_s: float, steps: int, announced: str = "") -> Rhythm:
    """A job that has made so many steps, none of them after a pause; a line announces one now."""
    rhythm = Rhythm()
    for step in range(1, steps + 1):
        at = START + timedelta(seconds=gap_s * step)
        where = Where(job=1, attempt=0)
        rhythm = observe(rhythm, Evidence(f"{step}", at, at, Source.JOB_LOG, Kind.STEP, where, "", data={"step": step}))
    if announced:
        rhythm = observe(
            rhythm, Evidence("pause", at, at, Source.JOB_LOG, PAUSE, where, announced, data={"step": steps})
        )
    return rhythm


def observed(rhythm: Rhythm, motions: Sequence[Motion]) -> SilenceObservations:
    """What these comparisons, one after the other, show of the silence after the last step."""
    last, watched = rhythm.last_at, SilenceObservations()
    assert last is not None
    for number, motion in enumerate(motions):
        began = last + timedelta(seconds=FIRST_S + LOOK_S * number)
        watched = after_look(watched, motion, began, began + timedelta(seconds=LOOK_S), pause=True, beyond=False)
    return watched


@pytest.mark.parametrize("did", [Motion.WORKS, Motion.WRITES, Motion.STORAGE, Motion.LOOPS, Motion.UNCLEAR])
@pytest.mark.parametrize("waits", [Motion.WAITS, Motion.QUIET])
@pytest.mark.parametrize("announced", ["", "saving checkpoint"])
def test_of_a_job_that_did_more_a_few_comparisons_that_show_only_waiting_decide_nothing(
    did: Motion, waits: Motion, announced: str
) -> None:
    """They fall between two batches, or two writes: seen of a save of 144 s and of evaluations of 340 s."""
    rhythm = training(100.0, 25, announced)
    before = hung_after_s(rhythm, observed(rhythm, [did] * 100), LIMITS)
    for few in (1, 2, 3):
        assert hung_after_s(rhythm, observed(rhythm, [did] * (100 - few) + [waits] * few), LIMITS) == before
    assert hung_after_s(rhythm, observed(rhythm, [did, waits] * 50), LIMITS) == before


@pytest.mark.parametrize("did", [Motion.WORKS, Motion.LOOPS, Motion.UNCLEAR])
def test_waiting_that_lasts_decides_in_a_step_also_after_work(did: Motion) -> None:
    rhythm = training(30.0, 133)  # an hour of steps, none of them a pause
    lasts = hung_after_s(rhythm, observed(rhythm, [did] * 4 + [Motion.WAITS] * 5), LIMITS)
    assert lasts == hung_after_s(rhythm, observed(rhythm, [Motion.WAITS] * 5), LIMITS)
    assert (hung_after_s(rhythm, observed(rhythm, [did] * 4 + [Motion.WAITS] * 3), LIMITS) or 0.0) > (lasts or 0.0)


@pytest.mark.parametrize("then", [Motion.LOOPS, Motion.UNCLEAR, Motion.UNKNOWN])
def test_a_first_pause_may_follow_another_one(then: Motion) -> None:
    """One GPU evaluated for 250 s, and then the host serialises a first checkpoint: 348 s without a step."""
    rhythm = training(86.0, 50)
    at_once = hung_after_s(rhythm, observed(rhythm, [then] * 130), LIMITS)
    after_work = hung_after_s(rhythm, observed(rhythm, [Motion.WORKS] * 100 + [then] * 30), LIMITS)
    assert at_once is not None and after_work is not None
    assert after_work == pytest.approx(FIRST_S + 100 * LOOK_S + 300.0 + 86.0)
    for_ever = hung_after_s(rhythm, observed(rhythm, [Motion.WORKS] * 1000 + [then] * 30), LIMITS)
    assert for_ever == pytest.approx(2.0 * at_once), "it is no longer than that of a job that works"


def test_waiting_after_the_work_of_a_first_pause_has_the_time_of_a_first_pause() -> None:
    rhythm = training(50.0, 100)
    work, waits = [Motion.WORKS] * 130, [Motion.WAITS] * 8
    found = hung_after_s(rhythm, observed(rhythm, work + waits), LIMITS)
    assert found == pytest.approx(FIRST_S + 130 * LOOK_S + LIMITS.stall_first_pause_s)
    assert (hung_after_s(rhythm, observed(rhythm, waits), LIMITS) or 0.0) < (found or 0.0)


@pytest.mark.parametrize("announced", ["", "running evaluation"])
def test_a_first_pause_and_the_step_after_it_are_one_silence(announced: str) -> None:
    """An evaluation of 235 s before a step of 105 s."""
    rhythm = training(103.0, 25, announced)
    assert (hung_after_s(rhythm, observed(rhythm, [Motion.WAITS] * 8), LIMITS) or 0.0) >= 300.0 + 103.0


def test_a_job_that_waited_for_minutes_before_may_wait_somewhat_longer() -> None:
    """Evaluations of 59 s at low power, known by their power alone, look like waiting: 121 s with the step, then 143 s."""
    rhythm, waits = training(59.0, 133), [Motion.WAITS] * 51
    watched = replace(observed(rhythm, waits), longest_lull_s=121.0)
    assert watched.waits_s == pytest.approx(127.5)
    assert (hung_after_s(rhythm, watched, LIMITS) or 0.0) > 150.0
    assert (hung_after_s(rhythm, replace(watched, waits_s=190.0), LIMITS) or 999.0) < 150.0
    assert (hung_after_s(rhythm, replace(watched, longest_lull_s=10.0), LIMITS) or 999.0) < 150.0
