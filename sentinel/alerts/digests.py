"""Combines many messages into one digest: the newest of each incident, worst first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sentinel.alerts.late import standing, with_what_stands
from sentinel.alerts.text import plain
from sentinel.model.records import Notice, stable_id

_MOST = 20  # incidents written out; the rest is counted, and can be listed
_WORST_FIRST = ("critical", "warning", "info")


def digest(notices: Sequence[Notice], now: datetime) -> Notice:
    """One message for messages to one receiver; its id depends on theirs, so that a repeat can be dropped."""
    threads: dict[str, list[Notice]] = {}
    for notice in sorted(notices, key=lambda one: one.order):
        threads.setdefault(notice.incident or notice.id, []).append(notice)
    newest = [with_what_stands(of[-1], of) for of in threads.values()]
    ordered = sorted(newest, key=lambda one: (_WORST_FIRST.index(_severity(one)), one.at))
    counts = Counter(map(_severity, ordered))
    parts = ", ".join(f"{counts[severity]} {severity}" for severity in _WORST_FIRST if counts[severity])
    more = [f"And {len(ordered) - _MOST} more: sentinel incidents"] if len(ordered) > _MOST else []
    shown = ordered[:_MOST]

    def all_of(key: str) -> str:
        texts = [plain_lines(str(one.data.get(key) or one.title)) for one in shown]
        return "\n\n".join([*texts, *more])

    return Notice(
        id=stable_id("digest", *sorted(notice.id for notice in notices))[:16],
        incident="",
        at=now,
        title=f"{len(ordered)} incident{'s' if len(ordered) > 1 else ''}: {parts}",
        body="\n".join([*(_lines_of(one, standing(threads[one.incident or one.id])) for one in shown), *more]),
        data={
            "event": "digest",
            "severity": _severity(ordered[0]),
            "stage": "digest",
            "final": True,
            "cluster": ordered[0].data.get("cluster", ""),
            "user": ordered[0].data.get("user"),
            "incidents": [one.incident for one in ordered],
            "owner_text": all_of("owner_text"),
            "operator_text": all_of("operator_text"),
        },
    )


def _lines_of(notice: Notice, stands: Sequence[str]) -> str:
    return "\n".join(map(plain, (f"{notice.at:%H:%M} UTC {notice.title}", *stands)))


def plain_lines(text: str) -> str:
    """Our own lines of text that was made plain before."""
    return "\n".join(plain(line) for line in text.split("\n"))


def _severity(notice: Notice) -> str:
    severity = str(notice.data.get("severity"))
    return severity if severity in _WORST_FIRST else "critical"
