"""What happened before, as the verdict uses it. Unknown history is fine: everything defaults to nothing known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from sentinel.classify.ageing import Trend
from sentinel.model import Cause, require_aware

WINDOW = timedelta(days=30)
PRIOR = 0.25  # failures' worth of belief that a node is like the others


@dataclass(frozen=True, slots=True)
class PastFailure:
    """One judged incident, as far as it concerns one node or one job."""

    at: datetime
    cause: Cause
    node: str | None = None  # the culprit's, or where the words of a program's fault were seen
    gpu: str | None = None  # index or PCI address on the node
    job: int | None = None
    user: str | None = None
    incident: str | None = None  # several records of one incident are one failure
    ranks: tuple[int, ...] = ()
    step: int | None = None  # at which numbers went bad

    def __post_init__(self) -> None:
        require_aware(self.at)


@dataclass(frozen=True, slots=True)
class History:
    """Failures before this one, and how long each node carried work in the same time."""

    failures: tuple[PastFailure, ...] = ()
    busy_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    trends: tuple[Trend, ...] = ()  # of counters that age

    def recent(self, now: datetime) -> tuple[PastFailure, ...]:
        return tuple(past for past in self.failures if now - WINDOW <= past.at <= now)

    def on_node(self, node: str, now: datetime, *, other_than_job: int | None = None) -> tuple[PastFailure, ...]:
        """Failures that this node hosted under other jobs."""
        return tuple(
            past
            for past in self.recent(now)
            if past.node == node and (other_than_job is None or past.job != other_than_job)
        )

    def of_job(self, job: int, now: datetime) -> tuple[PastFailure, ...]:
        return tuple(past for past in self.recent(now) if past.job == job)


EMPTY = History()


@dataclass(frozen=True, slots=True)
class NodeScore:
    """Failures hosted per day of work, with a 90 % interval; a lemon is a node whose lower bound is above the fleet."""

    node: str
    failures: int
    busy_days: float
    rate: float
    low: float
    high: float
    lemon: bool
    reasons: tuple[str, ...] = ()


def node_scores(history: History, now: datetime, *, ratio: float = 3.0) -> list[NodeScore]:
    """Nodes by suspicion, worst first.

    The rate is a Gamma posterior around the rate of the other nodes, so three failures in a busy month and three in an hour
    differ, and one failure on a new node says little. Failures of the application do not count against a node.
    """
    against = [past for past in history.recent(now) if past.node is not None and past.cause not in APPLICATION]
    counts: dict[str, list[PastFailure]] = {}
    for past in against:
        counts.setdefault(past.node or "", []).append(past)
    days = {node: max(seconds, 0.0) / 86400 for node, seconds in history.busy_s.items()}
    total_days = sum(days.values()) or float(max(len(counts), 1))
    scores = []
    for node in sorted(set(days) | set(counts)):
        pasts = counts.get(node, [])
        busy = days.get(node, total_days / max(len(days), 1))
        others = max(len(against) - len(pasts), 0.5) / max(total_days - busy, 1.0)
        shape, rate = len(pasts) + PRIOR, busy + PRIOR / others
        low, high = _gamma_interval(shape, rate)
        jobs = {past.job for past in pasts if past.job is not None}
        reasons = _reasons(pasts, jobs)
        lemon = low > ratio * others or (len(pasts) >= 3 and len(jobs) >= 3 and low > 1.5 * others)
        scores.append(NodeScore(node, len(pasts), busy, shape / rate, low, high, lemon, reasons))
    scores.sort(key=lambda score: (-score.low, score.node))
    return scores


def _reasons(pasts: list[PastFailure], jobs: set[int]) -> tuple[str, ...]:
    by_cause: dict[str, int] = {}
    for past in pasts:
        by_cause[past.cause.value] = by_cause.get(past.cause.value, 0) + 1
    reasons = [f"{count} x {cause}" for cause, count in sorted(by_cause.items(), key=lambda item: -item[1])]
    if len(jobs) > 1:
        reasons.append(f"under {len(jobs)} different jobs")
    return tuple(reasons)


def _gamma_interval(shape: float, rate: float) -> tuple[float, float]:
    """5 % and 95 % points of Gamma(shape, rate) by the Wilson-Hilferty approximation."""
    points = []
    for z in (-1.645, 1.645):
        root = 1 - 1 / (9 * shape) + z / (3 * shape**0.5)
        points.append(shape * max(root, 0.0) ** 3 / rate)
    return points[0], points[1]


APPLICATION = frozenset(
    {
        Cause.USER_CODE,
        Cause.USER_CONFIG,
        Cause.SOFTWARE_ENV,
        Cause.APP_OOM_GPU,
        Cause.APP_OOM_HOST,
        Cause.DATALOADER,
        Cause.COLLECTIVE_MISMATCH,
        Cause.CHECKPOINT_CORRUPT,
        Cause.DISK_FULL,
        Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT,
        Cause.UNKNOWN,
    }
)
