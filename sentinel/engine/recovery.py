"""Carries out plans: the steps of an incident one after the other, each recorded in the ledger before it is done.

A step whose outcome is not known is retried after a pause; the action reads Slurm's state first. A failed step ends the
plan, unless the step is optional. While an operator has paused Sentinel, no new step is started.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.engine import notices
from sentinel.engine.reconcile import exclusions, in_allocation, node_proof, past_restarts, refused_drains, situations
from sentinel.engine.state import Recovery, State
from sentinel.engine.transition import CarryOutStep, ObserveFleet, StartTimer, Transition
from sentinel.model.changes import IncidentChanged, PlanFinished, PlanMade, StepEnded, StepIntended
from sentinel.model.records import (
    ANSWERS_AGAIN,
    INTERRUPTIONS,
    LEFT_IN_SERVICE,
    NODE_STEPS,
    OPTIONAL_STEPS,
    REQUEUED_AT,
    RESTARTS,
    Incident,
    IncidentState,
    JobView,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Task,
)
from sentinel.model.vocabulary import REFUSED_SINCE
from sentinel.policy import components_with

# The notice is sent after these steps: by then it is known where the job resumes, or that it waits for a person.
_DECISIVE = RESTARTS | {StepKind.HOLD}
# From Slurm's requeue on, in its whole seconds: slurmd takes an earlier start for the attempt that was stopped (2.05 s,
# slurm/writer.py), less what the steps in between take: a restart is no slower for it.
_RESTART_GAP = timedelta(seconds=1.4)
_FRESH_S = 1.0  # a look at a restarted job uses a snapshot no older than this
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # before retrying a step whose outcome is not known; the last one repeats


def retry_timer(incident: str) -> str:
    return f"retry:{incident}"


def confirm_timer(incident: str) -> str:
    return f"confirm:{incident}"


def wait_timer(incident: str) -> str:
    return f"wait:{incident}"


def notice_timer(incident: str) -> str:
    return f"tell:{incident}"


def carry_out_plan(state: State, out: Transition, incident_id: str, now: datetime, job: JobView | None = None) -> None:
    """Carry out a new or extended plan of the incident, or notify people why it is not carried out."""
    plan = state.plans[incident_id]
    if (due := wait_ends(plan, now)) is not None:
        out.do(StartTimer(wait_timer(incident_id), due))
    if not plan.to_do:
        come_to_rest(state, out, incident_id, IncidentState.CLOSED, plan.explanation, now)
        notices.notify(state, out, incident_id, now, job)
        return
    if state.incidents[incident_id].state in (IncidentState.WAITING, IncidentState.HELD, IncidentState.CLOSED):
        close(state, out, incident_id, IncidentState.OPEN, "", now)
    start(state, out, incident_id, now)
    notices.notify(state, out, incident_id, now, job, further=True)


def wait_ends(plan: Plan, now: datetime) -> datetime | None:
    """When the first of the plan's waits ends by itself; None if none does."""
    return min((wait.until for wait in plan.waits if wait.until is not None and wait.until > now), default=None)


def come_to_rest(
    state: State, out: Transition, incident_id: str, reached: IncidentState, outcome: str, now: datetime
) -> None:
    """Nothing more can be done now: the incident waits if something is still wanted, else it reaches its last state."""
    plan = state.plans[incident_id]
    if plan.waits:
        words = plan.waits[0].explanation if reached is IncidentState.CLOSED else outcome
        state.open_plans.add(incident_id)
        close(
            state, out, incident_id, IncidentState.WAITING if reached is IncidentState.CLOSED else reached, words, now
        )
        return
    state.open_plans.discard(incident_id)
    state.judged_again.pop(incident_id, None)
    close(state, out, incident_id, reached, outcome, now)


def start(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """Start or continue the incident's plan. A plan in progress that was extended continues with the new steps."""
    if incident_id not in state.recoveries:
        beside = {key for key in state.carried_out if state.ledger.incident_of(key) == incident_id}
        state.recoveries[incident_id] = Recovery(beside=beside)
        due = now + timedelta(seconds=state.settings.alerts.within_s)
        out.do(StartTimer(notice_timer(incident_id), due))  # latest time of the first notice
    advance(state, out, incident_id, now)


def advance(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """Begin the next step of the plan, or finish the plan."""
    recovery, plan = state.recoveries.get(incident_id), state.plans.get(incident_id)
    incident, verdict = state.incidents.get(incident_id), state.verdicts.get(incident_id)
    if recovery is None or plan is None or incident is None or verdict is None:
        return
    if is_engines_own(recovery.under_way):
        recovery.under_way = None  # what was added to the plan meanwhile goes first
    if recovery.waits or state.paused:
        return
    if recovery.under_way is not None:
        _take_out_more_nodes(state, out, Task(incident, verdict, plan, recovery.under_way), now)
        return
    step = next_step(state, plan)
    if step is None:
        _finish(state, out, incident, plan, now)
        return
    if step.key(incident_id) in recovery.beside:
        return  # its outcome comes
    if _is_prepared_by_another(state, incident_id, step):
        recovery.waits = True
        out.do(StartTimer(retry_timer(incident_id), now + timedelta(seconds=_PAUSES_S[1])))
        return
    if step.kind in NODE_STEPS and (good := node_proof.is_good_and_in_service(state, incident, step)) is not False:
        _leave_in_service(state, out, plan, step, now) if good else _look_first(state, out, incident_id, now)
        return
    if step.kind is StepKind.EXCLUDE:
        if (due := _soonest_release(state, plan)) is not None and now < due:
            recovery.waits = True
            out.do(StartTimer(retry_timer(incident_id), due))
            return
        step = exclusions.bound(state, incident, step, now)
    if step.kind is StepKind.RELEASE and exclusions.more_are_bad(state, incident, now):
        state.plans[incident_id] = exclusions.again(plan, frozenset({StepKind.EXCLUDE}))
        out.save(PlanMade(state.plans[incident_id]))
        advance(state, out, incident_id, now)
        return
    if in_allocation.is_planned(plan):
        step = in_allocation.bound(state, incident, step, exclusions.suspects(state, incident, step))
    if step.kind is StepKind.CHOOSE_CHECKPOINT:
        verdict = situations.with_onset_known_now(state, incident, verdict)
        step = dataclasses.replace(step, data={**step.data, "onset_step": verdict.onset_step})
    if step.kind in (StepKind.WRITE_RESUME, StepKind.START_RUN):
        step = notices.with_job_log_line(state, incident_id, step)
    recovery.under_way = step
    if state.ledger.intend(incident_id, step, now):
        out.save(StepIntended(plan, step, now))
    if is_engines_own(step):
        recovery.looks = 0
        out.do(ObserveFleet(confirm_timer(incident_id), _FRESH_S))
        return
    state.carried_out.add(step.key(incident_id))
    seen = state.cluster.attempts.get((step.job or -1, step.attempt or 0))
    out.do(CarryOutStep(step.key(incident_id), Task(incident, verdict, plan, step, seen.view if seen else None)))


def _leave_in_service(state: State, out: Transition, plan: Plan, step: Step, now: datetime) -> None:
    """The node of this step is proven good since its conviction: nothing is asked of Slurm."""
    if state.ledger.intend(plan.incident, step, now):
        out.save(StepIntended(plan, step, now))
    left = Outcome(step, Result.DONE, now, "proven good again: left in service", {LEFT_IN_SERVICE: True})
    step_ended(state, out, plan.incident, left, now)


def _look_first(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """The node of a step is proven good, and our last request may have drained it all the same: it is not asked for again
    before a snapshot has shown that."""
    recovery = state.recoveries[incident_id]
    recovery.waits = True
    out.do(ObserveFleet(confirm_timer(incident_id), 0.0, once=True))
    recovery.not_known, pause_s = recovery.not_known + 1, _PAUSES_S[min(recovery.not_known, len(_PAUSES_S) - 1)]
    out.do(StartTimer(retry_timer(incident_id), now + timedelta(seconds=pause_s)))


def _is_prepared_by_another(state: State, incident_id: str, step: Step) -> bool:
    """Whether another incident is restarting an earlier attempt of the step's job: one of them writes what it begins with.

    Both want it where slurmctld forgot the later attempt, or that the job was let go. Its own turn comes once that restart
    waits for the job's first step.
    """
    if step.job is None or is_engines_own(step):
        return False
    return any(attempt < (step.attempt or 0) for attempt in attempts_others_restart(state, incident_id, step.job))


def attempts_others_restart(state: State, incident_id: str, job: int) -> dict[int, bool]:
    """The attempts of the job, and of its components, after which other incidents are about to let it go; whether they have
    stopped it yet."""
    fleet = state.cluster.fleet
    parts = {job, *(part.id for part in components_with(fleet, job))} if fleet is not None else {job}
    found: dict[int, bool] = {}
    for name in state.recoveries.keys() & state.plans.keys() - {incident_id}:
        plan = state.plans[name]
        following = next_step(state, plan)
        if following is None or is_engines_own(following):
            continue  # done, or it waits for the job's first step
        for step in plan.to_do:
            if step.job in parts and step.kind in INTERRUPTIONS:
                outcome = state.ledger.outcome(name, step)
                stopped = outcome is not None and outcome.result is Result.DONE
                found[step.attempt or 0] = stopped or found.get(step.attempt or 0, False)
    return found


def _take_out_more_nodes(state: State, out: Transition, during: Task, now: datetime) -> None:
    """While a step of the job is under way, begin those of nodes convicted since.

    The job's own step may wait for them: a job that is being stopped holds a node that died until that one is set down.
    """
    plan, recovery = during.plan, state.recoveries[during.incident.id]
    if during.step.kind in NODE_STEPS:
        return
    for step in plan.steps:
        key, outcome = step.key(plan.incident), state.ledger.outcome(plan.incident, step)
        if step.kind not in NODE_STEPS or key in recovery.beside:
            continue
        if outcome is None or outcome.result is Result.NOT_KNOWN:
            if (good := node_proof.is_good_and_in_service(state, during.incident, step)) is None:
                _look_first(state, out, plan.incident, now)
                continue
            if good:
                _leave_in_service(state, out, plan, step, now)  # and it goes on from there
                return
            recovery.beside.add(key)
            state.carried_out.add(key)
            if state.ledger.intend(plan.incident, step, now):
                out.save(StepIntended(plan, step, now))
            out.do(CarryOutStep(key, dataclasses.replace(during, step=step)))


def _soonest_release(state: State, plan: Plan) -> datetime | None:
    """Slurm takes no new start of a job sooner: until then exclusions wait for what may be heard of other nodes."""
    stopped = state.ledger.of_plan(plan, StepKind.REQUEUE_HOLD)
    if stopped is None or stopped.result is not Result.DONE:
        return None
    said = stopped.data.get(REQUEUED_AT)
    requeued = datetime.fromisoformat(said) if isinstance(said, str) else stopped.at
    return min(requeued, stopped.at) + _RESTART_GAP


def is_engines_own(step: Step | None) -> bool:
    """Whether the engine itself waits for this step's outcome, and no action is under way."""
    return step is not None and step.kind is StepKind.CONFIRM


def is_busy(recovery: Recovery) -> bool:
    """Whether an action is under way."""
    return bool(recovery.beside) or (recovery.under_way is not None and not is_engines_own(recovery.under_way))


def next_step(state: State, plan: Plan) -> Step | None:
    """The first step without a final outcome; None if all are done or one that is not optional failed."""
    for step in plan.steps:
        outcome = state.ledger.outcome(plan.incident, step)
        if outcome is None or outcome.result is Result.NOT_KNOWN:
            return step
        if outcome.result is Result.FAILED and step.kind not in OPTIONAL_STEPS:
            return None
    return None


def step_progressed(state: State, out: Transition, incident_id: str, outcome: Outcome) -> None:
    """Record what a step under way is about to request, so that it is known even if the daemon dies now."""
    state.ledger.record(incident_id, outcome)
    out.save(StepEnded(incident_id, outcome))


def step_ended(state: State, out: Transition, incident_id: str, outcome: Outcome, now: datetime) -> None:
    """Record a step's outcome and go on with the plan. If the plan was dropped, the outcome is only recorded."""
    recovery, plan, step = state.recoveries.get(incident_id), state.plans.get(incident_id), outcome.step
    state.carried_out.discard(step.key(incident_id))
    verdict = state.verdicts.get(incident_id)
    if outcome.data.get(ANSWERS_AGAIN) and verdict is not None and step.node in verdict.broken:
        outcome = dataclasses.replace(outcome, result=Result.NOT_KNOWN, data={})  # convicted meanwhile: done once more
    if outcome.result is Result.NOT_KNOWN and not outcome.data:
        before = state.ledger.outcome(incident_id, step)  # keep the requests recorded by earlier tries
        kept = dict(before.data) if before is not None else {}
        kept.pop(REFUSED_SINCE, None)  # it was not refused this time
        outcome = dataclasses.replace(outcome, data=kept)
    state.ledger.record(incident_id, outcome)
    out.save(StepEnded(incident_id, outcome))
    out.say(
        "step", incident=incident_id, kind=step.kind, target=step.node or step.job, result=outcome.result,
        reason=outcome.reason, warning=outcome.result is not Result.DONE,
    )  # fmt: skip
    if plan is not None and refused_drains.is_refused(outcome):
        plan = state.plans[incident_id] = refused_drains.waiting(state, plan, outcome, now)
        out.save(PlanMade(plan))
        if (due := wait_ends(plan, now)) is not None:
            out.do(StartTimer(wait_timer(incident_id), due))
    if recovery is None or plan is None:
        return
    _no_longer_under_way(recovery, incident_id, step.key(incident_id))
    if refused_drains.is_refused(outcome):
        advance(state, out, incident_id, now)
        return
    if outcome.result is Result.NOT_KNOWN:
        pause_s = _PAUSES_S[min(recovery.not_known, len(_PAUSES_S) - 1)]
        if recovery.not_known == 0:  # what slurmctld forgot is found by a snapshot, see ``reconcile.restarts``
            out.do(ObserveFleet(confirm_timer(incident_id), 0.0))
        recovery.not_known += 1
        recovery.waits = True
        out.do(StartTimer(retry_timer(incident_id), now + timedelta(seconds=pause_s)))
        return
    recovery.not_known = 0
    if in_allocation.fails(plan, outcome):
        _requeue_instead(state, out, incident_id, outcome, now)
        return
    if step.kind in RESTARTS and outcome.result is Result.DONE:
        past_restarts.remember(state, incident_id, step)
        past_restarts.begin_anew(state, out, incident_id, outcome)
        close(state, out, incident_id, IncidentState.WATCHING, "restarted", now)
    if step.kind in _DECISIVE:
        notices.notify(state, out, incident_id, now)
    advance(state, out, incident_id, now)


def _requeue_instead(state: State, out: Transition, incident_id: str, outcome: Outcome, now: datetime) -> None:
    """The restart in the allocation failed: policy is asked again, at once."""
    plan = state.plans[incident_id] = in_allocation.given_up(state.plans[incident_id], outcome, now)
    state.recoveries.pop(incident_id, None)
    out.save(PlanMade(plan))
    come_to_rest(state, out, incident_id, IncidentState.WAITING, plan.waits[-1].explanation, now)
    out.do(StartTimer(wait_timer(incident_id), now))


def retry(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    recovery = state.recoveries.get(incident_id)
    if recovery is not None:
        recovery.waits = False
        advance(state, out, incident_id, now)


def _no_longer_under_way(recovery: Recovery, incident_id: str, key: str) -> None:
    """``key``: of the step that ended, in the ledger; the outcome of another one leaves the step under way as it is."""
    recovery.beside.discard(key)
    if recovery.under_way is not None and recovery.under_way.key(incident_id) == key:
        recovery.under_way = None


def postpone(state: State, out: Transition, incident_id: str, now: datetime, effect: str = "") -> None:
    """The step under way (``effect``: its key in the ledger) ended in an error of ours: it is tried again after the longest
    pause."""
    recovery = state.recoveries.get(incident_id)
    state.carried_out.discard(effect)
    if recovery is not None:
        if effect:
            _no_longer_under_way(recovery, incident_id, effect)
        else:
            recovery.under_way = None
        recovery.waits = True
        out.do(StartTimer(retry_timer(incident_id), now + timedelta(seconds=_PAUSES_S[-1])))


def resume(state: State, out: Transition, now: datetime) -> None:
    """Continue the plans that an operator's pause had interrupted."""
    for incident_id in sorted(state.open_plans):
        if incident_id in state.plans and state.plans[incident_id].to_do:
            start(state, out, incident_id, now)


def _finish(state: State, out: Transition, incident: Incident, plan: Plan, now: datetime) -> None:
    """Finish the plan: send the notice and close or hold the incident, in one transaction."""
    outcomes = state.ledger.outcomes(incident.id, plan.steps)
    failed = (o for o in outcomes if o.result is Result.FAILED and o.step.kind not in OPTIONAL_STEPS)
    last = next(failed, None) or (outcomes[-1] if outcomes else None)  # in the plan's order, not in the order of time
    reached = IncidentState.CLOSED
    if last is not None and (last.result is Result.FAILED or last.step.kind is StepKind.HOLD):
        over = any(last.data.get(name) for name in ("cancelled", "goes_on", "recovered_by", "over"))
        reached = IncidentState.CLOSED if over else IncidentState.HELD
    restart_s = None
    if last is not None and last.step.kind is StepKind.CONFIRM and last.result is Result.DONE:
        restart_s = max(0.0, (last.at - plan.at).total_seconds())
    outcome = last.reason if last is not None else ""
    state.recoveries.pop(incident.id, None)
    come_to_rest(state, out, incident.id, reached, outcome, now)
    notices.notify(state, out, incident.id, now)
    if incident.id not in state.open_plans:
        out.save(PlanFinished(plan.id))
    at_rest = state.incidents[incident.id].state
    out.say("incident-finished", incident=incident.id, state=at_rest, outcome=outcome, restart_s=restart_s)


def close(state: State, out: Transition, incident_id: str, reached: IncidentState, outcome: str, now: datetime) -> None:
    """Set the incident's state to ``reached``. Closed incidents stay in memory a while for late evidence."""
    incident = state.incidents[incident_id]
    closed_at = now if reached is IncidentState.CLOSED else None
    before = "" if reached is IncidentState.OPEN else incident.outcome  # what it waited for is over
    incident = dataclasses.replace(incident, state=reached, closed_at=closed_at, outcome=outcome or before)
    state.put(incident)
    out.save(IncidentChanged(state.judged(incident)))
