"""Orders the diagnostics that are due every ``diagnostics.look_s``, and takes their answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.engine import grouping
from sentinel.engine.diagnostics.due_tests import (
    HOUR,
    DiagnosticRecord,
    DueTest,
    add_suspects,
    due_tests,
    has_waiting_job,
    idle_nodes,
    nodes_with_failed_diagnostic,
    suspects,
    written,
)
from sentinel.engine.diagnostics.state import KEPT
from sentinel.engine.events import DiagnosticEnded, EvidenceReceived, ScoresRead
from sentinel.engine.pending_drains import leaving, unfinished
from sentinel.engine.state import State
from sentinel.engine.transition import ReadScores, RunDiagnostic, StartTimer, Transition
from sentinel.model.changes import SettingChanged
from sentinel.model.records import Fleet

DIAGNOSTICS = "diagnostics"  # timer
_SCORES = timedelta(minutes=10)  # how old the node scores may be: on a large cluster they take seconds to read


def start(state: State, out: Transition, now: datetime) -> None:
    """Start the timer, unless diagnostics are off."""
    settings = state.settings.diagnostics
    if settings.suspect_level or settings.idle_level:
        out.do(StartTimer(DIAGNOSTICS, now + timedelta(seconds=settings.look_s)))


def timer_due(state: State, out: Transition, now: datetime) -> None:
    """Order what is due; if the node scores are old, when they were read."""
    if state.watch.running:
        start(state, out, now)
    read_at = state.diagnostics.scores_at
    if read_at is None or now - read_at >= _SCORES:
        out.do(ReadScores("scores"))
    else:
        _turn(state, out, now)


def scores_read(state: State, out: Transition, event: ScoresRead) -> None:
    tests = state.diagnostics
    tests.scores, tests.trends, tests.scores_at = event.scores, event.trends, event.at
    _turn(state, out, event.at)


def _turn(state: State, out: Transition, now: datetime) -> None:
    fleet, tests, settings = state.cluster.fleet, state.diagnostics, state.settings.diagnostics
    if fleet is None or state.paused:
        return
    idle = idle_nodes(fleet, state.settings.modes) - _unavailable(state, fleet, now)
    tests.idle = {name: tests.idle.get(name, now) for name in idle}
    new = _add_suspects(state, now)
    reachable = {name: since for name, since in tests.idle.items() if state.cluster.node(name).state == "heard"}
    waiting = has_waiting_job(fleet.jobs.values())
    due = due_tests(tests.known, reachable, waiting=waiting, settings=settings, now=now)
    for test in due:
        _order(state, out, test, now)
    if due or new:
        _save(state, out)  # before the first order: a daemon that dies now still counts them


def _unavailable(state: State, fleet: Fleet, now: datetime) -> set[str]:
    """Nodes about to be drained, or whose failed diagnostic is being handled: the snapshot may not show it yet."""
    going_on = unfinished((state.plans[name] for name in state.open_plans & state.plans.keys()), state.ledger)
    soon = leaving(fleet.at, state.plans.values(), state.ledger.drains(now - HOUR), now, going_on)
    return {name for name in soon if name is not None} | nodes_with_failed_diagnostic(state.incidents.values())


def _add_suspects(state: State, now: datetime) -> bool:
    """Add new suspicions to what is known; whether there were any."""
    tests, settings = state.diagnostics, state.settings.diagnostics
    # Dated by the incident's opening: evidence that a diagnostic adds to it is no new suspicion.
    verdicts = [
        (state.incidents[name].opened_at, verdict, state.past.owner(name) or "")
        for name, verdict in state.verdicts.items()
        if verdict.suspect and name in state.incidents
    ]
    return add_suspects(tests.known, suspects(verdicts, tests.scores, tests.trends, settings, now), settings, now)


def _order(state: State, out: Transition, test: DueTest, now: datetime) -> None:
    tests, deadline_s = state.diagnostics, state.settings.diagnostics.deadline_s[test.level - 1]
    known = tests.known.get(test.node, DiagnosticRecord())
    tests.known[test.node] = replace(known, tried=now, until=now + timedelta(seconds=deadline_s))
    effect = RunDiagnostic(f"diagnostic:{test.node}:{now.isoformat()}", test.node, test.level, deadline_s)
    tests.running[test.node] = effect
    out.say("diagnostic-ordered", node=test.node, level=test.level, suspect=test.suspect)
    out.do(effect)


def ended(state: State, out: Transition, event: DiagnosticEnded) -> None:
    """A pass clears suspicions older than the test's start; anything else is tried again after ``retry_s``."""
    tests, node = state.diagnostics, event.node
    order = tests.running.get(node)
    if order is None or order.id != event.effect:
        return
    del tests.running[node]
    known = replace(tests.known.get(node, DiagnosticRecord()), until=None)
    if event.result == "pass":
        later = known.suspect is not None and known.tried is not None and known.suspect > known.tried
        passes = {**known.passes, order.level: known.tried} if known.tried is not None else known.passes
        suspect = known.suspect if later else None
        tests.known[node] = replace(known, passed=known.tried, passes=passes, suspect=suspect)
    else:
        tests.known[node] = replace(known, tried=event.at)  # retry_s counts from the end of a test
    _save(state, out)
    out.say("diagnostic-answered", node=node, level=order.level, result=event.result, reason=event.reason)
    own = tuple(item for item in event.evidence if item.where.node == node)  # a node may report only about itself
    if own:
        grouping.receive(state, out, EvidenceReceived(event.at, own))


def _save(state: State, out: Transition) -> None:
    out.save(SettingChanged(KEPT, written(state.diagnostics.known)))
