"""Decides which evidence belongs to one failure: finds the incident for new evidence, or opens one.

Pure, and judges no cause: a harmless Xid opens an incident as well, and the verdict says that it is harmless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sentinel.detect.job_end import STATE_PREEMPTED
from sentinel.model.records import Evidence, Incident, IncidentState, Kind, Source, stable_id
from sentinel.model.vocabulary import JOB_OUTPUT

# Seen on healthy machines, or *not known*: such evidence never opens an incident, but may explain one.
QUIET = frozenset(
    {
        Kind.UNREADABLE,
        Kind.PROBE_HUNG,
        Kind.DIAG_PASSED,
        Kind.NODE_BACK,
        Kind.STEP,
        Kind.STARTED_BEFORE,
        Kind.TASK_STATE,
        Kind.CHECKPOINT_SAVED,
        Kind.CHECKPOINT_MANIFEST,
        Kind.CHECKPOINT_INVALID,
        Kind.NOT_RESUMED,
        Kind.CHECKPOINTS_HELD,
        Kind.BUNDLE,
        Kind.LEFT_BEHIND,
        Kind.COUNTERS,
        "log_no_space",  # of a job that failed, for whatever reason
        "rank_slower",  # and whether it has more work than the others is not known
        "persistence_off",  # a setting of the driver: slower to begin, no fault
    }
)
# Slurm's states of jobs that failed: they neither completed nor were cancelled or timed out.
FAILED_STATES = frozenset({"failed", "node_fail", "out_of_memory", "boot_fail"})
_ENDED_BY_NODES = frozenset({"node_fail", "boot_fail"})
AFTER_THE_END = timedelta(seconds=5)  # a node may take this long to say what ended the job on it
MOST_EVIDENCE = 400  # kept per incident: opening evidence first, then the oldest; the store has all of it


def opens(evidence: Evidence) -> bool:
    """Whether this evidence alone opens an incident."""
    if evidence.kind == Kind.JOB_ENDED:
        state = str(evidence.data.get("state", "")).lower()
        if state == STATE_PREEMPTED:  # for good, as what Slurm requeues has this state at no time: its owner is told
            return True
        return state in FAILED_STATES and not (state in _ENDED_BY_NODES and evidence.data.get("maintenance"))
    if is_advisory(evidence):
        return True
    if evidence.source in JOB_OUTPUT:  # it explains a failure, and a running job may print anything
        return evidence.data.get("opens") is True
    return evidence.kind not in QUIET


def is_advisory(evidence: Evidence) -> bool:
    """Whether this is a finding about saves or speed of a running job: it is reported, and no action is taken."""
    return evidence.source in (Source.CHECKPOINT, Source.PROGRESS) and evidence.data.get("watched") is True


def is_advisory_incident(incident: Incident) -> bool:
    return any(is_advisory(item) for item in incident.evidence)


def numbers_only(incident: Incident) -> bool:
    """Whether this is about numbers that stay bad in a job that keeps running."""
    return any(item.kind == Kind.NUMBERS for item in incident.evidence) and not any(map(ends, incident.evidence))


def ends(evidence: Evidence) -> bool:
    """Whether this shows that a job makes no further steps: it ended or stalled."""
    return evidence.kind in (Kind.JOB_ENDED, Kind.STALL)


def is_failed_idle_test(evidence: Evidence) -> bool:
    """Whether an idle node failed a diagnostic that the daemon ordered: a failure separate from any job's."""
    return evidence.kind == Kind.DIAG_FAILED and evidence.data.get("idle") is True


def has_known_failure(evidence: Evidence, judged: Sequence[Incident]) -> bool:
    """Whether this is an advisory finding about an attempt whose failure was reported already."""
    job, attempt = evidence.where.job, evidence.where.attempt
    return is_advisory(evidence) and any(
        i.job == job and i.attempt == attempt and not is_advisory_incident(i) for i in judged
    )


def belongs(incident: Incident, evidence: Evidence, job_nodes: Sequence[str], window: timedelta) -> bool:
    """Whether ``evidence`` is part of ``incident``.

    Args:
        job_nodes: nodes that the incident's job had in the attempt that failed.
        window: evidence of one failure comes within it.
    """
    where = evidence.where
    if is_advisory(evidence):
        return _of_another_node(incident, evidence, window)  # a later finding or failure is another incident
    if where.job is not None and incident.job is not None:
        same = where.job == incident.job and (where.attempt is None or where.attempt == incident.attempt)
        return same and not is_advisory_incident(incident)
    if where.node is None or incident.state is IncidentState.CLOSED:
        return False
    if not is_near(incident, evidence.at, window) or is_advisory_incident(incident):
        return False
    if is_failed_idle_test(evidence) and not any(
        is_failed_idle_test(item) and item.where.node == where.node for item in incident.evidence
    ):
        return False  # the suspicion was reported by its own incident; the node's failure is handled separately
    if where.job is not None and any(map(is_failed_idle_test, incident.evidence)):
        return False  # the node was idle then: what the end of a job left behind belongs to that job's incident
    # After the restart the job's other nodes may run the next attempt: their evidence no longer belongs here.
    running = incident.state is IncidentState.OPEN or _while_it_ran(incident, evidence.at)
    of_its_job = running and where.node in job_nodes
    return (where.node in incident.nodes or of_its_job) and not _long_over(incident, evidence.at)


def _of_another_node(incident: Incident, evidence: Evidence, window: timedelta) -> bool:
    """Whether another node of the attempt told of the same: each watches its own disk."""
    node, where = evidence.data.get("on_node"), evidence.where
    return node is not None and any(
        is_advisory(item)
        and (item.kind, item.where.job, item.where.attempt) == (evidence.kind, where.job, where.attempt)
        and item.data.get("on_node") not in (None, node)
        and abs(item.at - evidence.at) <= window
        for item in incident.evidence
    )


def is_near(incident: Incident, at: datetime, window: timedelta) -> bool:
    """Whether ``at`` is within ``window`` of when the incident's evidence happened or came.

    A node's clock may be wrong, and what was kept while the daemon was away comes late.
    """
    if abs(at - incident.updated_at) <= window:
        return True
    times = [item.at for item in incident.evidence]
    return bool(times) and min(times) - window <= at <= max(times) + window


def _while_it_ran(incident: Incident, at: datetime) -> bool:
    """Whether the job of a held incident still ran at that time: what is heard late may explain its end."""
    ends = [item.at for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    ends += [item.seen_at for item in incident.evidence if item.kind == Kind.STALL]
    return incident.state is IncidentState.HELD and bool(ends) and at <= max(ends) + AFTER_THE_END


def _long_over(incident: Incident, at: datetime) -> bool:
    """Whether the incident's job had ended well before: its nodes may run another one by then."""
    ends = [item.at for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    return bool(ends) and at > max(ends) + AFTER_THE_END


def find(
    incidents: Sequence[Incident], evidence: Evidence, job_nodes: Mapping[str, Sequence[str]], window: timedelta
) -> Incident | None:
    """The incident that ``evidence`` belongs to: an open one before a closed one, the newest first.

    Args:
        job_nodes: by incident id.
    """
    fitting = [i for i in incidents if belongs(i, evidence, job_nodes.get(i.id, ()), window)]
    return min(fitting, key=lambda i: (i.state is IncidentState.CLOSED, -i.opened_at.timestamp()), default=None)


def attach(incident: Incident, evidence: Sequence[Evidence], now: datetime) -> Incident:
    """``incident`` with ``evidence`` added, without duplicates, in order of time."""
    known = {item.id for item in incident.evidence}
    fresh = [item for item in evidence if item.id not in known]
    if not fresh:
        return incident
    merged = sorted(_most((*incident.evidence, *fresh)), key=lambda item: item.at)
    nodes = list(incident.nodes)
    for item in fresh:
        if item.where.node and item.where.node not in nodes and opens(item) and item.source not in JOB_OUTPUT:
            nodes.append(item.where.node)
    return dataclasses.replace(
        incident,
        evidence=tuple(merged),
        nodes=tuple(nodes),
        updated_at=max(incident.updated_at, now),
        job=incident.job if incident.job is not None else next((e.where.job for e in fresh if e.where.job), None),
    )


def _most(items: Sequence[Evidence]) -> Sequence[Evidence]:
    """At most ``MOST_EVIDENCE`` items: many log lines never displace opening evidence such as the job's end."""
    if len(items) <= MOST_EVIDENCE:
        return items
    return sorted(items, key=lambda i: (i.source in JOB_OUTPUT or not opens(i), i.at))[:MOST_EVIDENCE]


def new(evidence: Evidence, *, job: int | None, attempt: int | None, now: datetime) -> Incident:
    """An incident opened by ``evidence``; its id is stable, so that the same evidence never opens two."""
    incident = Incident(
        id=stable_id("incident", evidence.id)[:10], opened_at=now, updated_at=now, job=job, attempt=attempt
    )
    return attach(incident, [evidence], now)
