"""After an absence a new judgement waits for the agents' backlog: for all of the job's nodes, or for a while."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from made_records import evidence
from shipped import shipped_rules

from sentinel.config.settings import Settings
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine, backlog
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import EvidenceReceived, Started, TimerDue
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.model.changes import SettingChanged
from sentinel.model.records import Incident, Kind
from sentinel.model.stored import JUDGED_UNTIL, Stored, not_judged_since

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
INCIDENT = Incident("i1", AT, AT, nodes=("n1", "n2"))
RULES = shipped_rules()


def later(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


@pytest.fixture
def state() -> State:
    settings, view = Settings(), ClusterView()
    return State(rules=RULES, settings=settings, cluster=view, onsets=OnsetTracker(view, settings.judgement))


def housekeeping(state: State, at: datetime) -> Transition:
    return Engine(state).handle(TimerDue(at, HOUSEKEEPING))


def beat(state: State, node: str, at: datetime, pending: object) -> None:
    Engine(state).handle(HeartbeatReceived(at, node, now_s=1.0, spool={"pending": pending}))


def started_after(state: State, seconds: float) -> None:
    noted = (later(-seconds) - state.window).isoformat()
    Engine(state).handle(Started(AT, Stored(settings={JUDGED_UNTIL: noted})))


def test_nothing_is_waited_for_without_an_absence(state: State) -> None:
    housekeeping(state, AT)
    housekeeping(state, later(10.0))
    assert backlog.is_in(state, INCIDENT, later(10.0))


def test_a_first_start_has_nothing_to_wait_for(state: State) -> None:
    Engine(state).handle(Started(AT, Stored()))
    assert backlog.is_in(state, INCIDENT, AT)


@pytest.mark.parametrize(("away_s", "waits_s"), [(3.0, 3.0), (600.0, 10.0)])
def test_waits_as_long_as_agents_may_pause(state: State, away_s: float, waits_s: float) -> None:
    started_after(state, away_s)
    assert not backlog.is_in(state, INCIDENT, later(waits_s - 0.1))
    assert backlog.is_in(state, INCIDENT, later(waits_s))


def test_goes_on_when_all_agents_of_the_nodes_have_nothing_unsent(state: State) -> None:
    started_after(state, 600.0)
    beat(state, "n1", later(1.0), 0)
    beat(state, "n2", later(1.0), 7)
    assert not backlog.is_in(state, INCIDENT, later(1.0))
    beat(state, "n2", later(2.0), 0)
    assert backlog.is_in(state, INCIDENT, later(2.0))


@pytest.mark.parametrize("pending", [None, "0", True, [], -1])
def test_what_an_agent_does_not_say_is_not_taken_for_nothing(state: State, pending: object) -> None:
    started_after(state, 600.0)
    beat(state, "n1", later(1.0), pending)
    beat(state, "n2", later(1.0), 0)
    assert not backlog.is_in(state, INCIDENT, later(1.0))


def test_a_daemon_that_was_stopped_notices_it_with_the_next_event(state: State) -> None:
    housekeeping(state, AT)
    beat(state, "n1", later(300.0), 5)
    assert state.absence is not None and state.absence.since == AT
    assert not backlog.is_in(state, INCIDENT, later(301.0))


def test_the_store_is_told_up_to_when_all_is_judged(state: State) -> None:
    (noted,) = [c for c in housekeeping(state, AT).changes if isinstance(c, SettingChanged)]
    assert noted == SettingChanged(JUDGED_UNTIL, (AT - state.window).isoformat())
    assert not_judged_since({noted.name: noted.value}, later(600.0)) == AT - state.window
    assert not_judged_since({}, later(600.0)) == later(600.0)


def test_late_news_is_looked_for_by_the_next_daemon_and_makes_no_absence(state: State) -> None:
    """The daemon lived when the agent, cut off for an hour, sent it; a node's clock may be years off, too."""
    noted = {c.name: c.value for c in housekeeping(state, AT).changes if isinstance(c, SettingChanged)}
    old = evidence(Kind.XID, node="n1", at_s=-3600.0, data={"xid": 79}, text="NVRM: Xid 79")
    ancient = dataclasses.replace(old, id="ancient", seen_at=AT - timedelta(days=4000))
    for item, since in ((old, later(-3600.0)), (ancient, later(1.0) - timedelta(days=1))):
        out = Engine(state).handle(EvidenceReceived(later(1.0), (item,)))
        noted |= {c.name: c.value for c in out.changes if isinstance(c, SettingChanged)}
        assert not_judged_since(noted, later(600.0)) == since
    Engine(state).handle(Started(later(5.0), Stored(settings=noted)))
    assert state.absence is not None and state.absence.since >= AT
    state.judging.clear()
    noted |= {c.name: c.value for c in housekeeping(state, later(10.0)).changes if isinstance(c, SettingChanged)}
    assert not_judged_since(noted, later(600.0)) == later(10.0) - state.window


def test_what_waits_for_the_backlog_is_not_judged_yet(state: State) -> None:
    """Killed again while it waits, the next daemon looks back as far as this one did."""
    started_after(state, 600.0)
    (noted,) = [c for c in housekeeping(state, later(5.0)).changes if isinstance(c, SettingChanged)]
    assert noted.value == (later(-600.0) - state.window).isoformat()


def test_what_slurm_did_not_tell_is_not_judged_yet(state: State) -> None:
    """Killed while slurmctld is away, the next daemon looks for jobs that ended since this one saw them last."""
    housekeeping(state, AT)
    state.blind_since = later(5.0)
    (noted,) = [c for c in housekeeping(state, later(10.0)).changes if isinstance(c, SettingChanged)]
    assert noted.value == (later(5.0) - state.window).isoformat()


@pytest.mark.parametrize(("blind_s", "since_s"), [(0.0, -600.0), (10.0, -600.0), (10.1, 10.1)])
def test_an_absence_goes_on_if_slurm_is_away_before_its_backlog_is_in(
    state: State, blind_s: float, since_s: float
) -> None:
    started_after(state, 600.0)
    backlog.slurm_is_back(state, later(blind_s), later(60.0))
    assert state.absence is not None and state.absence.since == later(since_s)


def test_after_a_long_absence_what_was_planned_for_a_node_waits_for_its_agent(state: State) -> None:
    """It tells of a reboot; the store may be an older copy of itself, and the plan carried out and settled since."""
    started_after(state, 600.0)
    assert backlog.may_be_outdated(state, ("n1",), AT)
    beat(state, "n1", later(1.0), 0)
    assert not backlog.may_be_outdated(state, ("n1",), later(1.0))
    assert backlog.may_be_outdated(state, ("n1", "n2"), later(9.9))
    assert not backlog.may_be_outdated(state, ("n1", "n2"), later(10.0))


def test_where_another_daemon_takes_over_nothing_waits_for_agents(state: State) -> None:
    started_after(state, 8.0)
    assert not backlog.may_be_outdated(state, ("n1",), AT)
