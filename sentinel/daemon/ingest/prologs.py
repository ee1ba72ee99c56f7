"""Tells on which nodes no prolog of Sentinel's reports the jobs that begin there, so that they begin unchecked; and keeps
which jobs prologs refused.

A single job without a report proves little: slurmd runs no prolog for a job that it remembers from before a crash (so
restarted attempts count only where they are reported), hooks may have been installed after it began (so what runs when a
node is first heard counts only where it is reported), and without PrologFlags=Alloc a node without a step has none. A node
is judged by the latest jobs that began there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.daemon.ingest.refusals import Refusals
from sentinel.daemon.ingest.unreported_jobs import AFTER, RunningHere

ENOUGH = 3  # jobs in a row without a report that show that the prolog is missing


@dataclass(slots=True)
class _Node:
    before: frozenset[int] = frozenset()  # jobs that ran when this daemon first heard the node
    reported: datetime | None = None  # when the latest of the jobs that its prolog reported began
    absent: dict[int, datetime] = field(default_factory=dict)  # running jobs without a report: the first heartbeat so
    without: dict[int, datetime] = field(default_factory=dict)  # the latest that had none: when they began


class Prologs:
    """Keeps for each node which of the latest jobs that began there a prolog reported."""

    def __init__(self) -> None:
        self.refusals = Refusals()
        self._nodes: dict[str, _Node] = {}

    def heard(
        self,
        node: str,
        running: Sequence[RunningHere],
        by_prolog: Collection[tuple[int, int]],
        seen_at: datetime,
        now: datetime,
    ) -> None:
        """Take in a heartbeat.

        Args:
            running: what Slurm has running there, by the snapshot of ``seen_at``.
            by_prolog: job and attempt of each that the heartbeat has from a prolog.
        """
        seen = self._nodes.get(node)
        if seen is None:
            seen = self._nodes[node] = _Node(before=frozenset(one.job for one in running))
        absent = {}
        for job, attempt, began, _ in running:
            if (job, attempt) in by_prolog:
                if seen.reported is None or seen.reported < began:
                    seen.reported = began
            elif attempt == 0 and job not in seen.before:
                # Not since it began: that is a time of slurmctld's clock.
                absent[job] = since = seen.absent.get(job, now)
                # A snapshot that is older than the heartbeat may show a job whose epilog has run since.
                if now - since > AFTER and seen_at > since:
                    seen.without[job] = began
        seen.absent = absent
        if seen.without:
            later = [item for item in seen.without.items() if seen.reported is None or item[1] > seen.reported]
            seen.without = dict(sorted(later, key=lambda item: item[1])[-ENOUGH:])

    def missing(self, node: str) -> bool:
        """Whether none of the latest jobs there was reported by a prolog."""
        seen = self._nodes.get(node)
        return seen is not None and len(seen.without) >= ENOUGH

    def of(self, node: str) -> dict[str, object] | None:
        """``runs``: whether Slurm runs the prolog there, None: not known; ``without``: the latest jobs that it did not
        report; ``last_at``: when the last of them began. None of a node of which no such job is known.
        """
        seen = self._nodes.get(node)
        if seen is None or not (seen.without or seen.reported):
            return None
        runs = True if not seen.without else False if self.missing(node) else None
        return {"runs": runs, "without": list(seen.without), "last_at": max(seen.without.values(), default=None)}
