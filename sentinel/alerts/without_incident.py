"""Builds the notices that belong to no incident's thread. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from sentinel.model.records import Notice, Scalar, stable_id

Severity = Literal["info", "warning", "critical"]


def notice(
    event: str,
    identity: Sequence[str],
    now: datetime,
    title: str,
    lines: Sequence[str],
    severity: Severity,
    *,
    worst: Severity | None = None,
    final: bool,
    **data: Scalar,
) -> Notice:
    """A notice to the operators whose id depends on ``event`` and ``identity`` only, so that a repeat can be dropped.

    ``worst``: the worst severity that was told of this; the notice's own if None.
    """
    return Notice(
        id=stable_id("notice", event, *identity)[:16],
        incident="",
        at=now,
        title=title,
        body="\n".join(lines),
        data={
            "event": event,
            "severity": severity,
            "worst": worst or severity,
            "stage": event,
            "final": final,
            "operator_text": "\n".join([title, *lines]),
            **data,
        },
    )
