"""A test that is due: ordered once, awaited, told and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import evidence, plan, step

from sentinel.classify import NodeScore
from sentinel.config.settings import Diagnostics, Mode, Modes
from sentinel.correlate.incidents import new
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine, Transition
from sentinel.engine.diagnostics.due_tests import (
    DiagnosticRecord,
    nodes_with_failed_diagnostic,
    read,
)
from sentinel.engine.diagnostics.state import KEPT
from sentinel.engine.diagnostics.turns import DIAGNOSTICS
from sentinel.engine.events import DiagnosticEnded, Event, FleetObserved, ScoresRead, TimerDue
from sentinel.engine.loading import state_of
from sentinel.engine.transition import ReadScores, RunDiagnostic
from sentinel.engine.watch.events import NodeHeard
from sentinel.model.changes import EvidenceAdded, SettingChanged
from sentinel.model.records import (
    Evidence,
    Fleet,
    IncidentState,
    Kind,
    NodeView,
    StepKind,
)
from sentinel.model.stored import Stored

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ROTATION = Diagnostics(idle_level=2, idle_fraction=0.25, idle_period_s=7 * 86400.0)


ACT = Modes(default=Mode(drain="act"))


class Site:
    """An engine with idle nodes; agents answer when they are told to. ``suspected``: since when, by node."""

    def __init__(self, settings: Diagnostics, count: int = 4, kept: Any = None) -> None:
        self.settings = replace(SETTINGS, diagnostics=settings, modes=ACT)
        self.count, self.at, self.kept = count, NOW, kept
        self.suspected: dict[str, datetime] = {}
        self.asked: list[RunDiagnostic] = []
        self.observed: list[Evidence] = []
        self.begin()

    def begin(self) -> None:
        """The daemon starts, with what it kept."""
        stored = Stored(settings={KEPT: self.kept} if self.kept else {})
        self.engine = Engine(state_of(stored, ClusterView(), rules=RULES, settings=self.settings))
        nodes = {name: NodeView(name, "idle", gpus=8) for name in (f"n{number:03d}" for number in range(self.count))}
        self.engine.handle(FleetObserved(self.at, Fleet(at=self.at, nodes=nodes, jobs={})))
        for name in nodes:
            if name != "n003":
                self.engine.handle(NodeHeard(self.at, name))

    def handle(self, event: Event) -> Transition:
        out = self.engine.handle(event)
        for change in out.changes:
            if isinstance(change, SettingChanged):
                self.kept = change.value
            if isinstance(change, EvidenceAdded):
                assert not self.kept or "until" not in self.kept["n001"], "it is known before it can be tested again"
                self.observed.extend(change.items)
        for effect in out.effects:
            if isinstance(effect, RunDiagnostic):
                self.asked.append(effect)
            elif isinstance(effect, ReadScores):
                scores = {
                    name: NodeScore(name, 4, 9.0, 0.4, 0.2, 0.9, lemon=True, last_at=since)
                    for name, since in self.suspected.items()
                }
                self.handle(ScoresRead(self.at, scores, {}))
        return out

    def turn(self) -> None:
        self.engine.state.diagnostics.scores_at = None
        self.handle(TimerDue(self.at, DIAGNOSTICS))

    def answers(self, result: str = "pass", evidence: Sequence[Evidence] = ()) -> Transition:
        """The newest order is answered."""
        asked = self.asked[-1]
        return self.handle(DiagnosticEnded(self.at, asked.id, asked.node, result, "", tuple(evidence)))

    def failed_before(self, node: str) -> None:
        """The node's failed diagnostic is in hand."""
        found = new(evidence(Kind.DIAG_FAILED, node=node), job=None, attempt=None, now=NOW)
        self.engine.state.put(found)

    def known(self, node: str) -> DiagnosticRecord:
        return read(self.kept)[node]

    @property
    def nodes(self) -> list[str]:
        return [asked.node for asked in self.asked]


SUSPECTS = Diagnostics(idle_fraction=1.0)


def test_a_suspect_is_tested_once_and_cleared_by_a_pass() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW - timedelta(minutes=1), "n003": NOW}
    site.turn()
    (asked,) = site.asked
    assert (asked.node, asked.level, asked.deadline_s) == ("n001", 2, 900.0), "n003 is not in contact"
    site.turn()
    assert len(site.asked) == 1, "under way"
    (remark,) = site.answers().remarks
    assert (remark.name, remark.fields["level"], remark.fields["result"]) == ("diagnostic-answered", 2, "pass")
    assert site.known("n001") == DiagnosticRecord(passed=NOW, passes={2: NOW}, tried=NOW)
    site.at += DAY
    site.turn()
    assert len(site.asked) == 1, "the same suspicion is answered"
    site.suspected["n001"] = site.at - timedelta(minutes=1)
    site.turn()
    assert len(site.asked) == 2, "a new one is not"


def test_what_came_up_during_the_test_is_not_answered_by_it() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW - DAY}
    site.turn()
    site.at += timedelta(seconds=20)
    site.suspected["n001"] = NOW + timedelta(seconds=10)
    site.turn()
    site.answers()
    later = NOW + timedelta(seconds=10)
    assert site.known("n001") == DiagnosticRecord(suspect=later, passed=NOW, passes={2: NOW}, tried=NOW)


@pytest.mark.parametrize("result", ["fail", "inconclusive", "unknown"])
def test_what_is_no_pass_clears_nobody(result: str) -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.turn()
    site.answers(result)
    assert site.known("n001") == DiagnosticRecord(suspect=NOW, tried=NOW)


def test_what_failed_is_being_judged_before_the_next_turn() -> None:
    site = Site(replace(SUSPECTS, retry_s=1.0))
    site.suspected = {"n001": NOW}
    failed = [evidence(Kind.DIAG_FAILED, node="n001"), evidence(Kind.DIAG_FAILED, node="n002")]
    site.turn()
    site.answers("fail", failed)
    assert site.observed == failed[:1], "a node speaks for itself"
    site.at += timedelta(seconds=5)
    site.turn()
    assert site.nodes == ["n001"]


def test_a_node_that_is_going_out_is_not_tested_again() -> None:
    site = Site(replace(SUSPECTS, retry_s=1.0))
    site.suspected = {"n001": NOW, "n002": NOW}
    site.failed_before("n001")
    site.turn()
    assert site.nodes == ["n002"]


def test_a_node_whose_drain_is_decided_is_not_tested() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW, "n002": NOW}
    site.engine.state.plans["inc1"] = replace(plan(step(StepKind.DRAIN, node="n001")), at=NOW)
    site.turn()
    assert site.nodes == ["n002"]


def test_a_suspicion_is_kept_before_the_node_can_be_tested() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.failed_before("n001")
    site.turn()
    assert read(site.kept) == {"n001": DiagnosticRecord(suspect=NOW)} and site.asked == []


def test_the_pause_begins_when_the_test_is_over() -> None:
    site = Site(replace(SUSPECTS, retry_s=60.0))
    site.suspected = {"n001": NOW}
    site.turn()
    site.at += timedelta(seconds=300)
    site.answers("inconclusive")
    for after_s, asked in ((59, 1), (1, 2)):
        site.at += timedelta(seconds=after_s)
        site.turn()
        assert len(site.asked) == asked


def test_a_failed_diagnostic_is_in_hand_until_its_incident_is_closed() -> None:
    failed = evidence(Kind.DIAG_FAILED, node="n001")
    opened = new(failed, job=None, attempt=None, now=NOW)
    passed = new(evidence(Kind.DIAG_PASSED, node="n002"), job=None, attempt=None, now=NOW)
    assert nodes_with_failed_diagnostic([opened, passed]) == {"n001"}
    assert nodes_with_failed_diagnostic([replace(opened, state=IncidentState.HELD)]) == {"n001"}, "a person has it"
    assert nodes_with_failed_diagnostic([replace(opened, state=IncidentState.CLOSED)]) == set()


def test_a_restarted_daemon_counts_what_its_predecessor_ordered() -> None:
    site = Site(replace(ROTATION, idle_fraction=0.34, settled_s=0.0), count=3)
    site.turn()
    assert site.nodes == ["n000"]
    site.begin()
    site.at += timedelta(seconds=30)
    site.turn()
    assert site.nodes == ["n000"], "one of three is under test"
    site.at += timedelta(seconds=900)
    site.turn()
    assert site.nodes == ["n000", "n001"]


def test_an_answer_that_comes_after_the_restart_is_ordinary_evidence_by_then() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.turn()
    site.begin()
    site.answers()
    assert site.known("n001").passed is None, "the agent's spool brings it"


def test_nothing_while_paused_or_without_a_snapshot() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.engine.state.paused = True
    site.turn()
    site.engine.state.paused, site.engine.state.cluster.fleet = False, None
    site.turn()
    assert site.asked == []


def test_scores_are_read_every_ten_minutes_and_again_when_they_did_not_come() -> None:
    engine = Site(SUSPECTS).engine
    assert any(isinstance(e, ReadScores) for e in engine.handle(TimerDue(NOW, DIAGNOSTICS)).effects)
    again = engine.handle(TimerDue(NOW + timedelta(seconds=15), DIAGNOSTICS)).effects
    assert any(isinstance(e, ReadScores) for e in again), "the first ones did not come"
    engine.handle(ScoresRead(NOW + timedelta(seconds=20), {}, {}))
    assert not engine.handle(TimerDue(NOW + timedelta(minutes=10), DIAGNOSTICS)).effects
    later_on = engine.handle(TimerDue(NOW + timedelta(minutes=11), DIAGNOSTICS)).effects
    assert any(isinstance(e, ReadScores) for e in later_on)
