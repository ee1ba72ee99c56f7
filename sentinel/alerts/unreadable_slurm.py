"""Writes the notices that Slurm cannot be read, and that it can be read again. They belong to no incident. Pure."""

from __future__ import annotations

from datetime import datetime

from sentinel.alerts.text import moment, plain, span_words
from sentinel.alerts.without_incident import notice
from sentinel.model.records import Notice


def slurm_unreadable(since: datetime, why: str, fix: str, now: datetime) -> Notice:
    """The notice that Slurm cannot be read. Its id depends on ``since`` only, so that a repeat can be dropped."""
    lines = [
        f"What: Slurm has given Sentinel no answer that it can read since {moment(since)} ({span_words(since, now)}).",
        "Meanwhile nothing is judged, drained or restarted. What nodes report is kept and judged when Slurm answers.",
        f"Why: {plain(why)}",
        f"Check: scontrol ping; systemctl status slurmctld munge; sentinel doctor.{f' {plain(fix)}.' if fix else ''}",
        "More: sentinel status",
    ]
    title = "Sentinel is blind: Slurm cannot be read"
    at = since.isoformat()
    return notice("blind", [at], now, title, lines, "critical", final=False, since=at, reason=plain(why))


def slurm_readable_again(since: datetime, now: datetime) -> Notice:
    """The notice that Slurm can be read again, after ``slurm_unreadable``."""
    lines = [
        f"What: Slurm answers again. Sentinel was blind from {moment(since)} to {moment(now)} ({span_words(since, now)}).",
        "What happened meanwhile is judged now: sentinel incidents",
    ]
    title = "Sentinel sees again: Slurm can be read"
    at = since.isoformat()
    return notice("sees_again", [at], now, title, lines, "info", worst="critical", final=True, since=at, reason="")
