"""Which job an incident is about, which incidents are one failure after all, and which other jobs it takes along.

News comes from many sides, some of it before the daemon knows who runs where: a GPU's last word may be heard before the job
on it, and a job's end before its node. With a fresh snapshot they are put together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta

from sentinel import incidents as room
from sentinel.daemon.holders import job_of
from sentinel.daemon.live import Live
from sentinel.intent import intent_of
from sentinel.model import Fleet, Incident, IncidentState, JobView, Plan, Restart, Verdict, stable_id

_SLACK = timedelta(seconds=2)  # Slurm's times are whole seconds, and clocks of nodes are not the same
_ON_IT = frozenset({"running", "completing", "suspended"})


def with_job(incident: Incident, live: Live, fleet: Fleet) -> Incident:
    """``incident`` with its job and attempt, as far as ``fleet`` shows them."""
    if incident.job is None:
        news = (item for item in incident.evidence if room.opens(item))
        view = next((v for item in news if (v := job_of(item, live)) is not None), None) or _ended_by(incident, fleet)
        return incident if view is None else dataclasses.replace(incident, job=view.id, attempt=view.restarts)
    if incident.attempt is None and incident.job in fleet.jobs:
        return dataclasses.replace(incident, attempt=fleet.jobs[incident.job].restarts)
    return incident


def _ended_by(incident: Incident, fleet: Fleet) -> JobView | None:
    """The job that ran on the incident's nodes when it began, and has failed since; of several the largest."""
    began = _began(incident)
    ended = (j for j in fleet.jobs.values() if j.state in room.FAILED_STATES and set(j.nodes) & set(incident.nodes))
    return max((j for j in ended if _ran_at(j, began)), key=lambda job: len(job.nodes), default=None)


def _began(incident: Incident) -> datetime:
    return min((item.at for item in incident.evidence), default=incident.opened_at)


def _ran_at(job: JobView, at: datetime) -> bool:
    if job.started_at is None or at < job.started_at - _SLACK:
        return False
    return job.ended_at is None or at <= job.ended_at + _SLACK


def same_failure(
    incident: Incident, others: Iterable[Incident], planned: Container[str], live: Live, fleet: Fleet, window: timedelta
) -> list[Incident]:
    """Of ``others`` those not judged yet that are the same failure: of the same attempt, or of its nodes while it ran."""
    if incident.job is None or room.only_tells(incident):
        return []
    job = fleet.jobs.get(incident.job)
    nodes = set(live.nodes_of(incident.job, incident.attempt))
    if job is not None and job.restarts == incident.attempt:
        nodes |= set(job.nodes)
    found = []
    for other in others:
        if other.id == incident.id or other.id in planned or room.only_tells(other):
            continue
        if other.state is not IncidentState.OPEN or abs(other.opened_at - incident.opened_at) > window:
            continue
        same_attempt = (other.job, other.attempt) == (incident.job, incident.attempt)
        of_nodes = other.job is None and other.nodes and set(other.nodes) <= nodes
        if same_attempt or (of_nodes and job is not None and _ran_at(job, _began(other))):
            found.append(other)
    return found


def taken_along(
    incident: Incident,
    verdict: Verdict,
    plan: Plan,
    fleet: Fleet,
    known: Iterable[Incident],
    *,
    opt_in: bool,
    now: datetime,
) -> Sequence[Incident]:
    """An incident for each further job on the nodes that ``plan`` takes out: they have the same ground and each its own
    budget and its own people. Jobs that have a failure of their own, and those that did not ask for it, are left."""
    out = {step.node for step in plan.steps if step.node is not None}
    if plan.refusal or plan.observe_only or not out or verdict.restart is Restart.NONE:
        return []
    grounds = [e for e in incident.evidence if e.where.node in out and e.where.job is None and room.opens(e)]
    if not grounds:
        return []
    busy = {(other.job, other.attempt) for other in known}
    found = []
    for job in sorted(fleet.jobs.values(), key=lambda job: job.id):
        if job.id == incident.job or (job.id, job.restarts) in busy or job.state not in _ON_IT:
            continue
        if not out & set(job.nodes) or (opt_in and not intent_of(job.comment).restart):
            continue
        new = room.new(grounds[0], job=job.id, attempt=job.restarts, now=now)
        new = dataclasses.replace(new, id=stable_id("taken along", incident.id, job.id)[:10])
        found.append(room.attach(new, grounds, now))
    return found
