"""What a daemon wrote whose host's clock was months ahead counts from now on, and does not wait until they are over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from in_memory.direct_store import DirectStore
from made_records import incident, plan, step, verdict

from sentinel.model import changes
from sentinel.model.records import Delivery, IncidentState, Notice, Outcome, Result, StepKind, Wait
from sentinel.model.stored import JUDGED_UNTIL, Stored

NOW = datetime.now(UTC)
AHEAD = NOW + timedelta(days=400)
DRAIN = step(StepKind.DRAIN, node="n1")


@pytest.fixture
def ahead(store: DirectStore) -> Iterator[DirectStore]:
    """A store in which a daemon drained a node, and told nobody yet, 400 days ahead."""
    _drained(store, AHEAD)
    yield store


def _drained(store: DirectStore, at: datetime) -> None:
    found = dataclasses.replace(incident(state=IncidentState.WATCHING), opened_at=at, updated_at=at)
    waits = (Wait("drain-budget", at, "4 drains in the last hour.", ("drain n2",), at + timedelta(hours=1)),)
    made = dataclasses.replace(plan(DRAIN), at=at, waits=waits)
    told = Notice("note1", found.id, at, "a GPU is lost", "", {}, delivery=Delivery(tries=1, next_at=at))
    store.commit(
        [
            changes.IncidentChanged(found),
            changes.VerdictReached(found.id, verdict(), at),
            changes.PlanMade(made),
            changes.StepIntended(made, DRAIN, at),
            changes.StepEnded(found.id, Outcome(DRAIN, Result.DONE, at)),
            changes.NoticeChanged(told, "ops", delivered=False),
            changes.SettingChanged(JUDGED_UNTIL, at.isoformat()),
            changes.SettingChanged(
                "tests", {"n1": ["level 2", at.isoformat().replace("+00:00", "Z"), "2028-13-01T00:00:00Z"]}
            ),
        ]
    )


def _times(stored: Stored) -> list[datetime]:
    ((notice, _),) = stored.undelivered
    (row,), (made,), (found,) = stored.steps, stored.plans.values(), stored.incidents
    assert row.outcome is not None
    return [row.intended_at, row.outcome.at, made.at, found.opened_at, found.updated_at, notice.at]


def _loaded(store: DirectStore) -> Stored:
    return store.load(month=NOW - timedelta(days=30), lately=NOW - timedelta(minutes=1), evidence_ids=10)


def test_what_is_dated_later_than_now_is_dated_now(ahead: DirectStore) -> None:
    ahead.set_back(NOW, AHEAD - NOW)
    stored = _loaded(ahead)
    assert _times(stored) == [NOW] * 6
    (wait,) = stored.plans["inc1"].waits
    assert (wait.since, wait.until) == (NOW, NOW)
    assert stored.undelivered[0][0].delivery.next_at is None
    assert stored.undelivered[0][0].delivery.tries == 1
    assert stored.settings[JUDGED_UNTIL] == NOW.isoformat()
    assert stored.settings["tests"] == {"n1": ["level 2", NOW.isoformat(), "2028-13-01T00:00:00Z"]}


def test_what_was_done_one_after_the_other_stays_so(store: DirectStore) -> None:
    """The ledger is read in the order of its times: which restart was the last one, for one."""
    drains = [step(StepKind.DRAIN, node=f"n{number}") for number in range(9)]
    made = dataclasses.replace(plan(*drains), at=AHEAD - timedelta(hours=9))
    at = [AHEAD - timedelta(hours=8 - number) for number in range(9)]
    store.commit([changes.PlanMade(made)])
    store.commit([changes.StepIntended(made, drain, then) for drain, then in zip(drains, at, strict=True)])
    store.set_back(NOW, AHEAD - NOW)
    rows = _loaded(store).steps
    assert [row.step.node for row in rows] == [drain.node for drain in drains]
    assert [row.intended_at for row in rows] == [NOW - timedelta(hours=8 - number) for number in range(9)]


def test_nothing_is_dated_later_than_now(ahead: DirectStore) -> None:
    ahead.set_back(NOW, AHEAD - NOW - timedelta(hours=1))
    assert _times(_loaded(ahead)) == [NOW] * 6


def test_by_what_the_next_daemon_knows_it_nothing_is_ahead_any_more(store: DirectStore) -> None:
    """Of a clock that was ahead by a day the daemon would start anew again and again."""
    ahead = timedelta(days=1, seconds=-5)
    _drained(store, NOW + ahead)
    store.set_back(NOW, ahead)
    assert _loaded(store).newest(timedelta(0)) == NOW


def test_what_is_past_stays(store: DirectStore) -> None:
    at = NOW - timedelta(hours=1)
    _drained(store, at)
    before = _loaded(store)
    store.set_back(NOW, AHEAD - NOW)
    assert _loaded(store) == before
    assert _times(before) == [at] * 6
