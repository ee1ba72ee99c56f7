"""Keeps the failures of the last month and the restarts of each job in memory, for verdicts and plans.

Loaded from the store at start (``sentinel.engine.loading``), then updated with each decision of the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sentinel.classify import History, PastFailure
from sentinel.classify.ageing import Trend
from sentinel.classify.history import WINDOW
from sentinel.model.changes import of_users_words
from sentinel.model.records import Cause, Incident, Kind, Scope, Verdict
from sentinel.policy import PastRestart

_SEEN_ON = 16  # nodes named by a verdict's grounds; the store keeps as many for an incident

Attempt = tuple[int, int]  # job id and Slurm's restart count


class PastEvents:
    """Past verdicts and restarts, kept so that a verdict reads them without recomputing or touching the store."""

    def __init__(self) -> None:
        self.trends: tuple[Trend, ...] = ()
        self._failures: dict[str, tuple[PastFailure, ...]] = {}  # by incident
        self._of_job: dict[int, set[str]] = {}  # incidents with failures, by job
        self._all: tuple[PastFailure, ...] | None = None  # all of them, until one changes
        self._restarts: dict[int, list[PastRestart]] = {}  # by job
        self._corrections: dict[str, list[Mapping[str, Any]]] = {}  # by incident
        self._slow: dict[Attempt, dict[str, tuple[str, ...]]] = {}  # by attempt and incident

    # --- failures -----------------------------------------------------------------------------------------------------

    def judged(self, incident: Incident, verdict: Verdict, *, user: str | None, nodes: Sequence[str]) -> None:
        """Record ``incident`` as the failure that ``verdict`` names; ``nodes``: all nodes of the job's attempt."""
        row = {**row_of(incident, verdict, user), "corrections": self._corrections.get(incident.id)}
        self._put(incident.id, tuple(failures_of(row, nodes)))
        if incident.job is not None and incident.attempt is not None:
            self.suspected(incident.job, incident.attempt, incident.id, verdict)

    def _put(self, incident: str, found: tuple[PastFailure, ...]) -> None:
        self._unindex(incident)
        self._failures[incident] = found
        for job in {past.job for past in found if past.job is not None}:
            self._of_job.setdefault(job, set()).add(incident)

    def _unindex(self, incident: str) -> None:
        self._all = None
        for job in {past.job for past in self._failures.get(incident, ()) if past.job is not None}:
            self._of_job[job].discard(incident)
            if not self._of_job[job]:
                del self._of_job[job]

    def suspected(self, job: int, attempt: int, incident: str, verdict: Verdict) -> None:
        """Record the nodes that a verdict suspects of slowing this attempt down or corrupting its numbers."""
        kinds = {ground.evidence.kind for ground in verdict.grounds}
        if kinds & {Kind.SLOW, Kind.NUMBERS}:
            self._slow.setdefault((job, attempt), {})[incident] = verdict.suspect
        else:
            self._slow.get((job, attempt), {}).pop(incident, None)

    def loaded(self, row: Mapping[str, Any], nodes: Sequence[str]) -> None:
        """Record a failure as the store lists it; ``nodes`` as above."""
        self._put(row["id"], tuple(failures_of(row, nodes)))
        if row.get("corrections"):
            self._corrections[row["id"]] = list(row["corrections"])

    def corrected(self, row: Mapping[str, Any], correction: Mapping[str, Any]) -> None:
        """Record what an operator said of the incident of ``row`` (as the store lists it); a later verdict keeps it."""
        known = self._failures.get(row["id"], ())
        told = [*(row.get("corrections") or ()), correction]
        whose = {"job": known[0].job} if known else {}  # the row names also a job that is gone, for people
        self.loaded({**row, **whose, "corrections": told}, known[0].nodes if known else ())

    def owner(self, incident: str) -> str | None:
        """Who owned the incident's job; None: not known."""
        return next((past.user for past in self._failures.get(incident, ())), None)

    def failures(self, *, without: str | None) -> History:
        """Failures of the last month, including incidents held for a person; ``without``: the incident being judged."""
        if self._all is None:
            self._all = tuple(past for found in self._failures.values() for past in found)
        if without is None or without not in self._failures:
            return History(failures=self._all, trends=self.trends)
        return History(failures=tuple(past for past in self._all if past.incident != without), trends=self.trends)

    def of_job(self, job: int, *, without: str) -> list[PastFailure]:
        """Those of one job, in no order."""
        return [past for name in self._of_job.get(job, ()) if name != without for past in self._failures[name]]

    def slow_nodes(self, job: int | None, attempt: int | None) -> tuple[str, ...]:
        """Nodes that a restart of this attempt excludes, because they were suspected of slowing it down."""
        if job is None or attempt is None:
            return ()
        found = self._slow.get((job, attempt), {})
        return tuple(dict.fromkeys(name for names in found.values() for name in names))

    # --- restarts -----------------------------------------------------------------------------------------------------

    def restarted(self, job: int, restart: PastRestart) -> None:
        self._restarts.setdefault(job, []).append(restart)

    def restarts(self, job: int | None) -> tuple[PastRestart, ...]:
        """Sentinel's restarts of ``job``, the oldest first."""
        return tuple(self._restarts.get(job, ())) if job is not None else ()

    def since(self, jobs: Collection[int]) -> dict[int, datetime]:
        """By job, of these: the time of the first of its failures and restarts."""
        found = {job: restarts[0].at for job in self._restarts.keys() & jobs if (restarts := self._restarts[job])}
        for job in self._of_job.keys() & jobs:
            first = min(past.at for name in self._of_job[job] for past in self._failures[name])
            found[job] = min(found.get(job, first), first)
        return found

    def leave(self, job: int) -> None:
        """The job is gone, and Slurm has given its id to another one: what happened to it is no history of that."""
        for name in self._of_job.pop(job, set()):
            found = self._failures[name]
            self._failures[name] = tuple(replace(past, job=None) if past.job == job else past for past in found)
        self._all = None
        self._restarts.pop(job, None)
        self._slow = {attempt: found for attempt, found in self._slow.items() if attempt[0] != job}

    def forget(self, now: datetime, running: Iterable[int]) -> None:
        """Drop failures older than ``WINDOW``, and restarts of jobs that no longer run."""
        since, jobs = now - WINDOW, set(running)
        for name, found in list(self._failures.items()):
            if all(past.at < since for past in found):
                self._unindex(name)
                del self._failures[name]
                self._corrections.pop(name, None)
        for job, restarts in list(self._restarts.items()):
            if job not in jobs and all(restart.at < since for restart in restarts):
                del self._restarts[job]
        for attempt in list(self._slow):
            if attempt[0] not in jobs and attempt[0] not in self._restarts:
                del self._slow[attempt]


def row_of(incident: Incident, verdict: Verdict, user: str | None) -> dict[str, Any]:
    """A judged incident in the form in which the store lists incidents."""
    grounds = (ground.evidence.where.node for ground in verdict.grounds)
    return {
        "id": incident.id,
        "opened_at": incident.opened_at,
        "job": incident.job,
        "attempt": incident.attempt,
        "user": user,
        "cause": verdict.cause,
        "scope": verdict.scope,
        "seen_on": list(dict.fromkeys(node for node in grounds if node))[:_SEEN_ON],
        "culprit_nodes": verdict.culprits.nodes,
        "culprit_gpus": verdict.culprits.gpus,
        "culprit_ranks": verdict.culprits.ranks,
        "users_words": of_users_words(verdict),
        "onset_step": verdict.onset_step,
    }


def as_corrected(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """An incident's row with the cause and scope that an operator gave last; without a correction as it is.

    What is the program's, or shared by many nodes, is no node's fault any more; and what a person says about a machine
    counts more than what a user's program printed.
    """
    if not row.get("corrections"):
        return row
    told = row["corrections"][-1]
    if told["cause"] not in list(Cause) or told["scope"] not in list(Scope):
        return row  # a later release's
    shared = told["scope"] in (Scope.APPLICATION, Scope.CLUSTER)
    no_fault: dict[str, Any] = {"culprit_nodes": [], "culprit_gpus": []} if shared else {"users_words": False}
    return {**row, "cause": told["cause"], "scope": told["scope"], **no_fault}


def failures_of(row: Mapping[str, Any], nodes: Sequence[str] = ()) -> Iterable[PastFailure]:
    """One failure for each node to blame.

    A program's fault counts against a node only if it was seen on that node alone; a fault that many nodes reported, or a
    fault of something they share, counts against none.

    Args:
        row: as the store lists incidents; an incident without a verdict is no failure.
        nodes: all nodes of the job's attempt, remembered for bad numbers: without a named culprit they may still recur with
            one machine.
    """
    row = as_corrected(row)
    if not row["cause"]:
        return
    seen = row["seen_on"] or []
    blamed = row["culprit_nodes"] if row["scope"] != Scope.CLUSTER else ()
    named: list[str | None] = [*(blamed or ())] or ([*seen] if len(seen) == 1 else [None])
    for node in named:
        gpus = [
            gpu.removeprefix(f"{node}:") for gpu in row["culprit_gpus"] or () if node and gpu.startswith(f"{node}:")
        ]
        yield PastFailure(
            at=row["opened_at"],
            cause=Cause(row["cause"]),
            node=node,
            gpu=_one_gpu(gpus),
            job=row["job"],
            attempt=row.get("attempt"),
            user=row["user"],
            incident=row["id"],
            ranks=tuple(row["culprit_ranks"] or ()),
            step=row["onset_step"],
            nodes=tuple(nodes) if row["cause"] == Cause.NUMERICAL_NAN else (),
            blamed=bool(blamed),
            users_words=row.get("users_words") is True,
        )


def _one_gpu(named: Sequence[str]) -> str | None:
    """The GPU that failed; None: none is named, or several are. The same one may be named by index and by address."""
    indices = [gpu for gpu in named if gpu.isdigit()]
    first = indices or named
    return first[0] if len(first) == 1 else None
