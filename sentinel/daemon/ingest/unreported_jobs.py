"""Finds jobs that run on a node by Slurm's word and that the node's agent does not report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sentinel.adapters.slurm.parse import ENDED
from sentinel.daemon.ingest.watched_folders import runs_script
from sentinel.model.records import Fleet

AFTER = timedelta(seconds=30)  # a job's prolog reports it at once, unless the site's other prologs before it take long
AGAIN_S = 30.0  # a node is told this often at most; its agent asks Slurm about a job once a minute at most
# Jobs told of in the whole cluster: where no prolog is installed, all nodes miss all their jobs at once.
BATCH_HOSTS_PER_S, OTHERS_PER_S = 20.0, 5.0
OVER_S = 30.0  # an epilog takes a job file away before that
MOST = 64  # jobs of one answer
_HOLDS_NONE = ENDED | {"pending"}


class RunningHere(NamedTuple):
    """An attempt of a job that runs on a node by Slurm's word."""

    job: int
    attempt: int
    began: datetime
    has_script: bool  # its batch script runs on this node


class UnreportedJobs:
    """Says to agents, in the answers to their heartbeats, which jobs of their node they should ask Slurm about."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._running: dict[str, list[RunningHere]] = {}  # by node
        self._told_s: dict[str, float] = {}
        self._next_s = {True: 0.0, False: 0.0}  # for batch hosts, for others
        self._over_since_s: dict[str, dict[tuple[int, int], float]] = {}  # by node

    def running(self, fleet: Fleet, node: str) -> Sequence[RunningHere]:
        """What Slurm has running on this node."""
        if fleet is not self._fleet:
            self._fleet, self._running = fleet, _running(fleet)
        return self._running.get(node, ())

    def of(
        self, fleet: Fleet, node: str, reported: Collection[tuple[int, int]], now: datetime, now_s: float
    ) -> list[list[int]]:
        """Job and attempt of each job to tell this node of.

        Args:
            reported: job and attempt of each that its heartbeat has.
            now_s: monotonic seconds.
        """
        here = self.running(fleet, node)
        missing = [entry for entry in here if entry[:2] not in reported and now - entry.began > AFTER]
        if not missing or now_s - self._told_s.get(node, float("-inf")) < AGAIN_S:
            return []
        first = any(entry.has_script for entry in missing)
        if now_s < self._next_s[first]:
            return []
        missing = sorted(missing, key=lambda entry: not entry.has_script)[:MOST]
        self._next_s[first] = now_s + len(missing) / (BATCH_HOSTS_PER_S if first else OTHERS_PER_S)
        self._told_s[node] = now_s
        return [[job, attempt] for job, attempt, _, _ in missing]

    def over(self, fleet: Fleet, node: str, reported: Collection[tuple[int, int]], now_s: float) -> list[list[int]]:
        """Job and attempt of each that the node reports although Slurm has had it there no more for a while."""
        since_s = self._over_since_s.pop(node, {})
        left = [entry for entry in reported if _is_over(fleet, node, *entry)][:MOST]
        if not left:
            return []
        since_s = self._over_since_s[node] = {entry: since_s.get(entry, now_s) for entry in left}
        return [[job, attempt] for (job, attempt), at_s in since_s.items() if now_s - at_s >= OVER_S]


def _is_over(fleet: Fleet, node: str, job: int, attempt: int) -> bool:
    view = fleet.jobs.get(job)
    if view is None:
        return not fleet.may_have_job(job)
    return view.state in _HOLDS_NONE or (
        view.state == "running" and (view.restarts > attempt or node not in view.nodes)
    )


def _running(fleet: Fleet) -> dict[str, list[RunningHere]]:
    found = defaultdict(list)
    for view in fleet.jobs.values():
        if view.state == "running" and view.started_at is not None:
            for node in view.nodes:
                found[node].append(RunningHere(view.id, view.restarts, view.started_at, runs_script(view, node)))
    return dict(found)
