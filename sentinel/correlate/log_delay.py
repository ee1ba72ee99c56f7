"""Decides whether to wait for the last lines of an ended job's log, which tell why it ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.model.records import Incident, Kind, Source

_UNHEARD = 3  # times as long where no line is known: of a job that ended at once, or on a busy node, it comes late


def log_may_still_come(incident: Incident, log_settle_s: float, now: datetime) -> bool:
    """Whether the job ended just now, or some seconds ago and nothing of its log is known."""
    ends = [item for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    heard = any(item.source is Source.JOB_LOG for item in incident.evidence)
    settle = timedelta(seconds=log_settle_s * (1 if heard else _UNHEARD))
    return any(item.seen_at > now - settle for item in ends)
