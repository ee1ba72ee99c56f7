"""Judges anew what policy refused: a refusal is a wait with a named condition.

When the condition may have changed (a Slurm snapshot, the end of a pause, a budget's hour that has passed), policy is asked
again on the same verdict. What it allows now is carried out; when nothing is wanted any more (the node is proven good, the
job is gone), the incident closes.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.engine import judging
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.reconcile import node_proof
from sentinel.engine.recovery import wait_ends, wait_timer
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer, Transition
from sentinel.model.changes import SettingChanged
from sentinel.policy.drains import SWITCH

LOOK = "waits"  # id of the effect that takes a snapshot for what waits
BREAKER_PASSED = "breaker_passed"  # stored setting: incidents that an operator let go on in spite of the breakers
AGAIN_S = 10.0  # least time between two judgements of one waiting incident: snapshots may come every second
MOST = 50  # waiting incidents judged per snapshot, longest ago first: each costs about a millisecond at 2,048 nodes


def snapshot_taken(state: State, out: Transition, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Judge anew what waits and was not judged lately."""
    node_proof.watch_agents(state, now)
    due = [name for name in _waiting(state) if now - _judged(state, name) >= timedelta(seconds=AGAIN_S)]
    for name in sorted(due, key=lambda one: _judged(state, one))[:MOST]:
        _judge(state, out, name, now, looks)


def judge_all(state: State, out: Transition, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Judge anew all that waits, with the snapshot that was taken for it."""
    if state.cluster.fleet is not None:
        for name in _waiting(state):
            _judge(state, out, name, now, looks)


def look(out: Transition) -> None:
    """Something changed that waits may depend on: judge them anew with a fresh snapshot."""
    out.do(ObserveFleet(LOOK, judging.FRESH_S))


def resumed(state: State, out: Transition) -> None:
    """An operator has looked: what the breakers froze goes on too, within the budgets."""
    frozen = {
        name
        for name in _waiting(state)
        if any(wait.kind in ("breaker", "hang-breaker", SWITCH) for wait in state.plans[name].waits)
    }
    if frozen - state.breaker_passed:
        state.breaker_passed |= frozen
        out.save(SettingChanged(BREAKER_PASSED, sorted(state.breaker_passed)))
    if _waiting(state):
        look(out)


def started(state: State, out: Transition, now: datetime) -> None:
    """After a start: settings may have changed, and time has passed."""
    for name in _waiting(state):
        if (due := wait_ends(state.plans[name], now)) is not None:
            out.do(StartTimer(wait_timer(name), due))
    if _waiting(state):
        look(out)


def _waiting(state: State) -> list[str]:
    known = state.open_plans & state.incidents.keys() & state.verdicts.keys()
    return sorted(name for name in known if state.plans[name].waits)


def _judged(state: State, incident: str) -> datetime:
    return state.judged_again.get(incident) or state.plans[incident].at


def _judge(state: State, out: Transition, incident: str, now: datetime, looks: PreliminaryVerdicts) -> None:
    if incident in state.judging:
        return  # new evidence is about to be judged
    state.judged_again[incident] = now
    judging.plan_again(state, out, incident, now, looks)
