"""Whether the last lines of a job's log, which say why it ended, may still be under way."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.daemon.live import Live
from sentinel.model import Incident, Kind, Source

_SHORT = timedelta(seconds=10)  # a job that ended so soon may have had no reader of its log yet
_UNHEARD = 3


def words_may_come(incident: Incident, live: Live, log_settle_s: float, now: datetime) -> bool:
    """Whether the job ended just now, or so soon after its start that its node began to read the log only at its end."""
    ends = [item for item in incident.evidence if item.kind == Kind.JOB_ENDED]
    settle = timedelta(seconds=log_settle_s)
    seen = live.attempts.get((incident.job or -1, incident.attempt or 0))
    began = seen.view.started_at if seen is not None else None
    heard = any(item.source is Source.JOB_LOG for item in incident.evidence)
    if ends and not heard and began is not None and max(item.at for item in ends) - began < _SHORT:
        settle *= _UNHEARD
    return any(item.seen_at > now - settle for item in ends)
