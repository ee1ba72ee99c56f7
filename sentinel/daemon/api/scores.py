"""Scores how suspect each node is, by its failures per day of work and by rising error counters. Read-only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.classify import History, NodeScore, node_scores
from sentinel.classify.ageing import Counter, Trend
from sentinel.classify.history import WINDOW
from sentinel.daemon.api.fleet_history import exposure
from sentinel.daemon.ingest.trends import read_trends
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.history import failures_of
from sentinel.ports import Clock

MONTH_DAYS = WINDOW / timedelta(days=1)
_LEAST_DAYS = 1.0  # of work by a node before its rate is compared with others
_LEAST_OTHERS_DAYS = 30.0  # of work by all other nodes together
_QUICK_S = 0.25  # what is read more quickly than this is not cached
_REST = 50.0  # what is read more slowly is cached for this many times the reading time: 2 % of a core


@dataclass(frozen=True)  # no slots: the cached property needs __dict__
class Scores:
    by_node: Mapping[str, NodeScore] = field(default_factory=dict)
    trends: Mapping[str, tuple[Trend, ...]] = field(default_factory=dict)

    @cached_property
    def worked_days(self) -> float:
        """Days of work of all nodes together; cached, as each node shown needs it."""
        return sum(score.busy_days for score in self.by_node.values())

    def suspicion(self, node: str) -> tuple[bool, bool, float]:
        """Sort key, the most suspect last: (fails more often than others, counters rise, rate relative to others)."""
        score = self.by_node.get(node)
        ages = any(trend.suspect for trend in self.trends.get(node, ()))
        return (score is not None and score.lemon, ages, score.suspicion if score is not None else 0.0)

    def suspects(self, nodes: Iterable[str]) -> list[dict[str, Any]]:
        """The suspect ones of these nodes with their reasons, the most suspect first."""
        found = sorted((name for name in nodes if any(self.suspicion(name)[:2])), key=self.suspicion, reverse=True)
        return [{"node": name, "reasons": self.shown(name)["suspect_reasons"]} for name in found]

    def shown(self, node: str) -> dict[str, Any]:
        score, ages = self.by_node.get(node), self.trends.get(node, ())
        suspect, aged, _ = self.suspicion(node)
        return {
            "failures_30d": score.failures if score is not None else 0,
            "score": _score(score, self.worked_days - score.busy_days) if score is not None else None,
            "suspect": suspect or aged,
            "suspect_reasons": [
                *(score.reasons if score is not None and suspect else ()),
                *(trend.reason for trend in ages if trend.suspect),
            ],
            "trends": [_trend(trend) for trend in ages],
        }


class CachedScores:
    """Scores for views, cached only if reading them is slow (seconds on a large cluster)."""

    def __init__(self, store: Store, live: ClusterView, counters: Mapping[str, Counter], clock: Clock) -> None:
        self._store, self._live, self._counters, self._clock = store, live, counters, clock
        self._kept: Scores | None = None
        self._until_s = 0.0
        self._lock = asyncio.Lock()

    async def read(self) -> Scores:
        async with self._lock:
            if self._kept is None or time.monotonic() >= self._until_s:
                began_s = time.monotonic()
                now = self._clock.now()
                self._kept = await asyncio.to_thread(read_scores, self._store, self._live, self._counters, now)
                took_s = time.monotonic() - began_s
                self._until_s = time.monotonic() + kept_s(took_s)
            return self._kept


def kept_s(took_s: float) -> float:
    """For how long sums over a month are kept that took so long to read; both in seconds."""
    return _REST * took_s if took_s > _QUICK_S else 0.0


def read_scores(store: Store, live: ClusterView, counters: Mapping[str, Counter], now: datetime) -> Scores:
    """Compute the scores from the last month in the store. Blocking."""
    since = now - WINDOW
    rows = store.each_incident(since=since, summed=True)  # all, since a node's failures may be the oldest of them
    failures = (failure for row in rows for failure in failures_of(row))
    blamed = tuple(failure for failure in failures if failure.node is not None)
    scores = node_scores(History(blamed, exposure(store, since, now, running(live))), now)
    ages: dict[str, tuple[Trend, ...]] = {}
    for trend in read_trends(store, counters, now):
        ages[trend.node] = (*ages.get(trend.node, ()), trend)
    return Scores({score.node: score for score in scores}, ages)


def running(live: ClusterView) -> set[tuple[int, int]] | None:
    """Attempts that run now; None while Slurm has not answered yet."""
    if live.fleet is None:
        return None
    return {(job.id, job.restarts) for job in live.jobs() if job.state in ("running", "completing", "suspended")}


def compared(score: NodeScore, others_days: float) -> str:
    """Whether a node is worse than the others: "worse", "not worse", or "not known" after too little work.

    Args:
        others_days: days of work of the other nodes together.
    """
    if others_days < _LEAST_OTHERS_DAYS or (score.busy_days < _LEAST_DAYS and not score.lemon):
        return "not known"
    return "worse" if score.lemon else "not worse"


def _score(score: NodeScore, others_days: float) -> dict[str, Any]:
    """The score as JSON. The rate is None, not known, after only minutes of work (it might read 299 a month)."""
    answer = compared(score, others_days)
    known = answer != "not known"
    return {
        "failures": score.failures,
        "told": score.told,
        "busy_days": round(score.busy_days, 3),
        "others_busy_days": round(others_days, 3),
        "compared": answer,
        "per_month": _month(score.rate) if known else None,
        "low_per_month": _month(score.low) if known else None,
        "high_per_month": _month(score.high) if known else None,
        "others_per_month": _month(score.others) if known else None,
        "lemon": score.lemon,
        "reasons": list(score.reasons),
        "last_at": score.last_at,
        "burst_s": score.burst_s,
    }


def _month(per_day: float) -> float:
    """Failures per month of work, from failures per day."""
    return round(per_day * MONTH_DAYS, 4)


def _trend(trend: Trend) -> dict[str, Any]:
    return {
        "counter": trend.name,
        "words": trend.words,
        "unit": trend.unit,
        "value": trend.value,
        "days": round(trend.days, 2),
        "per_day": round(trend.per_day, 4),
        "low_per_day": round(trend.low, 4),
        "high_per_day": round(trend.high, 4),
        "faster": trend.faster,
        "suspect": trend.suspect,
        "reason": trend.reason,
        "speaks_for": str(trend.cause),
    }
