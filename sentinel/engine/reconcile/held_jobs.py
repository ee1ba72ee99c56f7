"""Ends incidents that wait for a person, once somebody has released, cancelled or restarted their job.

What is not known (a record that cannot be read, a job that is still ending) ends nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.engine import notices, recovery
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import PlanFinished
from sentinel.model.records import Fleet, Incident, IncidentState, JobView, Outcome, Plan, Result, StepKind
from sentinel.model.vocabulary import HELD_BY_SLURM

_DEFERRED = timedelta(days=1)  # eligible later than this: deferred by Sentinel, which defers by 30 days


def snapshot_taken(state: State, out: Transition, fleet: Fleet, now: datetime) -> None:
    for incident in list(state.incidents.values()):
        plan = state.plans.get(incident.id)
        if incident.state is not IncidentState.HELD or plan is None or incident.id in state.recoveries:
            continue
        if incident.id in state.judging or state.paused:
            continue  # about to be judged, or no person has been asked yet
        words = _over(state, incident, plan, fleet)
        if words:
            recovery.come_to_rest(state, out, incident.id, IncidentState.CLOSED, words, now)
            notices.notify(state, out, incident.id, now)
            if incident.id not in state.open_plans:
                out.save(PlanFinished(plan.id))
            out.say("hold-ended", incident=incident.id, job=incident.job, reason=words)


def _over(state: State, incident: Incident, plan: Plan, fleet: Fleet) -> str:
    """What has become of the job that waited for a person; empty: it still waits."""
    outcomes = state.ledger.outcomes(incident.id, plan.steps)
    if incident.job is None or not plan.to_do or not outcomes or any(fleet.at <= outcome.at for outcome in outcomes):
        return ""
    job = state.cluster.job(fleet, incident.job, incident.attempt)
    if job is None:
        # A held job is never purged: somebody has cancelled it. One that could not be held or restarted still needs people.
        return f"Slurm no longer knows job {incident.job}: it was cancelled" if _was_held(outcomes) else ""
    if job.id not in fleet.jobs or job.state == "completing":
        return ""
    if job.state == "cancelled":
        return f"job {job.id} was cancelled"
    if job.state == "deadline":
        return f"job {job.id} is over: its deadline passed"
    if job.state == "pending" and any(outcome.data.get(HELD_BY_SLURM) for outcome in outcomes):
        return ""  # its priority comes and goes (22.05), and it cannot start
    last = incident.attempt if incident.attempt is not None else job.restarts
    last += any(o.step.kind is StepKind.RELEASE and o.result is Result.DONE for o in outcomes)
    if job.restarts <= last or job.held or _is_deferred(job, fleet.at):
        return ""
    other = restarted_by(state, incident, last)
    return f"job {job.id} was restarted by incident {other}" if other else f"job {job.id} was released, not by Sentinel"


def _was_held(outcomes: list[Outcome]) -> bool:
    return any((o.step.kind is StepKind.HOLD and o.result is Result.DONE) or o.data.get("held") for o in outcomes)


def _is_deferred(job: JobView, now: datetime) -> bool:
    return job.state == "pending" and job.eligible_at is not None and job.eligible_at - now > _DEFERRED


def restarted_by(state: State, incident: Incident, attempt: int) -> str:
    """Another incident that stopped the job in this attempt or a later one, to restart it; empty if there is none."""
    rows = state.ledger.of_job(incident.job or -1, StepKind.REQUEUE_HOLD)
    others = [r.incident for r in rows if r.incident != incident.id and (r.step.attempt or 0) >= attempt]
    return others[-1] if others else ""
