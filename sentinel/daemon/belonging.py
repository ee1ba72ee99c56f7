"""What evidence does not belong to, though it names the same job or node as an incident."""

from __future__ import annotations

from datetime import timedelta

from sentinel import incidents as room
from sentinel.daemon.holders import of_another_job
from sentinel.daemon.live import Live
from sentinel.model import USER_SOURCES, Evidence, Incident, IncidentState, Kind, Plan, Source
from sentinel.policy import NODE_STEPS

_SNAPSHOT = timedelta(seconds=20)  # so long Slurm's answer that we last had may be older than our drain


def apart(incident: Incident, plan: Plan | None, item: Evidence, live: Live) -> bool:
    """Whether ``item`` is news of something else."""
    if of_another_job(incident.job, item, live):
        return True
    return told_only(incident, plan) or _of_the_next_job(incident, item, live)


def late(incident: Incident, plan: Plan | None, item: Evidence, live: Live, window: timedelta) -> bool:
    """Whether ``item`` is a late word of a node that ``incident``, closed by now, has taken out of service.

    A job that its user cancels closes its incident at once, while the node's sources are still telling. Not once the node is
    back: what it says then is news. Nor what a test of it found: that is proof, which is told.
    """
    node = item.where.node
    if plan is None or plan.observe_only or incident.state is not IncidentState.CLOSED or room.idle_test(item):
        return False
    if not any(step.node == node and step.kind in NODE_STEPS for step in plan.steps):
        return False
    view = live.fleet.nodes.get(node) if live.fleet is not None and node is not None else None
    seen_out = view is not None and view.drained
    just = incident.closed_at is not None and item.seen_at - incident.closed_at <= _SNAPSHOT
    return (seen_out or just) and abs(item.at - incident.updated_at) <= window


def told_only(incident: Incident, plan: Plan | None) -> bool:
    """Whether this is about the bad numbers of a job that was let go on: how it ends is another failure, with a message of
    its own."""
    idle = plan is not None and (not plan.steps or plan.observe_only or bool(plan.refusal))
    return idle and room.numbers_only(incident)


def _of_the_next_job(incident: Incident, item: Evidence, live: Live) -> bool:
    """Whether a person has an old failure in hand while another job runs on the node by now: news of it is not old."""
    if incident.state is not IncidentState.HELD or incident.job is None or item.where.node is None:
        return False
    view = live.job_on(item.where.node) if item.where.job is None else None
    return view is not None and view.id != incident.job


def our_doing(plan: Plan | None, item: Evidence) -> bool:
    """Whether ``item`` only tells how the job ended after we had decided to end it: no ground for another verdict."""
    if plan is None or all(step.job is None for step in plan.steps) or item.seen_at < plan.at:
        return False
    return item.source in USER_SOURCES or item.source is Source.PROCESS or item.kind == Kind.JOB_ENDED
