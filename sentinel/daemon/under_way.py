"""Drains that were decided and do not show yet count as done: incidents judged together must not share one budget twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.model import OURS, Fleet, Plan, Result
from sentinel.policy import NODE_STEPS

_BEHIND_S = 1.0  # a snapshot may be this much older than it says


def with_plans(
    fleet: Fleet, plans: Iterable[Plan], drains: Sequence[Mapping[str, Any]], now: datetime
) -> tuple[Fleet, list[datetime]]:
    """The fleet as it will be when the drains under way are done, and the times of the last hour's drains with these.

    Args:
        drains: rows of the ledger that ended in the last hour. One that failed changed nothing, and one that found
            somebody else's drain in place (it says so in its reason) was not ours: neither costs budget.
    """
    shown = fleet.at - timedelta(seconds=_BEHIND_S)  # what was done before it, the snapshot shows
    failed = {(row["incident"], row["node"]) for row in drains if row["result"] == Result.FAILED}
    drains = [row for row in drains if row["result"] == Result.DONE]
    settled = failed | {(row["incident"], row["node"]) for row in drains if row["finished_at"] <= shown}
    drains = [row for row in drains if not row["reason"]]
    under_way = {
        step.node
        for plan in plans
        if not plan.observe_only and now - plan.at <= timedelta(hours=1)
        for step in plan.steps
        if step.kind in NODE_STEPS and (plan.incident, step.node) not in settled
    }
    nodes = {
        name: dataclasses.replace(view, flags=view.flags | {"drain"}, reason=f"{OURS}under way")
        if name in under_way and not view.drained
        else view
        for name, view in fleet.nodes.items()
    }
    hour = [row["intended_at"] for row in drains]
    hour.extend([now] * len(under_way - {row["node"] for row in drains}))
    return dataclasses.replace(fleet, nodes=nodes), hour
