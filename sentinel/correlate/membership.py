"""Excludes evidence from incidents that it does not belong to, although job or node are the same."""

from __future__ import annotations

from datetime import timedelta

from sentinel.correlate import incidents
from sentinel.correlate.attempt_times import SLACK, ran, ran_at
from sentinel.correlate.gpu_owners import of_another_job
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import (
    NODE_STEPS,
    USER_SOURCES,
    Evidence,
    Incident,
    IncidentState,
    Kind,
    Plan,
    Source,
    StepKind,
    Verdict,
)

_SNAPSHOT = timedelta(seconds=20)  # the newest Slurm snapshot may be this much older than our drain


def is_unrelated(incident: Incident, plan: Plan | None, item: Evidence, cluster: ClusterView) -> bool:
    """Whether ``item`` concerns something other than ``incident``."""
    if of_another_job(incident.job, item, cluster):
        return True
    return is_tolerated_bad_numbers(incident, plan) or _of_the_next_job(incident, plan, item, cluster)


def is_late_news(
    incident: Incident,
    plan: Plan | None,
    verdict: Verdict | None,
    item: Evidence,
    cluster: ClusterView,
    window: timedelta,
) -> bool:
    """Whether ``item`` is late evidence of a node that ``incident``, closed by now, has taken out of service, or would have:
    somebody else had.

    A job cancelled by its user closes its incident at once, while evidence of the node still arrives. Evidence after the
    node is back in service is new, and so is a failed diagnostic.
    """
    node = item.where.node
    if (
        plan is None
        or plan.observe_only
        or incident.state is not IncidentState.CLOSED
        or incidents.is_failed_idle_test(item)
    ):
        return False
    ours = any(step.node == node and step.kind in NODE_STEPS for step in plan.steps)
    if not ours and (verdict is None or node not in verdict.drain):
        return False
    view = cluster.fleet.nodes.get(node) if cluster.fleet is not None and node is not None else None
    seen_out = view is not None and view.drained
    just = ours and incident.closed_at is not None and item.seen_at - incident.closed_at <= _SNAPSHOT
    return (seen_out or just) and incidents.is_near(incident, item.at, window)


def is_over(incident: Incident, plan: Plan | None) -> bool:
    """Whether the incident is closed for good. One that left its job running is judged again when that job fails or hangs
    after all: between a program's last words and its end lie seconds, storage may stay away, and a job finishes on a node
    that is only drained, or does not."""
    stopped = plan is None or plan.observe_only or any(step.job is not None for step in plan.steps)
    if incident.state is not IncidentState.CLOSED or plan is None or (plan.steps and stopped):
        return incident.state is IncidentState.CLOSED
    return not any(
        incidents.ends(item) and item.seen_at >= plan.at and incidents.opens(item) for item in incident.evidence
    )


def is_news_of_waiting(incident: Incident, verdict: Verdict | None, item: Evidence) -> bool:
    """Whether ``item`` is more of what ``incident`` waits to act on: its node is convicted already, and not out yet."""
    return (
        verdict is not None
        and incident.state is IncidentState.WAITING
        and item.where.node in verdict.drain
        and item.where.job in (None, incident.job)
        and not incidents.is_failed_idle_test(item)
    )


def is_tolerated_bad_numbers(incident: Incident, plan: Plan | None) -> bool:
    """Whether this is about bad numbers of a job that was left running: its later end is a separate failure."""
    idle = plan is not None and (not plan.steps or plan.observe_only or bool(plan.refusal))
    return idle and incident.job is not None and incidents.numbers_only(incident)


def _of_the_next_job(incident: Incident, plan: Plan | None, item: Evidence, cluster: ClusterView) -> bool:
    """Whether ``item`` concerns another job that runs on the node by now, while ``incident`` waits, is held, or has
    restarted its job elsewhere and left the node in service."""
    node = item.where.node
    left = incident.state in (IncidentState.HELD, IncidentState.WAITING) or (
        incident.state is IncidentState.WATCHING
        and plan is not None
        and not any(step.node == node and step.kind in NODE_STEPS for step in plan.to_do)
    )
    if not left or incident.job is None or node is None:
        return False
    if plan is not None and item.at <= plan.at and ran_at(item.at, ran(incident.job, incident.attempt, None, cluster)):
        return False  # told late: its own attempt was there, too, and not stopped yet
    view = cluster.job_on(node) if item.where.job is None else None
    began_later = view is not None and view.started_at is not None and item.at < view.started_at - SLACK
    return view is not None and view.id != incident.job and not began_later


def is_our_doing(plan: Plan | None, item: Evidence) -> bool:
    """Whether ``item`` only shows how the job ended after Sentinel decided to end it: no reason for another verdict."""
    if plan is None or all(step.job is None for step in plan.to_do) or item.seen_at < plan.at:
        return False  # a plan that waits, for a pause too, ends nothing
    if any(step.kind is StepKind.HOLD for step in plan.to_do) and item.at < plan.at:
        return False  # it may explain what the job is held for
    if item.kind == Kind.JOB_ENDED and any(step.kind is StepKind.START_RUN for step in plan.to_do):
        return False  # a restart in its allocation ends no job
    return item.source in USER_SOURCES or item.source is Source.PROCESS or item.kind == Kind.JOB_ENDED
