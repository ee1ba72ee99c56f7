"""Which drains cost budget: those done, those under way, and no others."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from made_records import AT, fleet, later, plan, step

from sentinel.engine.ledger import Ledger, LedgerRow
from sentinel.engine.pending_drains import stops_of, unfinished, with_pending_drains
from sentinel.model.records import Outcome, Result, Step, StepKind
from sentinel.policy import SILENCE, Stop

PLAN = plan(step(StepKind.DRAIN, node="n1"))


def row(result: Result, reason: str = "", at_s: float = -60.0) -> LedgerRow:
    this = step(StepKind.DRAIN, node="n1")
    return LedgerRow("inc1", this, later(at_s), Outcome(this, result, later(at_s), reason))


def test_drain_that_was_done_costs_once() -> None:
    seen, hour = with_pending_drains(fleet(4), [PLAN], [row(Result.DONE)], AT)
    assert hour == [later(-60.0)] and not seen.nodes["n1"].drained


def test_drained_node_that_is_set_down_later_by_the_same_incident_costs_once() -> None:
    """Its last job waited for it; taking it out of service was done before."""
    down = step(StepKind.DOWN, node="n1")
    rows = [row(Result.DONE), LedgerRow("inc1", down, later(-20.0), Outcome(down, Result.DONE, later(-20.0)))]
    _, hour = with_pending_drains(fleet(4), [PLAN], rows, AT)
    assert hour == [later(-60.0)]


def test_drain_under_way_counts_and_shows() -> None:
    seen, hour = with_pending_drains(fleet(4), [PLAN], [], AT)
    assert hour == [AT] and seen.nodes["n1"].drained


def test_a_drain_that_slurmctld_forgot_counts_while_it_is_done_again() -> None:
    again = plan(dataclasses.replace(step(StepKind.DRAIN, node="n1"), tries=1))
    seen, hour = with_pending_drains(fleet(4), [again], [row(Result.DONE)], AT)
    assert hour == [later(-60.0)] and seen.nodes["n1"].drained


def test_what_waited_for_hours_and_goes_on_now_counts_although_its_plan_is_old() -> None:
    """Several that wait for one budget are judged with one snapshot: the first must cost it."""
    now, both = later(2 * 3600.0), [plan(step(StepKind.DRAIN, node="n1"), STOP)]
    seen, hour = with_pending_drains(fleet(4), both, [], now, unfinished(both, Ledger()))
    assert hour == [now] and seen.nodes["n1"].drained
    assert stops_of(both, [], now, unfinished(both, Ledger())) == (Stop(101, now, True),)
    done = Ledger([row(Result.DONE), stopped(Result.DONE)])
    assert unfinished(both, done) == frozenset()


def test_drain_that_failed_costs_nothing() -> None:
    seen, hour = with_pending_drains(fleet(4), [PLAN], [row(Result.FAILED, "Slurm does not know node n1")], AT)
    assert hour == [] and not seen.nodes["n1"].drained


def test_somebody_elses_drain_costs_nothing() -> None:
    _, hour = with_pending_drains(fleet(4), [PLAN], [row(Result.DONE, "was drained by somebody else already")], AT)
    assert hour == []


STOP = Step(StepKind.REQUEUE_HOLD, job=101, attempt=0, data={"ground": SILENCE, "silent_after": 7})


def stopped(result: Result, ground: str = SILENCE) -> LedgerRow:
    this = Step(StepKind.REQUEUE_HOLD, job=101, attempt=0, data={"ground": ground} if ground else {})
    return LedgerRow("inc1", this, later(-60.0), Outcome(this, result, later(-60.0)))


def test_stop_that_was_done_or_is_under_way_counts_once_with_its_ground() -> None:
    assert stops_of([plan(STOP)], [], AT) == (Stop(101, AT, True),)
    assert stops_of([plan(STOP)], [stopped(Result.DONE)], AT) == (Stop(101, later(-60.0), True),)
    assert stops_of([], [stopped(Result.DONE, "")], AT) == (Stop(101, later(-60.0), False),)


def test_stop_that_failed_or_was_only_observed_or_is_long_ago_does_not_count() -> None:
    assert stops_of([plan(STOP)], [stopped(Result.FAILED)], AT) == ()
    assert stops_of([plan(STOP, observe_only=True)], [], AT) == ()
    assert stops_of([plan(STOP)], [], later(3601.0)) == ()


def test_two_incidents_of_one_attempt_stop_it_once() -> None:
    assert len(stops_of([plan(STOP), plan(STOP, incident="inc2")], [], AT)) == 1


def test_the_hour_counts_from_when_a_step_was_done_and_not_from_when_it_was_asked_for() -> None:
    """slurmctld did not answer for two hours: what it then takes within a minute is as much as if it were asked for then."""
    rows = [dataclasses.replace(made, intended_at=later(-7200.0)) for made in (row(Result.DONE), stopped(Result.DONE))]
    ledger, since = Ledger(rows), later(-3600.0)
    _, hour = with_pending_drains(fleet(4), [], ledger.drains(since), AT)
    assert hour == [later(-60.0)]
    assert stops_of([], ledger.stops(since), AT) == (Stop(101, later(-60.0), True),)
    ledger.forget(AT, (), (), after=timedelta(hours=1))
    assert len(ledger.drains(since)) == 1 and len(ledger.stops(since)) == 1
    assert ledger.drains(AT) == [] and ledger.stops(AT) == []
