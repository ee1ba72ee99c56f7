"""Writes the notices that the store cannot be written, and that it can be again. They belong to no incident. Pure."""

from __future__ import annotations

from datetime import datetime

from sentinel.alerts.text import moment, plain, span_words
from sentinel.alerts.without_incident import notice
from sentinel.model.records import Notice

_STORE = "store"  # in the id: Slurm may have become unreadable at the same time


def store_unwritable(since: datetime, why: str, now: datetime) -> Notice:
    """The notice that the store cannot be written. Its id depends on ``since`` only, so that a repeat can be dropped."""
    lines = [
        f"What: Sentinel has been unable to write to its store since {moment(since)} ({span_words(since, now)}).",
        "Meanwhile this daemon judges, drains and restarts nothing. Agents keep what they see, and send it again.",
        f"Why: {plain(why)}",
        "Check: disk space and rights of the state folder, or the database server; sentinel doctor.",
        "More: sentinel status",
    ]
    title, at = "Sentinel does nothing: its store cannot be written", since.isoformat()
    return notice("blind", [_STORE, at], now, title, lines, "critical", final=False, since=at, reason=plain(why))


def store_writable_again(since: datetime, now: datetime) -> Notice:
    """The notice that the store can be written again, after ``store_unwritable``."""
    lines = [
        f"What: the store takes writes again. It took none from {moment(since)} to {moment(now)} "
        f"({span_words(since, now)}).",
        "What happened meanwhile is judged as agents send it: sentinel incidents",
    ]
    title, at = "Sentinel acts again: its store can be written", since.isoformat()
    told = [_STORE, at]
    return notice("sees_again", told, now, title, lines, "info", worst="critical", final=True, since=at, reason="")
