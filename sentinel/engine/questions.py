"""Decides what is asked and looked up before an incident's first verdict: of nodes (hangs, dumps), of Prometheus, and what
is known of the job's own steps and resume points."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sentinel.correlate import incidents
from sentinel.correlate.standing_faults import standing_faults
from sentinel.detect.failed_resume import failed_resume, resume_of, started_before
from sentinel.engine.reconcile.situations import was_observed
from sentinel.engine.state import State
from sentinel.evidence.prometheus import KIND as SIGNAL
from sentinel.model.records import Cause, Evidence, Incident, Kind, Source, StepKind


def dumps_are_known_of(incident: Incident) -> bool:
    """Whether nodes reported flight-recorder dumps that were not analysed yet."""
    if incident.job is None or incident.attempt is None:
        return False
    kinds = {item.kind for item in incident.evidence if item.source is Source.FLIGHT_RECORDER}
    return "dumps" in kinds and "hang" not in kinds


def tasks_are_unknown(incident: Incident) -> bool:
    """Whether a job has stalled and the states of its processes were not read yet."""
    kinds = {item.kind for item in incident.evidence}
    known = incident.job is not None and incident.attempt is not None
    return known and Kind.STALL in kinds and Kind.TASK_STATE not in kinds


def nodes_must_be_asked(incident: Incident) -> bool:
    return dumps_are_known_of(incident) or tasks_are_unknown(incident)


def prometheus_may_explain(incident: Incident) -> bool:
    """Whether to ask Prometheus: not for advisory findings, and only once for each incident."""
    return not incidents.is_advisory_incident(incident) and all(item.kind != SIGNAL for item in incident.evidence)


def without_a_step(state: State, incident: Incident, cause: Callable[[], Cause], now: datetime) -> list[Evidence]:
    """Why an attempt ended without a step, as far as what was chosen for it and what the cluster showed tell."""
    if incident.job is None:
        return []
    rows = [r for r in state.ledger.of_job(incident.job, StepKind.CHOOSE_CHECKPOINT) if r.incident != incident.id]
    resume = None
    if rows and (last := rows[-1]).outcome is not None and not last.step.data.get("run"):
        resume = resume_of(last.step.attempt or 0, last.outcome.data)
    before = [restart.step_before for restart in state.past.restarts(incident.job)]
    before += [state.cluster.last_step(incident.job, attempt) for attempt in range(incident.attempt or 0)]
    reached = max((step for step in before if step is not None), default=None)
    observed = was_observed(state, incident)
    return [
        *failed_resume(incident, state.cluster, resume, cause, reached=reached, observed=observed, now=now),
        *started_before(incident, state.cluster, now),
    ]


def around(state: State, incident_id: str, now: datetime) -> list[Evidence]:
    """What was known before the incident, and is in none of its reports: the job's steps, faults that its nodes show."""
    incident = state.incidents[incident_id]
    faults = standing_faults(incident, state.cluster, state.rules.convictions, state.window, now)
    return [*steps_around(state, incident_id), *faults]


def steps_around(state: State, incident_id: str) -> list[Evidence]:
    """The last step lines before and after what the job's log says: what a job went on after did not end it."""
    incident = state.incidents[incident_id]
    if incident.job is None or incident.attempt is None:
        return []
    if not any(item.source is Source.JOB_LOG and item.line is not None for item in incident.evidence):
        return []
    since = incident.opened_at - state.window
    return state.cluster.step_lines(incident.job, incident.attempt, since)
