"""The daemon's clock goes on steadily while somebody sets that of its host."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sentinel.daemon.clock import SteadyClock
from sentinel.model.records import Outcome, Plan, Result, Step, StepKind
from sentinel.model.stored import JUDGED_UNTIL, Stored, StoredStep

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


class Host:
    def __init__(self) -> None:
        self.passed_s = self.off_s = 0.0
        self.clock = SteadyClock(lambda: later(self.passed_s + self.off_s), lambda: self.passed_s)

    def after(self, seconds: float, *, set_to_s: float | None = None) -> datetime:
        self.passed_s += seconds
        self.off_s = self.off_s if set_to_s is None else set_to_s
        return self.clock.now()


def test_it_is_the_hosts() -> None:
    host = Host()
    assert [host.after(0.0), host.after(0.5), host.after(3600.0)] == [AT, later(0.5), later(3600.5)]


@pytest.mark.parametrize(("set_to_s", "rate", "agrees_after_s"), [(-300.0, 0.5, 600.0), (300.0, 1.25, 1200.0)])
def test_it_goes_slower_or_faster_until_it_agrees_with_a_host_that_was_set(
    set_to_s: float, rate: float, agrees_after_s: float
) -> None:
    host = Host()
    assert host.after(0.0, set_to_s=set_to_s) == AT
    assert host.after(agrees_after_s / 2) == later(agrees_after_s / 2 * rate)
    assert host.after(agrees_after_s / 2) == later(agrees_after_s + set_to_s)
    assert host.after(10.0) == later(agrees_after_s + set_to_s + 10.0)


@pytest.mark.parametrize(("newest_s", "begins_s"), [(-5.0, 0.0), (3600.0, 3600.0), (90_000.0, 0.0)])
def test_it_goes_on_from_what_was_written_down_unless_that_is_days_ahead(newest_s: float, begins_s: float) -> None:
    host = Host()
    host.clock.go_on_from(later(newest_s))
    assert host.after(0.0) == later(begins_s)
    assert host.after(10.0) == later(begins_s + (10.0 if begins_s == 0.0 else 5.0))


def test_the_newest_time_in_the_store_is_that_of_a_plan_a_step_or_what_was_judged() -> None:
    window, step = timedelta(seconds=60), Step(StepKind.DRAIN, node="n1")
    assert Stored().newest(window) is None
    assert Stored(settings={JUDGED_UNTIL: AT.isoformat()}).newest(window) == later(60.0)
    steps = (
        StoredStep("i1", step, later(70.0), Outcome(step, Result.DONE, later(80.0))),
        StoredStep("i1", step, later(75.0), None),
    )
    known = Stored(steps=steps, settings={JUDGED_UNTIL: AT.isoformat()})
    assert known.newest(window) == later(80.0)
    plan = Plan(id="p1", incident="i1", at=later(90.0))
    assert Stored(steps=steps, plans={"i1": plan}).newest(window) == later(90.0)
