"""Finds jobs that run on a node by Slurm's word and that the node's agent does not report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta

from sentinel.model.records import Fleet

AFTER = timedelta(seconds=30)  # a job's prolog reports it at once, unless the site's other prologs before it take long
AGAIN_S = 30.0  # a node is told this often at most; its agent asks Slurm about a job once a minute at most
NODES_PER_S = (
    5.0  # told in all, batch hosts aside: where no prolog is installed, all nodes of a large job lack it at once
)


class UnreportedJobs:
    """Says to agents, in the answers to their heartbeats, which jobs of their node they should ask Slurm about."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._running: dict[str, list[tuple[int, int, datetime, bool]]] = {}  # by node: job, attempt, start, batch host
        self._told_s: dict[str, float] = {}
        self._next_s = 0.0

    def of(
        self, fleet: Fleet, node: str, reported: Collection[tuple[int, int]], now: datetime, now_s: float
    ) -> list[list[int]]:
        """Job and attempt of each job to tell this node of.

        Args:
            reported: job and attempt of each that its heartbeat has.
            now_s: monotonic seconds.
        """
        if fleet is not self._fleet:
            self._fleet, self._running = fleet, _running(fleet)
        here = self._running.get(node, ())
        missing = [entry for entry in here if entry[:2] not in reported and now - entry[2] > AFTER]
        if not missing or now_s - self._told_s.get(node, float("-inf")) < AGAIN_S:
            return []
        if not any(is_batch_host for _, _, _, is_batch_host in missing):
            if now_s < self._next_s:
                return []
            self._next_s = now_s + 1 / NODES_PER_S
        self._told_s[node] = now_s
        return [[job, attempt] for job, attempt, _, _ in missing]


def _running(fleet: Fleet) -> dict[str, list[tuple[int, int, datetime, bool]]]:
    found = defaultdict(list)
    for view in fleet.jobs.values():
        if view.state == "running" and view.started_at is not None:
            for node in view.nodes:
                first = node == (view.batch_host or view.nodes[0])
                found[node].append((view.id, view.restarts, view.started_at, first))
    return dict(found)
