"""Writes the notice that a part of the stored state cannot be read. It belongs to no incident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sentinel.alerts.text import plain
from sentinel.alerts.without_incident import notice
from sentinel.model.records import Notice


def unreadable_state(records: Mapping[str, str], now: datetime) -> Notice:
    """``records``: why each cannot be read, by its id. The notice's id depends on these only: a repeat can be dropped."""
    title = "Sentinel only observes: a part of its state cannot be read"
    why = sorted(set(records.values()))
    lines = [
        f"What: {len(records)} records of open incidents or plans were left out at the start. They are kept as they were. "
        "Nothing is drained or restarted until a person has looked.",
        f"Why: {plain('; '.join(why)[:300])}",
        "Check: a later release wrote them (start that one again), or the disk lost them: sentinel incidents",
        "Go on without them: sentinel resume",
    ]
    reason = plain(why[0]) if why else ""
    return notice("unreadable_state", sorted(records), now, title, lines, "critical", final=False, reason=reason)
