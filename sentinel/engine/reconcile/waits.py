"""Judges anew what policy refused: a refusal is a wait with a named condition.

When the condition may have changed (a snapshot shows something else, the end of a pause, a budget's hour that has passed),
policy is asked again on the same verdict. What it allows now is carried out; when nothing is wanted any more (the node is
proven good, the job is gone), the incident closes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from sentinel.engine import backlog, judging
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.reconcile import conditions, node_proof
from sentinel.engine.reconcile.conditions import Awaited
from sentinel.engine.reconcile.situations import ClusterNow
from sentinel.engine.recovery import wait_ends, wait_timer
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer, Transition
from sentinel.model.changes import PlanMade, SettingChanged
from sentinel.model.records import NODE_STEPS, Fleet, Result, Step, Wait
from sentinel.model.stored import Stored
from sentinel.policy.drains import SWITCH

ASKED_ANEW = "asked-anew"  # kind of the wait of what was planned under other modes, or before a pause
MODES = "modes"  # stored setting: those of the last daemon, as JSON text
LOOK = "waits"  # id of the effect that takes a snapshot for what waits
NEXT = "next-waits"  # timer: the next of those that are to be judged
BREAKER_PASSED = "breaker_passed"  # stored setting: incidents that an operator let go on in spite of the breakers
AGAIN_S = 10.0  # least time between two judgements of one waiting incident: snapshots may come every second
AT_ONCE = 2  # judged in one event: no event may take 50 ms (tests/bench/engine.py: 27 ms at most, with 2,048 nodes)
PAUSE_S = 0.05  # until the next are: other events come in between


def snapshot_taken(state: State, out: Transition, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Judge anew what waits, if something has changed for it, and if it was not judged lately."""
    node_proof.watch_agents(state, out, now)
    if state.cluster.fleet is not None:
        conditions.compare(state, _waiting(state), _cluster_now(state, state.cluster.fleet, now, looks))
    judge_next(state, out, now, looks)


def judge_next(state: State, out: Transition, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Judge the first few of those that are due, with the newest snapshot; a timer brings the others in their turn."""
    waiting, fleet = _waiting(state), state.cluster.fleet
    state.judge_first.intersection_update(waiting)
    if fleet is None or not waiting or backlog.not_taken_up(state):
        return
    again = now - timedelta(seconds=AGAIN_S)
    due = [name for name in waiting if name in state.judge_first or _judged(state, name) <= again]
    due = [name for name in due if name not in state.judging]  # new evidence is about to be judged
    if state.absence is not None and any(early := [_rests_on_old_words(state, name, now) for name in due]):
        due = [name for name, is_early in zip(due, early, strict=True) if not is_early]
        out.do(StartTimer(NEXT, state.absence.waits_until))
    due.sort(key=lambda name: (name not in state.judge_first, _since(state, name)))
    awaited, judged = Awaited(_cluster_now(state, fleet, now, looks)), 0
    for name in due:
        if name not in state.judge_first and not conditions.may_have_changed(state, name, awaited):
            continue
        if judged == AT_ONCE:
            out.do(StartTimer(NEXT, now + timedelta(seconds=PAUSE_S)))
            return
        judged += 1
        state.judge_first.discard(name)
        state.judged_again[name], before = now, state.plans[name]
        judging.plan_again(state, out, name, awaited.cluster, looks)
        conditions.asked(state, name, awaited)
        if state.plans.get(name) is not before:  # what it takes out or stops counts for the next
            awaited = Awaited(_cluster_now(state, fleet, now, looks))


def _rests_on_old_words(state: State, name: str, now: datetime) -> bool:
    """Whether the agents of the nodes that it waits to take out are to be heard first, after an absence of the daemon."""
    return backlog.may_be_outdated(state, state.verdicts[name].drain, now)


def _cluster_now(state: State, fleet: Fleet, now: datetime, looks: PreliminaryVerdicts) -> ClusterNow:
    return ClusterNow(state, fleet, now, partial(looks, now=now))


def next_due(state: State, out: Transition, now: datetime, looks: PreliminaryVerdicts) -> None:
    """The timer is due. By an old snapshot nothing is judged: what was asked for requests one, the rest waits."""
    fleet = state.cluster.fleet
    if fleet is not None and now - fleet.at <= timedelta(seconds=judging.FRESH_S):
        judge_next(state, out, now, looks)
    elif state.judge_first and state.blind_since is None:
        out.do(ObserveFleet(LOOK, judging.FRESH_S))


def look(state: State, out: Transition, incidents: Iterable[str]) -> None:
    """Something changed that these waits may depend on: judge them before all others, with a fresh snapshot."""
    state.judge_first.update(incidents)
    out.do(ObserveFleet(LOOK, judging.FRESH_S))


def resumed(state: State, out: Transition) -> None:
    """An operator has looked: what the breakers froze goes on too, within the budgets."""
    waiting = _waiting(state)
    frozen = {
        name
        for name in waiting
        if any(wait.kind in ("breaker", "hang-breaker", SWITCH) for wait in state.plans[name].waits)
    }
    if frozen - state.breaker_passed:
        state.breaker_passed |= frozen
        out.save(SettingChanged(BREAKER_PASSED, sorted(state.breaker_passed)))
    if waiting:
        look(state, out, waiting)


def started(state: State, out: Transition, now: datetime) -> None:
    """After a start: settings may have changed, and time has passed."""
    waiting = _waiting(state)
    for name in waiting:
        if (due := wait_ends(state.plans[name], now)) is not None:
            out.do(StartTimer(wait_timer(name), due))
    if waiting:
        look(state, out, waiting)


def compare_modes(state: State, out: Transition, stored: Stored, now: datetime) -> None:
    """After a start with other modes than the daemon before had: what it had not begun is asked about anew.

    Versions before this did not store theirs: what they had planned is carried on.
    """
    modes, before = json.dumps(dataclasses.asdict(state.settings.modes), sort_keys=True), stored.settings.get(MODES)
    if before == modes:
        return
    if before is not None:
        ask_anew(state, out, state.plans, now)
    out.save(SettingChanged(MODES, modes))


def ask_anew(state: State, out: Transition, names: Iterable[str], now: datetime) -> None:
    """Have policy asked about what these plans want and have not begun. Of a job's steps the first is the one that asks;
    what became of a drain that was requested, the next snapshot shows.
    """
    for name in sorted(state.open_plans.intersection(names) & state.plans.keys() & state.incidents.keys()):
        plan = state.plans[name]
        begun = [step for step in plan.to_do if _has_begun(state, name, step)]
        of_job = any(step.job is not None for step in begun)
        left = [step for step in plan.to_do if step not in begun and (step.job is None or not of_job)]
        if not left:
            continue
        what = tuple(f"{step.kind} {step.node or step.job}" for step in left)
        wait = Wait(ASKED_ANEW, now, "Judged anew: the modes or an approval may be others by now.", what)
        steps = tuple(step for step in plan.to_do if step not in left)
        state.plans[name] = dataclasses.replace(plan, steps=steps, waits=(*plan.waits, wait))
        out.save(PlanMade(state.plans[name]))


def _has_begun(state: State, incident: str, step: Step) -> bool:
    outcome = state.ledger.outcome(incident, step)
    known = outcome is not None and outcome.result is not Result.NOT_KNOWN
    return known if step.kind in NODE_STEPS else state.ledger.has(step.key(incident))


def _waiting(state: State) -> list[str]:
    known = state.open_plans & state.incidents.keys() & state.verdicts.keys()
    return sorted(name for name in known if state.plans[name].waits)


def _since(state: State, incident: str) -> datetime:
    """Since when it waits: what becomes free goes to who has waited longest."""
    return min(wait.since for wait in state.plans[incident].waits)


def _judged(state: State, incident: str) -> datetime:
    return state.judged_again.get(incident) or state.plans[incident].at
