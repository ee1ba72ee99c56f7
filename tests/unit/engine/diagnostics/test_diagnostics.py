"""Whose turn it is to be tested: suspects first, the rotation within its share and rate, work before both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory.daemon import RULES, SETTINGS
from made_records import evidence, plan, step

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.config.settings import Diagnostics, Mode, Modes
from sentinel.correlate.incidents import new
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine, Transition
from sentinel.engine.diagnostics.due_tests import (
    DiagnosticRecord,
    DueTest,
    add_suspects,
    due_tests,
    has_waiting_job,
    idle_nodes,
    nodes_with_failed_diagnostic,
    read,
    suspects,
    written,
)
from sentinel.engine.diagnostics.state import KEPT
from sentinel.engine.diagnostics.turns import DIAGNOSTICS
from sentinel.engine.events import DiagnosticEnded, Event, FleetObserved, ScoresRead, TimerDue
from sentinel.engine.loading import state_of
from sentinel.engine.transition import ReadScores, RunDiagnostic
from sentinel.engine.watch.events import NodeHeard
from sentinel.model.changes import EvidenceAdded, SettingChanged
from sentinel.model.records import (
    Cause,
    Evidence,
    Fleet,
    Ground,
    IncidentState,
    JobView,
    Kind,
    NodeView,
    Scope,
    StepKind,
    Trust,
    Verdict,
)
from sentinel.model.stored import Stored

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ROTATION = Diagnostics(idle_level=2, idle_fraction=0.25, idle_period_s=7 * 86400.0)
ACT = Modes(default=Mode(drain="act"))


def idle(count: int, since: datetime = NOW - DAY) -> dict[str, datetime]:
    return {f"n{number:03d}": since for number in range(count)}


def names(chosen: list[DueTest]) -> list[str]:
    return [turn.node for turn in chosen]


def test_the_longest_untested_have_their_turn_within_the_share() -> None:
    known = {f"n{number:03d}": DiagnosticRecord(passed=NOW - (8 + number) * DAY) for number in range(8)}
    chosen = due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW)
    assert chosen == [DueTest("n007", 2, False), DueTest("n006", 2, False)]


def test_one_that_passed_is_left_alone_for_its_period() -> None:
    known = {f"n{number:03d}": DiagnosticRecord(passed=NOW - 6 * DAY) for number in range(8)}
    assert due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    assert len(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW + DAY)) == 2


def test_the_rotation_yields_to_waiting_jobs_and_suspects_do_not() -> None:
    known = {"n005": DiagnosticRecord(suspect=NOW - DAY)}
    assert due_tests(known, idle(8), waiting=True, settings=ROTATION, now=NOW) == [DueTest("n005", 2, True)]
    assert names(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW)) == ["n005", "n000"]


def test_what_runs_counts_against_the_share_also_where_it_is_not_idle_any_more() -> None:
    known = {
        "n000": DiagnosticRecord(until=NOW + timedelta(minutes=5)),
        "gone": DiagnosticRecord(until=NOW + timedelta(minutes=5)),
    }
    assert due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    over = NOW + timedelta(minutes=6)
    assert len(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=over)) == 2


def test_a_single_suspect_is_tested_where_the_share_is_less_than_a_node() -> None:
    known = {"n000": DiagnosticRecord(suspect=NOW), "n001": DiagnosticRecord(suspect=NOW - DAY)}
    assert names(due_tests(known, idle(3), waiting=True, settings=ROTATION, now=NOW)) == ["n001"]
    assert due_tests({}, idle(3), waiting=False, settings=ROTATION, now=NOW) == []


def test_a_node_between_jobs_is_not_idle() -> None:
    fresh = idle(8, NOW - timedelta(seconds=60))
    assert due_tests({}, fresh, waiting=False, settings=ROTATION, now=NOW) == []
    assert len(due_tests({}, fresh, waiting=False, settings=ROTATION, now=NOW + timedelta(seconds=60))) == 2


def test_the_rotation_keeps_to_its_rate() -> None:
    slow = replace(ROTATION, idle_per_hour=3)
    known = {f"n{number:03d}": DiagnosticRecord(tried=NOW - timedelta(minutes=40 + number)) for number in range(2)}
    assert len(due_tests(known, idle(100), waiting=False, settings=slow, now=NOW)) == 1
    assert len(due_tests(known, idle(100), waiting=False, settings=slow, now=NOW + timedelta(hours=1))) == 3


def test_one_without_answer_is_asked_again_after_a_pause() -> None:
    known = {"n000": DiagnosticRecord(suspect=NOW - DAY, tried=NOW - timedelta(minutes=29))}
    assert due_tests(known, idle(1), waiting=True, settings=ROTATION, now=NOW) == []
    assert names(due_tests(known, idle(1), waiting=True, settings=ROTATION, now=NOW + timedelta(minutes=1))) == ["n000"]


def test_without_levels_there_is_nothing() -> None:
    off = Diagnostics(suspect_level=0)
    assert due_tests({"n000": DiagnosticRecord(suspect=NOW)}, idle(99), waiting=False, settings=off, now=NOW) == []


_times = st.none() | st.integers(-20 * 24 * 60, 60).map(lambda minutes: NOW + timedelta(minutes=minutes))
_tested = st.builds(DiagnosticRecord, suspect=_times, passed=_times, tried=_times, until=_times)


@given(
    known=st.dictionaries(st.integers(0, 60).map(lambda number: f"n{number:03d}"), _tested, max_size=60),
    count=st.integers(0, 60),
    fraction=st.floats(0, 1),
    per_hour=st.integers(0, 30),
    waiting=st.booleans(),
)
def test_never_above_the_share(
    known: dict[str, DiagnosticRecord], count: int, fraction: float, per_hour: int, waiting: bool
) -> None:
    settings = replace(ROTATION, idle_fraction=fraction, idle_per_hour=per_hour)
    chosen = due_tests(known, idle(count), waiting=waiting, settings=settings, now=NOW)
    running = {name for name, tested in known.items() if tested.until is not None and tested.until > NOW}
    rotated = [turn for turn in chosen if not turn.suspect]
    after = len(running) + len(chosen)
    share = fraction * len(set(idle(count)) | running) + 1e-9  # 0.29 of 100 are 29
    assert len(set(names(chosen))) == len(chosen), "nobody twice"
    assert not set(names(chosen)) & running
    assert set(names(chosen)) <= set(idle(count))
    if chosen:
        assert after <= max(share, 1.0)
    if rotated:
        assert after <= share
        assert not waiting
        assert len(rotated) <= per_hour


# ------------------------------------------------------------------------------------------------- who


def job(number: int, state: str = "pending", **rest: Any) -> JobView:
    return JobView(id=number, state=state, **rest)


@pytest.mark.parametrize(
    ("jobs", "waiting"),
    [
        ([], False),
        ([job(1, "running")], False),
        ([job(1, reason="Resources")], True),
        ([job(1, reason="Priority")], True),
        ([job(1, reason="Dependency")], False),
        ([job(1, reason="BeginTime")], False),
        ([job(1, held=True, reason="JobHeldUser")], False),
    ],
)
def test_which_jobs_wait_for_nodes(jobs: list[JobView], waiting: bool) -> None:
    assert has_waiting_job(jobs) is waiting


def fleet(**nodes: NodeView) -> Fleet:
    return Fleet(at=NOW, nodes=nodes, jobs={7: job(7, "running", nodes=("busy",))})


def test_which_nodes_may_be_tested() -> None:
    nodes = {
        "good": NodeView("good", "idle", partitions=("gpu",)),
        "busy": NodeView("busy", "idle"),
        "mixed": NodeView("mixed", "mixed"),
        "drained": NodeView("drained", "idle", flags=frozenset({"drain"})),
        "reserved": NodeView("reserved", "idle", flags=frozenset({"reserved"})),
        "login": NodeView("login", "idle", gpus=0),
        "watched": NodeView("watched", "idle", partitions=("gpu", "prod")),
    }
    modes = Modes(default=Mode(drain="act"), partitions={"prod": Mode(drain="observe"), "gpu": Mode(drain="act")})
    assert idle_nodes(fleet(**nodes), modes) == {"good"}
    assert idle_nodes(fleet(**nodes), Modes()) == set(), "installed, we observe"


def verdict(*suspect: str) -> Verdict:
    return Verdict(cause=Cause.UNKNOWN, scope=Scope.UNKNOWN, confidence=0.4, suspect=suspect)


def score(node: str, lemon: bool, hours: float) -> NodeScore:
    at = NOW - timedelta(hours=hours)
    return NodeScore(node, failures=4, busy_days=9.0, rate=0.4, low=0.2, high=0.9, lemon=lemon, last_at=at)


def trend(node: str, suspect: bool) -> Trend:
    return Trend(
        node=node, unit="gpu3", name="pcie_replay", words="PCIe replays", cause=Cause.PCIE, value=900.0, days=9.0,
        per_day=100.0, low=80.0, high=120.0, faster=False, suspect=suspect, reason="grows" if suspect else "",
    )  # fmt: skip


def test_who_is_suspect() -> None:
    settings = Diagnostics(idle_period_s=86400.0)
    scores = {"often": score("often", True, 2), "well": score("well", False, 2), "named": score("named", True, 3)}
    trends = {"ages": (trend("ages", False), trend("ages", True)), "well": (trend("well", False),)}
    named = [(NOW - DAY, verdict("named"), "ann"), (NOW, verdict("named"), "ann")]
    found = {name: one.since for name, one in suspects(named, scores, trends, settings, NOW).items()}
    assert found == {"named": NOW, "often": NOW - timedelta(hours=2), "ages": NOW - DAY}


def printed(*suspect: str) -> Verdict:
    """A verdict for which nothing but a program's words speak."""
    said = evidence(Kind.NUMBERS, node=suspect[0], trust=Trust.USER)
    ground = Ground(said, 1.0, "what a program printed")
    return replace(verdict(*suspect), grounds=(ground,))


def test_one_users_words_cost_few_tests_and_two_users_words_count_as_the_machines() -> None:
    settings, known = Diagnostics(user_suspects_per_day=2), dict[str, DiagnosticRecord]()

    def add(now: datetime, *told: tuple[str, str]) -> list[str]:
        verdicts = [(now, printed(node), user) for node, user in told]
        add_suspects(known, suspects(verdicts, {}, {}, settings, now), settings, now)
        return sorted(name for name, record in known.items() if record.suspect == now)

    assert add(NOW, *((f"n{number}", "eve") for number in range(9))) == ["n0", "n1"]
    later = NOW + timedelta(hours=1)
    known["n0"] = replace(known["n0"], suspect=None, passed=later, tried=later)
    later += timedelta(hours=1)
    assert add(later, ("n0", "eve"), ("n5", "eve"), ("n6", "ann")) == ["n6"], "n0 was tested for eve's words today"
    assert add(later + DAY, ("n0", "eve"), ("n5", "eve")) == ["n0", "n5"]
    assert add(later + 2 * DAY, ("n7", "eve"), ("n7", "ann"), ("n8", ""), ("n9", "")) == ["n7", "n8", "n9"]
    assert known["n7"].user is None and known["n8"].user == ""


def test_what_is_kept_reads_back() -> None:
    known = {"a": DiagnosticRecord(suspect=NOW, user="eve", tried=NOW - DAY), "b": DiagnosticRecord()}
    assert read(written(known)) == known
    assert read({"a": {"suspect": "yesterday"}, "b": {"colour": "blue"}, "c": 5}) == {}
    assert read(None) == {}


# ------------------------------------------------------------------------------------------------- orders


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
        nodes = {name: NodeView(name, "idle", gpus=8) for name in idle(self.count)}
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
