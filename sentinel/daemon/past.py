"""The cluster's own history from the store: for the verdict, for policy, and in the form that planning takes.

``sentinel/planning/history.py`` documents that form.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.store import Store
from sentinel.classify import History, PastFailure
from sentinel.classify.ageing import Counter, Trend
from sentinel.classify.history import WINDOW
from sentinel.daemon.ageing import read_trends
from sentinel.model import Cause, Fleet, Kind, Result, StepKind
from sentinel.policy import PastRestart
from sentinel.wire import to_json

# What a bigger or luckier cluster would not have had: failures of programs are not the fleet's.
_PROGRAMS = "application"
_SHARED = "cluster"
_GPUS_PER_NODE = 8  # where Slurm's gres does not tell
_MOST = 5000  # newest incidents of a month that are looked at


class Past:
    """What a verdict and a plan need of the past. It is read once and then only what changed: many failures at once must
    not read a month of history each."""

    def __init__(self, store: Store, counters: Mapping[str, Counter] | None = None) -> None:
        self._store = store
        self._counters = counters or {}
        self._trends: tuple[Trend, ...] = ()
        self._failures: dict[str, tuple[PastFailure, ...]] | None = None  # by incident
        self._changed: set[str] = set()
        self._lock = threading.Lock()  # asked from threads

    def changed(self, incident: str) -> None:
        """It was judged or closed."""
        self._changed.add(incident)

    def history(self, now: datetime, *, without: str | None = None) -> History:
        """Failures of the last month, those that wait for a person too; ``without``: the one that is being judged."""
        with self._lock:
            if self._failures is None:
                self._changed.clear()
                self._failures = self._read(now - WINDOW)
            elif self._changed:
                ids = [self._changed.pop() for _ in range(len(self._changed))]
                self._failures.update(self._read(now - WINDOW, ids))
            if len(self._failures) > 2 * _MOST:  # what is older than the window is skipped, but need not be kept
                self._failures = None
                return self._of(self._read(now - WINDOW), without)
            return self._of(self._failures, without)

    def _of(self, failures: Mapping[str, tuple[PastFailure, ...]], without: str | None) -> History:
        kept = (past for name, found in failures.items() if name != without for past in found)
        return History(failures=tuple(kept), trends=self._trends)

    def _read(self, since: datetime, ids: Sequence[str] | None = None) -> dict[str, tuple[PastFailure, ...]]:
        rows = self._store.incident_rows(since=since, ids=ids, limit=_MOST)
        return {row["id"]: tuple(self._with_nodes(row)) for row in rows}

    def _with_nodes(self, row: Mapping[str, Any]) -> Iterable[PastFailure]:
        """Bad numbers that name no machine may still follow one: all that the attempt had are remembered."""
        found = failures_of([row])
        if row["cause"] != Cause.NUMERICAL_NAN or row["job"] is None:
            return found
        had = {known["attempt"]: tuple(known["nodes"]) for known in self._store.attempts(job=row["job"])}
        return [dataclasses.replace(past, nodes=had.get(row["attempt"], ())) for past in found]

    def look_at_counters(self, now: datetime) -> None:
        """Which parts age: asked now and then, never while a verdict waits."""
        self._trends = tuple(trend for trend in read_trends(self._store, self._counters, now) if trend.suspect)

    def recall(self, job: int | None, now: datetime) -> tuple[list[dict[str, Any]], list[PastRestart], bool]:
        """Drains of the last hour, also those that failed; our restarts of ``job``; whether an operator paused us."""
        hour, settled = now - timedelta(hours=1), (Result.DONE, Result.FAILED)
        drains = self._store.steps_done([StepKind.DRAIN, StepKind.DOWN], since=hour, results=settled)
        restarts = []
        if job is not None:
            known = self._store.incident_rows(job=job)
            causes = {row["id"]: row["cause"] for row in known}
            onsets = {row["id"]: row["onset_step"] for row in known}
            chosen = {
                row["attempt"]: row["data"].get("step")
                for row in self._store.steps_done([StepKind.CHOOSE_CHECKPOINT], job=job)
            }
            reached = {row["attempt"]: row["last_step"] for row in self._store.attempts(job=job)}
            for row in self._store.steps_done([StepKind.RELEASE], job=job):
                cause = Cause(causes.get(row["incident"]) or Cause.UNKNOWN)
                step = chosen.get(row["attempt"])
                got = [s for s in (reached.get(row["attempt"]), onsets.get(row["incident"])) if s is not None]
                restarts.append(PastRestart(row["intended_at"], cause, min(got, default=None), step))
        return drains, restarts, bool(self._store.get("paused", False))

    def slow_nodes(self, job: int | None, attempt: int | None) -> list[str]:
        """Nodes that people were told hold this attempt up, or spoil its numbers: a restart leaves them out."""
        found: list[str] = []
        for row in self._store.incident_rows(job=job) if job is not None else ():
            verdict = self._store.last_verdict(row["id"]) if row["attempt"] == attempt else None
            kinds = {ground.evidence.kind for ground in verdict.grounds} if verdict is not None else set()
            if verdict is not None and kinds & {Kind.SLOW, Kind.NUMBERS}:
                found.extend(name for name in verdict.suspect if name not in found)
        return found


def failures_of(rows: Iterable[Mapping[str, Any]]) -> Iterable[PastFailure]:
    """Judged incidents as failures, one for each node. A program's fault counts for a node only if it was seen on one:
    what many nodes said is no node's history."""
    for row in rows:
        if not row["cause"]:
            continue
        seen = row["seen_on"] or []
        blamed = row["culprit_nodes"] if row["scope"] != _SHARED else []  # what all share is no node's failure
        for node in blamed or (seen if len(seen) == 1 else [None]):
            yield PastFailure(
                at=row["opened_at"],
                cause=Cause(row["cause"]),
                node=node,
                gpu=_gpu_of(node, row["culprit_gpus"] or ()),
                job=row["job"],
                attempt=row.get("attempt"),
                user=row["user"],
                incident=row["id"],
                ranks=tuple(row["culprit_ranks"] or ()),
                step=row["onset_step"],
                blamed=bool(blamed),
            )


def _gpu_of(node: str | None, gpus: Collection[str]) -> str | None:
    return next((gpu.removeprefix(f"{node}:") for gpu in gpus if node and gpu.startswith(f"{node}:")), None)


def exposure(
    store: Store, since: datetime, now: datetime, running: Collection[tuple[int, int]] | None
) -> dict[str, float]:
    """Seconds of work that each node carried since then.

    Args:
        running: jobs with their attempts that run now; None: not known. An attempt without an end that does not run any
            more ended while nobody looked, and how much of it was work is not known: it is left out.
    """
    busy: dict[str, float] = {}
    for row in store.attempts(ran_since=since):
        ended = row["ended_at"]
        if ended is None and running is not None and (row["job"], row["attempt"]) not in running:
            continue
        seconds = ((ended or now) - max(row["started_at"], since)).total_seconds()
        for node in row["nodes"]:
            busy[node] = busy.get(node, 0.0) + max(0.0, seconds)
    return busy


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
