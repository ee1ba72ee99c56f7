"""The cluster's own history in the form that planning takes (``sentinel/planning/history.py`` documents it)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sentinel.adapters.store import Store
from sentinel.model import Fleet, StepKind
from sentinel.wire import to_json

# What a bigger or luckier cluster would not have had: failures of programs are not the fleet's.
_PROGRAMS = "application"
_GPUS_PER_NODE = 8  # where Slurm's gres does not tell


def fleet_history(store: Store, fleet: Fleet | None, since: datetime, now: datetime) -> dict[str, Any]:
    """Exposure and failures since ``since``. ``gpu_s`` is 0 when nothing ran: then there is no history to plan from."""
    gpus = {name: node.gpus for name, node in fleet.nodes.items()} if fleet is not None else {}
    attempts = [row for row in store.attempts(since=since) if row["started_at"] <= now]
    gpu_s = 0.0
    for row in attempts:
        seconds = max(0.0, ((row["ended_at"] or now) - row["started_at"]).total_seconds())
        gpu_s += seconds * sum(gpus.get(name) or _GPUS_PER_NODE for name in row["nodes"])
    start = min((row["started_at"] for row in attempts), default=since)
    known = [count for count in gpus.values() if count]
    return {
        "start": to_json(start),
        "end": to_json(now),
        "gpu_s": gpu_s,
        "gpus_per_node": max(set(known), key=known.count) if known else _GPUS_PER_NODE,
        "failures": [_failure(store, row) for row in store.incident_rows(since=start, limit=5000) if _counts(row)],
    }


def _counts(row: dict[str, Any]) -> bool:
    return row["job"] is not None and row["cause"] is not None and row["scope"] != _PROGRAMS


def _failure(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    failure: dict[str, Any] = {"time": to_json(row["opened_at"]), "cause": row["cause"]}
    steps = store.steps_of(row["id"])
    drained = [s for s in steps if s["kind"] in (StepKind.DRAIN, StepKind.DOWN) and s["result"] == "done"]
    failure["node_lost"] = bool(drained)
    for step in steps:
        if step["kind"] == StepKind.CHOOSE_CHECKPOINT and step["data"].get("tier") in ("local", "global"):
            failure["repaired_by"] = step["data"]["tier"]
        if step["kind"] == StepKind.CONFIRM and step["result"] == "done" and row["decided_at"] is not None:
            failure["restart_s"] = max(0.0, (step["finished_at"] - row["decided_at"]).total_seconds())
    return failure
