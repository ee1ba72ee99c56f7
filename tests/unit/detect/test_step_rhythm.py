"""Silence against a job's own rhythm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sentinel.config.settings import Judgement
from sentinel.detect.change_point import slowed
from sentinel.detect.step_rhythm import PAUSE, Rhythm, allowed_s, announces, observe, pause_due, pauses_alike
from sentinel.model.records import Evidence, Kind, Source, Where

START = datetime(2026, 3, 4, tzinfo=UTC)
LIMITS = Judgement(stall_floor_s=12.0, stall_steps=3.0)


def line(seconds: float, step: int, kind: str = Kind.STEP, **data: float) -> Evidence:
    at = START + timedelta(seconds=seconds)
    return Evidence(
        f"{seconds}-{step}", at, at, Source.JOB_LOG, kind, Where(job=7, attempt=1), data={"step": step, **data}
    )


def run(
    steps: int, step_s: float, *, start: int = 1, pause_every: int = 0, pause_s: float = 0.0
) -> tuple[Rhythm, float]:
    rhythm, now = Rhythm(), 100.0
    for step in range(start, start + steps):
        now += step_s
        rhythm = observe(rhythm, line(now, step))
        if pause_every and step % pause_every == 0:
            now += pause_s
    return rhythm, now


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def hung(rhythm: Rhythm, seconds: float) -> bool:
    """Whether the silence at that time is more than the job's rhythm allows."""
    allowed = allowed_s(rhythm, LIMITS)
    assert rhythm.last_at is not None
    return allowed is not None and (after(seconds) - rhythm.last_at).total_seconds() > allowed


def test_a_quick_job_is_hung_after_the_floor_and_a_slow_one_after_three_steps() -> None:
    quick, now = run(33, 0.5)
    assert not hung(quick, now + 11.4)
    assert hung(quick, now + 12.5)
    slow, now = run(33, 20.0)
    assert not hung(slow, now + 59)
    assert hung(slow, now + 61)


def test_a_job_of_uneven_steps_has_longer_than_an_even_one() -> None:
    rhythm, now = Rhythm(), 100.0
    for step in range(1, 97):
        now += 10.0 * (0.7, 0.85, 1.0, 1.0, 1.2, 1.4)[step % 6]
        rhythm = observe(rhythm, line(now, step))
    assert not hung(rhythm, now + 31) and not hung(rhythm, now + 34)
    assert hung(rhythm, now + 80)


def test_start_up_and_compilation_are_exempt() -> None:
    assert allowed_s(Rhythm(), LIMITS) is None
    rhythm = Rhythm()
    for step, seconds in ((1, 100.0), (2, 400.0), (3, 401.0), (4, 402.0)):
        rhythm = observe(rhythm, line(seconds, step))
        assert allowed_s(rhythm, LIMITS) is None
    assert not hung(rhythm, 5000)


def test_a_pause_that_the_job_makes_every_so_often_is_learned() -> None:
    rhythm, now = run(303, 1.0, pause_every=100, pause_s=80.0)
    assert hung(rhythm, now + 16)  # not at a pause
    rhythm, now = run(300, 1.0, pause_every=100, pause_s=80.0)
    now -= 80.0  # the silence after step 300 has only begun
    assert not hung(rhythm, now + 100)
    assert hung(rhythm, now + 150)


def test_an_announced_pause_is_no_hang() -> None:
    rhythm, now = run(33, 0.5)
    rhythm = observe(rhythm, line(now + 0.1, 33, PAUSE))
    assert not hung(rhythm, now + 100)
    assert hung(rhythm, now + 400)
    rhythm = observe(rhythm, line(now + 30, 34))
    assert hung(rhythm, now + 30 + 13)  # only that one pause was excused


def announcing(steps: int, step_s: float, *, every: int, pause_s: float, late_s: float = 0.1) -> tuple[Rhythm, float]:
    """A job that says so before each pause, or whose line of it comes late."""
    rhythm, now = Rhythm(), 100.0
    for step in range(1, steps + 1):
        now += step_s
        rhythm = observe(rhythm, line(now, step))
        if step % every == 0:
            evidence = replace(line(now + late_s, step, PAUSE), text="saving checkpoint")
            rhythm, now = observe(rhythm, evidence), now + pause_s
    return rhythm, now - pause_s


def test_pauses_that_are_announced_are_not_expected_where_nothing_was_said() -> None:
    told, now = announcing(1205, 1.0, every=100, pause_s=60.0)
    assert announces(told) and hung(observe(told, line(now + 66, 1206)), now + 66 + 13)
    rhythm, now = announcing(1200, 1.0, every=100, pause_s=60.0)
    assert not hung(rhythm, now + 61) and pauses_alike(rhythm) == 11
    unsaid = replace(rhythm, announced_at=None)
    assert not pause_due(unsaid) and hung(unsaid, now + 16)


def test_a_line_that_came_with_the_end_of_its_pause_announced_nothing() -> None:
    """Output that is held in a buffer: where nothing was said yet, a pause may be under way."""
    rhythm, now = announcing(1200, 1.0, every=100, pause_s=60.0, late_s=59.9)
    unsaid = replace(rhythm, announced_at=None)
    assert not announces(rhythm) and pause_due(unsaid) and not hung(unsaid, now + 60)


def test_announced_pauses_are_learned_also_where_they_take_no_longer_than_a_step() -> None:
    few, now = announcing(400, 1.0, every=100, pause_s=2.0)
    assert not hung(few, now + 100) and pauses_alike(few) == 0, "the same words may announce a long one"
    many, now = announcing(1400, 1.0, every=100, pause_s=2.0)
    assert pauses_alike(many) == 3 and not hung(many, now + 100) and hung(many, now + 130)


def test_regular_pauses_that_are_announced_make_no_job_irregular() -> None:
    rhythm, now = announcing(1010, 1.0, every=10, pause_s=30.0)
    rhythm = observe(rhythm, line(now + 31, 1011))
    assert hung(rhythm, now + 31 + 13)


def test_a_first_pause_at_a_round_step_is_excused() -> None:
    rhythm, now = run(500, 1.0)
    assert not hung(rhythm, now + 60)
    rhythm, now = run(507, 1.0)
    assert hung(rhythm, now + 60)


def test_other_ranks_saying_the_same_step_change_nothing() -> None:
    rhythm, now = run(33, 0.5)
    assert observe(rhythm, line(now + 5, 33)) == rhythm


def test_a_step_that_goes_back_begins_anew() -> None:
    rhythm, now = run(33, 0.5)
    rhythm = observe(rhythm, line(now + 300, 10))
    assert rhythm.gaps == ()
    assert allowed_s(rhythm, LIMITS) is None


@pytest.mark.parametrize(("factor", "steps", "persistent"), [(1.5, 20, False), (1.5, 60, True), (1.05, 60, None)])
def test_slower_steps_transient_and_persistent(factor: float, steps: int, persistent: bool | None) -> None:
    rhythm, now = Rhythm(), 0.0
    for step in range(1, 160 + steps):
        took = 1.0 + 0.02 * (step % 5) if step < 160 else factor * (1.0 + 0.02 * (step % 5))
        now += took
        rhythm = observe(rhythm, line(now, step, step_time_s=took))
    found = slowed(rhythm, after(now))
    if persistent is None:
        assert found is None
        return
    assert found is not None
    assert found.data["persistent"] is persistent
    assert found.data["ratio"] == pytest.approx(factor, rel=0.1)


def test_variable_sequence_lengths_do_not_alarm() -> None:
    rhythm, now = Rhythm(), 0.0
    for step in range(1, 400):
        took = 0.5 + (step * 7919 % 13) / 10  # 0.5 to 1.7 s, without a trend
        now += took
        rhythm = observe(rhythm, line(now, step, step_time_s=took))
        assert slowed(rhythm, after(now)) is None
