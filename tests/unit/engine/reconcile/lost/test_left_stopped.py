"""Which waiting jobs may have been stopped by a daemon of which the store, an older copy of itself, tells nothing."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import later

from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine
from sentinel.engine.events import Started
from sentinel.engine.loading import state_of
from sentinel.engine.reconcile import past_restarts
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged
from sentinel.model.records import JobView
from sentinel.model.stored import JUDGED_UNTIL, Stored

MONTH_S = timedelta(days=30).total_seconds()
GROUP = timedelta(seconds=SETTINGS.judgement.group_s)


def begun(*, away_s: float | None = 60.0, at_s: float = 0.0, left: object = None) -> State:
    """A daemon that began ``at_s``, so long after its store's last word; None: the store has none."""
    noted = {} if away_s is None else {JUDGED_UNTIL: (later(at_s - away_s) - GROUP).isoformat()}
    stored = Stored(settings={**noted, past_restarts.LEFT_STOPPED: left})
    state = state_of(stored, ClusterView(), rules=RULES, settings=SETTINGS, receivers=("ops",))
    Engine(state).handle(Started(later(at_s), stored))
    return state


def put_off(requeued_s: float, ahead_s: float = MONTH_S) -> JobView:
    at = later(requeued_s)
    return JobView(7, "pending", restarts=1, submitted_at=at, eligible_at=at + timedelta(seconds=2.0 + ahead_s))


def left(state: State, job: JobView) -> tuple[bool, list[SettingChanged]]:
    out = Transition()
    found = past_restarts.left_put_off(state, out, [job])
    return found == [job], [change for change in out.changes if isinstance(change, SettingChanged)]


@pytest.mark.parametrize(
    ("away_s", "requeued_s", "ahead_s", "is_left"),
    [
        (60.0, -30.0, MONTH_S, True),
        (60.0, -62.0, MONTH_S, True),  # the clocks of two hosts
        (60.0, -90.0, MONTH_S, False),  # whatever was asked by then is in the store
        (60.0, 30.0, MONTH_S, False),  # this daemon would know
        (60.0, -30.0, MONTH_S + 60.0, False),  # put off when this daemon was there
        (60.0, -30.0, 2 * MONTH_S, False),
        (None, -30.0, MONTH_S, False),  # a new store: nobody knows
    ],
)
def test_left_is_what_was_put_off_between_the_last_word_of_the_store_and_now(
    away_s: float | None, requeued_s: float, ahead_s: float, is_left: bool
) -> None:
    found, _ = left(begun(away_s=away_s), put_off(requeued_s, ahead_s))
    assert found is is_left


@pytest.mark.parametrize(("requeued_s", "is_left"), [(-30.0, True), (-90.0, False), (30.0, False)])
def test_a_hold_of_a_requeue_that_the_store_would_know_of_is_a_persons(requeued_s: float, is_left: bool) -> None:
    held = dataclasses.replace(put_off(requeued_s), held=True, requeue_held=True, eligible_at=None)
    assert past_restarts.is_forgotten(begun(), held) is is_left


def test_a_job_that_was_found_is_known_to_the_next_daemon_whose_store_has_a_later_last_word() -> None:
    """Its restart may wait for a node or for an approval for long."""
    job = put_off(-30.0)
    found, (kept,) = left(begun(), job)
    assert found and kept == SettingChanged(past_restarts.LEFT_STOPPED, [(7, 1)])
    next_one = begun(at_s=3600.0, left=[[7, 1]])
    assert left(next_one, job) == (True, [])
    assert left(next_one, dataclasses.replace(job, restarts=2)) == (
        False,
        [SettingChanged(past_restarts.LEFT_STOPPED, None)],
    )
    assert not left(begun(at_s=3600.0), job)[0]
