"""Writes the notice that a part of the stored state cannot be read. It belongs to no incident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sentinel.alerts.text import plain
from sentinel.model.records import Notice, stable_id


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
    return Notice(
        id=stable_id("notice", "unreadable_state", *sorted(records))[:16],
        incident="",
        at=now,
        title=title,
        body="\n".join(lines),
        data={
            "event": "unreadable_state",
            "reason": plain(why[0]) if why else "",
            "severity": "critical",
            "worst": "critical",
            "stage": "unreadable_state",
            "final": False,
            "operator_text": "\n".join([title, *lines]),
        },
    )
