"""Decides which questions an incident needs before its first verdict: to nodes (hangs, dumps) and to Prometheus."""

from __future__ import annotations

from sentinel.correlate import incidents
from sentinel.evidence.prometheus import KIND as SIGNAL
from sentinel.model.records import Incident, Kind, Source


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
