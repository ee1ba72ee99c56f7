"""Reads the cluster's history from the store: work carried by each node, exposure and failures for planning, and when a node
was out of service.

``sentinel/planning/history.py`` documents the form that planning takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.daemon.api.lost import ON_PURPOSE, Alive, Row, worked_s
from sentinel.engine.history import as_corrected
from sentinel.model.records import LEFT_IN_SERVICE, Fleet, Result, StepKind
from sentinel.model.vocabulary import END_NOT_SEEN, WAS_OUT
from sentinel.wire import to_json

# Scope whose failures are not counted: failures of programs do not depend on the fleet.
_PROGRAMS = "application"
_GPUS_PER_NODE = 8  # assumed where Slurm's gres gives no count
_TOLD = (
    StepKind.DRAIN,
    StepKind.DOWN,
    StepKind.CHOOSE_CHECKPOINT,
    StepKind.CONFIRM,
)  # steps that say what a failure took


def exposure(
    store: Store, since: datetime, now: datetime, running: Collection[tuple[int, int]] | None
) -> dict[str, float]:
    """Seconds for which each node ran jobs since then.

    Args:
        running: (job, attempt) pairs that run now; None: not known. An attempt without an end that is not among them
            ended unobserved; how long it worked is not known, so that it counts nothing.
    """
    busy: dict[str, float] = {}
    for row in store.attempts(ran_since=since):
        seconds = worked_s(row, since, now, now=now, alive=running)
        for node in row["nodes"] if seconds > 0 else ():
            busy[node] = busy.get(node, 0.0) + seconds
    return busy


def fleet_history(
    store: Store, fleet: Fleet | None, since: datetime, now: datetime, running: Alive = None
) -> dict[str, Any]:
    """Exposure and failures since ``since``. ``gpu_s`` is 0 if nothing ran: there is then no history to plan from.

    Args:
        running: (job, attempt) pairs that run now; None: not known. As for ``exposure``, and so as reports count work.
    """
    failed = [row for row in map(as_corrected, store.each_incident(since=since, summed=True)) if _counts(row)]
    gpus = {name: node.gpus for name, node in fleet.nodes.items()} if fleet is not None else {}
    attempts = [
        row
        for row in store.attempts(ran_since=since)
        if row["started_at"] <= now and _counted(row, since, fleet, running)
    ]
    gpu_s = 0.0
    for row in attempts:
        gpu_s += worked_s(row, since, now, now=now, alive=running) * sum(
            gpus.get(name) or _GPUS_PER_NODE for name in row["nodes"]
        )
    start = max(since, min((row["started_at"] for row in attempts), default=since))
    steps: dict[str, list[dict[str, Any]]] = {}  # one query for all: a month may have thousands of incidents
    for row in store.steps_done(_TOLD, since=start, results=tuple(Result)):
        steps.setdefault(row["incident"], []).append(row)
    known = [count for count in gpus.values() if count]
    return {
        "start": to_json(start),
        "end": to_json(now),
        "gpu_s": gpu_s,
        "gpus_per_node": max(set(known), key=known.count) if known else _GPUS_PER_NODE,
        "failures": [_failure(row, steps.get(row["id"], ())) for row in failed if row["opened_at"] >= start],
    }


def _counted(row: dict[str, Any], since: datetime, fleet: Fleet | None, running: Alive) -> bool:
    """Whether an attempt's work counts. It does not if its end was not observed and Slurm no longer knows the job."""
    if row["state"] == END_NOT_SEEN:
        return False
    if row["ended_at"] is None and running is not None:
        return (row["job"], row["attempt"]) in running
    known = fleet is not None and row["job"] in fleet.jobs
    return row["ended_at"] is not None or row["started_at"] >= since or known


def _counts(row: Row) -> bool:
    """Whether it is a failure of the fleet, as reports count them: what was ended on purpose is none."""
    judged = row["job"] is not None and row["cause"] not in (None, ON_PURPOSE)
    return judged and row["scope"] != _PROGRAMS


def _failure(row: Row, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    failure: dict[str, Any] = {"time": to_json(row["opened_at"]), "cause": row["cause"]}
    drained = [s for s in steps if s["kind"] in (StepKind.DRAIN, StepKind.DOWN) and s["result"] == "done"]
    failure["node_lost"] = bool(drained)
    for step in steps:
        if step["kind"] == StepKind.CHOOSE_CHECKPOINT and step["data"].get("tier") in ("local", "global"):
            failure["repaired_by"] = step["data"]["tier"]
        if step["kind"] == StepKind.CONFIRM and step["result"] == "done" and row["decided_at"] is not None:
            failure["restart_s"] = max(0.0, (step["finished_at"] - row["decided_at"]).total_seconds())
    return failure


def outages(steps: Sequence[Row], in_service: Iterable[datetime]) -> tuple[list[datetime], list[datetime]]:
    """When a node was taken out of service, and when it was seen in service, both in order.

    A drain that was done again, also after one for another incident, or that found the node out already, goes on with the
    one before it, unless the node was seen in service between.

    Args:
        steps: the node's drains in the ledger that were done, the oldest first.
        in_service: times at which it was returned, or a job began on it.
    """
    began: list[datetime] = []
    of: dict[str, datetime] = {}  # incidents for which it is out, and when it was drained for them last
    left = [row["finished_at"] for row in steps if _data(row).get(LEFT_IN_SERVICE)]  # a person had returned it
    back = sorted([*in_service, *left])
    for row in steps:
        if _data(row).get(LEFT_IN_SERVICE):
            continue
        at = row["finished_at"]
        more = row["incident"] in of or (of and _data(row).get(WAS_OUT))
        if not more or any(max(of.values()) < seen <= at for seen in back):
            began.append(at)
            of = {}
        of[row["incident"]] = at
    return began, back


def _data(row: Row) -> Mapping[str, Any]:
    return row.get("data") or {}
