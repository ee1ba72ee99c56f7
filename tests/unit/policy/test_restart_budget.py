"""How often a job is restarted: by the steps that it gained; not known never counts against it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from made_records import AT, verdict
from made_situations import RESTART, WIDE, decide, kinds, past

from sentinel.model.intent import Intent
from sentinel.model.records import Cause, Restart, Scope, StepKind
from sentinel.policy import PastRestart

RESUMED_AT_250 = PastRestart(AT - timedelta(hours=1), Cause.USER_CODE, 100, 250)


@pytest.mark.parametrize(
    ("restarts", "last_step", "held"),
    [
        ((), 250, False),
        ((past(250),), 250, False),
        ((past(250), past(250)), 250, True),  # a third time at the same step
        ((past(250), past(240)), 250, True),  # not further than the first
        ((past(250), past(240)), 251, False),
        ((past(250), past(None), past(40), past(None)), 40, True),  # in between it printed nothing
        ((past(250), past(250)), 251, False),
        ((past(250), past(250)), 249, True),  # going back is no gain
        ((past(100), past(200), past(250)), 300, False),
        ((past(250), past(250)), None, True),  # watched, and it printed no step
        ((past(None), past(None)), 250, False),
        ((past(250, Cause.NODE_FAILURE), past(250)), 250, False),  # another cause in between
        ((past(250), past(250, Cause.NODE_FAILURE)), 250, False),
        (
            (past(250), past(250, Cause.NODE_FAILURE)) * 2,
            250,
            True,
        ),  # different causes, and nothing gained in five attempts
        ((past(100), *(past(250), past(250, Cause.NODE_FAILURE)) * 2)[:4], 250, False),  # the first of them gained
    ],
)
def test_restart_budget_is_counted_in_steps_gained(
    restarts: tuple[PastRestart, ...], last_step: int | None, held: bool
) -> None:
    plan = decide(verdict(suspect=("n2",)), restarts=restarts, last_step=last_step)
    assert (kinds(plan) == [StepKind.HOLD]) is held
    assert held or kinds(plan) == RESTART
    assert ("without a step gained" in plan.explanation) is held


@pytest.mark.parametrize(("most", "retries", "held"), [(3, None, True), (4, None, False), (50, 3, True), (2, 9, True)])
def test_upper_bound_of_restarts_is_the_smaller_of_site_and_comment(most: int, retries: int | None, held: bool) -> None:
    restarts = tuple(past(step) for step in (100, 200, 300))
    plan = decide(
        verdict(suspect=("n2",)),
        restarts=restarts,
        last_step=400,
        intent=Intent(restart=True, retries=retries),
        limits=dataclasses.replace(WIDE, restarts_per_job=most),
    )
    assert (kinds(plan) == [StepKind.HOLD]) is held
    assert ("Restarted 3 times" in plan.explanation) is held


@pytest.mark.parametrize(
    ("how", "confidence", "held"),
    [
        ({"intent": Intent(restart=True, retry_errors=True)}, 0.95, False),
        ({}, 0.95, True),  # its user did not ask for it
        ({}, 0.6, True),
        ({}, 0.59, False),  # nobody is sure that it was the program
        ({"intent": Intent(restart=True, retry_errors=True), "last_step": None}, 0.95, True),  # it came at once
        ({"intent": Intent(restart=True, retry_errors=True), "restarts": (RESUMED_AT_250,)}, 0.95, True),
        ({"intent": Intent(restart=True, retry_errors=True), "observed": False}, 0.95, True),
        ({"last_step": None}, 0.3, True),
    ],
)
def test_an_error_of_the_program_is_retried_if_its_user_asks_or_nobody_is_sure(
    how: dict[str, Any], confidence: float, held: bool
) -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, confidence=confidence)
    assert kinds(decide(judged, **how)) == ([StepKind.HOLD] if held else RESTART)


def test_an_error_that_comes_back_without_a_step_gained_is_held() -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, confidence=0.95)
    past_errors = tuple(dataclasses.replace(past(250), cause=Cause.USER_CODE, resumed_step=200) for _ in range(2))
    plan = decide(judged, restarts=past_errors, intent=Intent(restart=True, retry_errors=True))
    assert kinds(plan) == [StepKind.HOLD]
    assert "without a step gained" in plan.explanation


def test_a_later_checkpoint_that_was_resumed_from_before_is_nothing_gained() -> None:
    """40 is complete and fails, 30 is taken, 40 is made again, and so on."""
    there_and_back = [past(40, cause=Cause.UNKNOWN, resumed=40 if number % 2 == 0 else 30) for number in range(4)]
    plan = decide(verdict(Cause.UNKNOWN), restarts=tuple(there_and_back), last_step=40)
    assert kinds(plan) == [StepKind.HOLD] and "without a step gained" in plan.explanation


def test_a_checkpoint_that_is_left_out_is_a_reason_to_try_once_more() -> None:
    tried = past(65, cause=Cause.UNKNOWN, resumed=60), past(None, cause=Cause.UNKNOWN, resumed=60)
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=tried, last_step=None)) == [StepKind.HOLD]
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=tried, last_step=None, steps_back=True)) == RESTART
    often = (*tried, past(None, cause=Cause.UNKNOWN, resumed=50), past(None, cause=Cause.UNKNOWN, resumed=50))
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=often, last_step=None, steps_back=True)) == [StepKind.HOLD]


def unseen(step_before: int | None, resumed: int | None = None) -> PastRestart:
    return dataclasses.replace(past(step_before, resumed=resumed), observed=False)


@pytest.mark.parametrize(
    ("restarts", "how"),
    [
        ((past(250), past(250)), {"last_step": None, "observed": False}),
        ((past(250), past(250)), {"last_step": 250, "observed": False}),  # the daemon was away: it may have got further
        ((past(250), unseen(250)), {"last_step": 250}),
        ((past(250, resumed=100), past(250, resumed=200)), {"last_step": 250}),  # it left a later checkpoint
    ],
)
def test_not_known_whether_it_gained_never_counts_against_a_job(
    restarts: tuple[PastRestart, ...], how: dict[str, Any]
) -> None:
    assert kinds(decide(verdict(suspect=("n2",)), restarts=restarts, **how)) == RESTART


@pytest.mark.parametrize(
    ("later", "held"),
    [
        ({"observed": False}, True),  # the daemon was started again since
        ({"limits": dataclasses.replace(WIDE, restarts_without_progress=9)}, True),
        ({"restarts": ()}, True),
        ({"last_step": 251}, False),  # it had got further, as was read late
    ],
)
def test_a_job_that_is_held_stays_so_until_more_is_known_of_its_attempt(later: dict[str, Any], held: bool) -> None:
    judged = verdict(suspect=("n2",))
    before = decide(judged, restarts=(past(250), past(250)), last_step=250)
    (hold,) = before.steps
    again = {"restarts": (past(250), past(250)), "last_step": 250, "held": hold, **later}
    assert kinds(decide(judged, **again)) == ([StepKind.HOLD] if held else RESTART)
    advised = dataclasses.replace(judged, advice="Take n2 out.")
    assert kinds(decide(advised, **again | {"observed": False})) == RESTART, "another advice is judged anew"
