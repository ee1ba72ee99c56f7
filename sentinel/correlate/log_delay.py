"""Decides whether to wait for the last lines of an ended job's log, which tell why it ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Incident, Kind, Source

_SHORT = timedelta(seconds=10)  # a job that ended so soon may have had no reader of its log yet
_UNHEARD = 3


def log_may_still_come(incident: Incident, cluster: ClusterView, log_settle_s: float, now: datetime) -> bool:
    """Whether the job ended just now, or so soon after its start that its node began to read the log only at its end."""
    ends = [item for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    settle = timedelta(seconds=log_settle_s)
    seen = cluster.attempts.get((incident.job or -1, incident.attempt or 0))
    began = seen.view.started_at if seen is not None else None
    heard = any(item.source is Source.JOB_LOG for item in incident.evidence)
    if ends and not heard and began is not None and max(item.at for item in ends) - began < _SHORT:
        settle *= _UNHEARD
    return any(item.seen_at > now - settle for item in ends)
