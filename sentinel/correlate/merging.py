"""Completes incidents with a fresh snapshot: finds their job, merges those of one failure, adds other affected jobs.

Evidence comes from many sources, some of it before the daemon knows which job runs where: a GPU's error may arrive before
the job on it is known, and a job's end before its node's fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from sentinel.correlate import incidents
from sentinel.correlate.attempt_times import attempt_at, by_slurms_clock, ran, ran_at, was_there
from sentinel.correlate.gpu_owners import is_of_one_gpu, is_spared, job_of, of_another_job
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.own_host import of_own_clock
from sentinel.model.approvals import ASKING, kept_by_people
from sentinel.model.identity import taken_along_id
from sentinel.model.intent import intent_of
from sentinel.model.records import Evidence, Fleet, Incident, IncidentState, JobView, Plan, Restart, Scope, Verdict
from sentinel.model.vocabulary import ABSENCE, DRAIN_REFUSED, MISSING_NODE, REBOOT_PENDING, UNREAD_NODE

# What a drain waits for while jobs are restarted around its node.
_BUDGETS = frozenset(
    {
        "drain-budget",
        DRAIN_REFUSED,
        UNREAD_NODE,
        MISSING_NODE,
        "last-healthy",
        "switch",
        "maintenance",
        REBOOT_PENDING,
        *ASKING,
    }
)
# The snapshot that a plan was made with may be this much older than it, where nodes were asked.
JUST_BEGUN = timedelta(seconds=10)
_ON_IT = frozenset({"running", "completing", "suspended"})


def with_job(incident: Incident, cluster: ClusterView, fleet: Fleet) -> Incident:
    """``incident`` with its job and attempt, as far as ``fleet`` shows them."""
    if incident.job is None:
        for item in filter(incidents.opens, incident.evidence):
            if (view := job_of(item, cluster)) is not None:
                attempt = attempt_at(view, by_slurms_clock(item, cluster), cluster)
                return dataclasses.replace(incident, job=view.id, attempt=attempt)
        view = _ended_by(incident, fleet)
    else:
        view = fleet.jobs.get(incident.job) if incident.attempt is None else None
    if view is None:
        return incident
    return dataclasses.replace(incident, job=view.id, attempt=attempt_at(view, _began(incident), cluster))


def _ended_by(incident: Incident, fleet: Fleet) -> JobView | None:
    """The job that ran on the incident's nodes when it began, and has failed since; of several the largest."""
    began = _began(incident)
    ended = (
        j for j in fleet.jobs.values() if j.state in incidents.FAILED_STATES and set(j.nodes) & set(incident.nodes)
    )
    return max(
        (j for j in ended if ran_at(began, (j.started_at, j.ended_at))), key=lambda job: len(job.nodes), default=None
    )


def _began(incident: Incident) -> datetime:
    return min((item.at for item in incident.evidence), default=incident.opened_at)


def same_failure(
    incident: Incident,
    others: Iterable[Incident],
    planned: Container[str],
    cluster: ClusterView,
    fleet: Fleet,
    window: timedelta,
) -> list[Incident]:
    """Those of ``others``, not judged yet, that are the same failure: same attempt, or on its nodes while it ran."""
    if incident.job is None or incidents.is_advisory_incident(incident):
        return []
    job = fleet.jobs.get(incident.job)
    nodes, when = _nodes(incident, job, cluster), ran(incident.job, incident.attempt, job, cluster)
    found = []
    for other in others:
        same_attempt = other.job == incident.job and other.attempt == incident.attempt
        of_nodes = other.job is None and other.nodes and nodes.issuperset(other.nodes)
        if not (same_attempt or (of_nodes and ran_at(_began(other), when))):
            continue
        if other.id == incident.id or other.id in planned or incidents.is_advisory_incident(other):
            continue
        if other.state is IncidentState.OPEN and abs(other.opened_at - incident.opened_at) <= window:
            found.append(other)
    return found


def says_no_more(incident: Incident, verdict: Verdict, earlier: Incident, known: Verdict, window: timedelta) -> bool:
    """Whether ``incident`` is what its nodes said within ``window`` of the closed ``earlier`` one, about the same attempt or
    about none: again the same kinds of evidence, and a verdict that names no more.

    Args:
        verdict: on ``incident``; ``known``: on ``earlier``.
    """
    if earlier.state is not IncidentState.CLOSED or earlier.id == incident.id:
        return False
    if (earlier.job, earlier.attempt) != (incident.job, incident.attempt):
        return False
    news = [item for item in incident.evidence if incidents.opens(item)]
    if any(item.where.node is None or item.where.job is not None or incidents.is_advisory(item) for item in news):
        return False
    if not {_kind(item) for item in news} <= {_kind(item) for item in earlier.evidence}:
        return False
    if not all(incidents.is_near(earlier, item.at, window) for item in news):
        return False
    if (verdict.cause, verdict.scope) != (known.cause, known.scope):
        return False
    return all(
        {*new} <= {*old}
        for new, old in (
            (verdict.drain, known.drain),
            (verdict.suspect, known.suspect),
            (verdict.culprits.gpus, known.culprits.gpus),
        )
    )


def _kind(item: Evidence) -> tuple[str, str | None, object]:
    return item.kind, item.where.node, item.data.get("xid")


def _nodes(incident: Incident, job: JobView | None, cluster: ClusterView) -> set[str]:
    """Those of the incident's attempt, as far as known."""
    now = job.nodes if job is not None and job.restarts == incident.attempt else ()
    return {*cluster.nodes_of(incident.job, incident.attempt), *now}


def of_nodes_in_service(
    incident: Incident,
    others: Iterable[Incident],
    verdicts: Mapping[str, Verdict],
    cluster: ClusterView,
    fleet: Fleet,
    window: timedelta,
) -> list[Evidence]:
    """What convicts nodes of the incident's job that wait to be taken out: while they do (observe, an approval, a budget),
    jobs begin there, and may end before any snapshot shows them.

    Not where the job ran there for longer than ``window`` after it, nor what happened after the job's end.
    """
    job, over = fleet.jobs.get(incident.job or -1), [i.at for i in incident.evidence if incidents.ends(i)]
    if job is None or not over:
        return []
    began = ran(incident.job, incident.attempt, job, cluster)[0]
    nodes = _nodes(incident, job, cluster)
    return [
        item
        for other in others
        if other.state is IncidentState.WAITING and other.id in verdicts
        for item in other.evidence
        if item.where.node in nodes.intersection(verdicts[other.id].drain)
        and item.where.job is None
        and incidents.opens(item)
        and not of_another_job(incident.job, item, cluster)
        and item.at <= max(over) + incidents.AFTER_THE_END
        and (began is None or max(over) - max(item.at, began) <= window)
    ]


def taken_along(
    incident: Incident,
    verdict: Verdict,
    plan: Plan,
    cluster: ClusterView,
    fleet: Fleet,
    known: Iterable[Incident],
    *,
    cleared: Collection[str],
    opt_in: bool,
    now: datetime,
) -> Sequence[Incident]:
    """A new incident for each other job on the nodes that ``plan`` takes out, or would if a budget allowed it, with the
    same grounds.

    Each job has its own restart budget and its own notice. Jobs with an incident of their own, and jobs that did not opt in,
    are skipped. So are nodes that are proven good or were put back since (``cleared``), or that a person keeps in service,
    and jobs that may finish there: those beside the one whose GPU broke, and those that ran there already when what happened
    before they began was heard.
    """
    out = {step.node for step in plan.to_do if step.node is not None}
    if any(wait.kind in _BUDGETS for wait in plan.waits):
        out.update(verdict.drain)  # a job leaves a bad node also where the node may not be drained yet
    # From a node that may recover no running job is taken.
    out.difference_update(cleared, kept_by_people(plan), verdict.may_pass)
    asked = any(wait.kind in ASKING for wait in plan.waits)
    if (plan.observe_only and not asked) or not out or verdict.restart is Restart.NONE:
        return []
    grounds = [e for e in incident.evidence if e.where.node in out and e.where.job is None and incidents.opens(e)]
    if not grounds:
        return []
    busy = {(other.job, other.attempt) for other in known}
    found = []
    for job in sorted(fleet.jobs.values(), key=lambda job: job.id):
        own = job.id == incident.job and incident.attempt in (None, job.restarts)  # its next attempt may need it, too
        if own or (job.id, job.restarts) in busy or job.state not in _ON_IT:
            continue
        if cluster.attempt_on(job) != job.restarts:
            continue  # it leaves the node already, for the queue
        if not out & set(job.nodes) or (opt_in and not intent_of(job.comment).restart):
            continue
        own_grounds = _that_concern(job, grounds, out, verdict, cluster)
        if not own_grounds or _began_between(job, own_grounds, incident, cluster):
            continue
        new = incidents.new(own_grounds[0], job=job.id, attempt=job.restarts, now=now)
        new = dataclasses.replace(new, id=taken_along_id(incident.id, job.id, job.restarts))
        found.append(incidents.attach(new, own_grounds, now))
    return found


def _that_concern(
    job: JobView, grounds: Sequence[Evidence], out: Set[str], verdict: Verdict, cluster: ClusterView
) -> list[Evidence]:
    """Of ``grounds`` those for which this job leaves nodes; none where all of its nodes have only GPUs of others broken."""
    told = {item.where.node for item in grounds}
    harmed = {
        item.where.node for item in grounds if not (_is_of_a_gpu(item, verdict) and is_spared(job, item, cluster))
    }
    spared = (told - harmed) & set(job.nodes)
    return [item for item in grounds if item.where.node not in spared] if out & set(job.nodes) - spared else []


def _began_between(job: JobView, grounds: Sequence[Evidence], incident: Incident, cluster: ClusterView) -> bool:
    """Whether the job began after what speaks against its nodes, and well before that was heard: whether it harms the job
    shows in the job. One that begins once its node is accused, or convicted, has just begun."""
    told = [item for item in grounds if item.where.node in job.nodes]
    if job.started_at is None or any(was_there(job, item, cluster) for item in told):
        return False
    return of_own_clock(job.started_at, cluster.own_clock_ahead_s()) <= incident.opened_at - JUST_BEGUN


def _is_of_a_gpu(item: Evidence, verdict: Verdict) -> bool:
    """Whether it convicts the node for one of its GPUs only; of a lost GPU some lines of the driver name none."""
    if is_of_one_gpu(item):
        return verdict.scope in (Scope.GPU, Scope.LINK)
    said = any(item.id == ground.evidence.id for ground in verdict.grounds)
    return verdict.scope is Scope.GPU and said and item.kind not in ABSENCE
