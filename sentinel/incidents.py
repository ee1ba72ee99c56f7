"""Which evidence belongs to one failure.

In: the open incidents, one new evidence, what runs where, now. Out: the incident it belongs to, or a new one, or none.
Pure. Never judges: an Xid that means nothing opens an incident as well, and the verdict says that it means nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sentinel.model import Evidence, Incident, IncidentState, Kind, Source, stable_id

# Seen on healthy machines, or *not known*: never opens an incident, may explain one.
QUIET = frozenset(
    {
        Kind.UNREADABLE,
        Kind.PROBE_HUNG,
        Kind.DIAG_PASSED,
        Kind.NODE_BACK,
        Kind.STEP,
        Kind.TASK_STATE,
        Kind.CHECKPOINT_SAVED,
        Kind.CHECKPOINT_INVALID,
        Kind.CHECKPOINTS_HELD,
        Kind.BUNDLE,
        Kind.LEFT_BEHIND,
        Kind.COUNTERS,
        "rank_slower",  # and whether it has more work than the others is not known
        "persistence_off",  # a setting of the driver: slower to begin, no fault
    }
)
# How Slurm says that a job did not end by itself or by somebody's wish.
FAILED_STATES = frozenset({"failed", "node_fail", "out_of_memory", "boot_fail"})
# Lines of the job's own output explain a failure; a running job may print anything, so they open none.
_WORDS = frozenset({Source.JOB_LOG, Source.ERROR_FILE, Source.FLIGHT_RECORDER})
_AFTER_THE_END = timedelta(seconds=5)  # a node may take this long to say what ended the job on it
MOST_EVIDENCE = 400  # of one incident: what opens one and the first of the rest decide, all of it is in the store


def opens(evidence: Evidence) -> bool:
    """Whether this alone is a reason to look closer."""
    if evidence.kind == Kind.JOB_ENDED:
        return str(evidence.data.get("state", "")).lower() in FAILED_STATES
    if tells(evidence):
        return True
    if evidence.source in _WORDS:
        return evidence.data.get("opens") is True
    return evidence.kind not in QUIET


def tells(evidence: Evidence) -> bool:
    """Whether this is a finding about the saves or the speed of a job that goes on: its people are told, nothing is done."""
    return evidence.source in (Source.CHECKPOINT, Source.PROGRESS) and evidence.data.get("watched") is True


def only_tells(incident: Incident) -> bool:
    return any(tells(item) for item in incident.evidence)


def numbers_only(incident: Incident) -> bool:
    """Whether this is about numbers that stay bad in a job that goes on."""
    return any(item.kind == Kind.NUMBERS for item in incident.evidence) and not any(map(ends, incident.evidence))


def ends(evidence: Evidence) -> bool:
    """Whether this says that a job makes no further step."""
    return evidence.kind in (Kind.JOB_ENDED, Kind.STALL)


def idle_test(evidence: Evidence) -> bool:
    """Whether a node without work failed the diagnostic that the daemon had ordered: a failure of its own."""
    return evidence.kind == Kind.DIAG_FAILED and evidence.data.get("idle") is True


def known_worse(evidence: Evidence, judged: Sequence[Incident]) -> bool:
    """Whether this is only about the saves of an attempt that has a failure of its own, which its people know of."""
    job, attempt = evidence.where.job, evidence.where.attempt
    return tells(evidence) and any(i.job == job and i.attempt == attempt and not only_tells(i) for i in judged)


def belongs(incident: Incident, evidence: Evidence, job_nodes: Sequence[str], window: timedelta) -> bool:
    """Whether ``evidence`` is part of ``incident``.

    Args:
        job_nodes: nodes that the incident's job had in the attempt that failed.
        window: evidence of one failure comes within it.
    """
    where = evidence.where
    if tells(evidence) or only_tells(incident):
        return False  # one finding, one message; a failure that comes later is another matter
    if where.job is not None and incident.job is not None:
        return where.job == incident.job and (where.attempt is None or where.attempt == incident.attempt)
    if where.node is None or incident.state is IncidentState.CLOSED:
        return False
    if idle_test(evidence) and not any(idle_test(item) and item.where.node == where.node for item in incident.evidence):
        return False  # of whatever put the node under suspicion people were told: proof waits for no restart
    # After the restart the job's other nodes may run the next attempt: their news is no longer this incident's.
    of_its_job = incident.state is IncidentState.OPEN and where.node in job_nodes
    if (where.node not in incident.nodes and not of_its_job) or _long_over(incident, evidence.at):
        return False
    return abs(evidence.at - incident.updated_at) <= window


def _long_over(incident: Incident, at: datetime) -> bool:
    """Whether the incident's job had ended well before: its nodes may run another one by then."""
    ends = [item.at for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    return bool(ends) and at > max(ends) + _AFTER_THE_END


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
    """``incident`` with ``evidence`` added, each once, in order of time."""
    known = {item.id for item in incident.evidence}
    fresh = [item for item in evidence if item.id not in known]
    if not fresh:
        return incident
    merged = sorted(_most((*incident.evidence, *fresh)), key=lambda item: item.at)
    nodes = list(incident.nodes)
    for item in fresh:
        if item.where.node and item.where.node not in nodes and opens(item) and item.source not in _WORDS:
            nodes.append(item.where.node)
    return dataclasses.replace(
        incident,
        evidence=tuple(merged),
        nodes=tuple(nodes),
        updated_at=max(incident.updated_at, now),
        job=incident.job if incident.job is not None else next((e.where.job for e in fresh if e.where.job), None),
    )


def _most(items: Sequence[Evidence]) -> Sequence[Evidence]:
    """At most ``MOST_EVIDENCE``: a thousand tracebacks never push out Slurm's word that the job ended."""
    if len(items) <= MOST_EVIDENCE:
        return items
    return sorted(items, key=lambda i: (i.source in _WORDS or not opens(i), i.at))[:MOST_EVIDENCE]


def new(evidence: Evidence, *, job: int | None, attempt: int | None, now: datetime) -> Incident:
    """An incident opened by ``evidence``; its id is stable, so that the same evidence never opens two."""
    incident = Incident(
        id=stable_id("incident", evidence.id)[:10], opened_at=now, updated_at=now, job=job, attempt=attempt
    )
    return attach(incident, [evidence], now)
