"""Writes the notice that a node needs repair: its tests failed twice. It belongs to no incident's thread. Pure."""

from __future__ import annotations

from datetime import datetime

from sentinel.alerts.text import plain
from sentinel.alerts.without_incident import notice
from sentinel.model.records import Notice


def needs_repair(
    node: str, incident: str, cause: str, since: datetime, failures: int, failed: str, now: datetime
) -> Notice:
    """The notice that the node stays drained. Its id depends on node and drain only, so that a repeat can be dropped."""
    title = f"{plain(node)} needs repair: {cause}"
    lines = [
        f"What: {plain(node)} is drained since {since:%Y-%m-%d %H:%M} UTC and failed {failures} times; it stays drained.",
        f"Last: {plain(failed)}",
        f"Bundle (lines, counters, diagnostics, history): sentinel bundle {plain(node)}",
        f"Serial numbers: sentinel repairs. Why: sentinel why {plain(incident)}",
        f"After the repair: sentinel release {plain(node)}",
    ]
    return notice(
        "repair",
        [node, incident, since.isoformat()],
        now,
        title,
        lines,
        "warning",
        final=True,
        node=node,
        cause=cause,
        about=incident,
        failures=failures,
        reason=plain(failed),
    )
