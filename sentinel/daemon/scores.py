"""How suspect each node is: failures hosted over the work it carried, and how its parts age. Reading only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.store import Store
from sentinel.classify import History, NodeScore, node_scores
from sentinel.classify.ageing import Counter, Trend
from sentinel.classify.history import WINDOW
from sentinel.daemon.ageing import read_trends
from sentinel.daemon.live import Live
from sentinel.daemon.past import exposure, failures_of
from sentinel.ports import Clock

MONTH_DAYS = WINDOW / timedelta(days=1)
_MOST = 5000  # newest incidents of a month
_QUICK_S = 0.25  # what is read more quickly is read anew each time
_REST = 50.0  # times as long as it took it is kept


@dataclass(frozen=True, slots=True)
class Scores:
    by_node: Mapping[str, NodeScore] = field(default_factory=dict)
    trends: Mapping[str, tuple[Trend, ...]] = field(default_factory=dict)

    def suspicion(self, node: str) -> tuple[bool, bool, float]:
        """For an order, the most suspect last: lemon, ageing, how far above the others."""
        score = self.by_node.get(node)
        ages = any(trend.suspect for trend in self.trends.get(node, ()))
        return (score is not None and score.lemon, ages, score.suspicion if score is not None else 0.0)

    def suspects(self, nodes: Iterable[str]) -> list[dict[str, Any]]:
        """Of these nodes the suspect ones with their reasons, the most suspect first."""
        found = sorted((name for name in nodes if any(self.suspicion(name)[:2])), key=self.suspicion, reverse=True)
        return [{"node": name, "reasons": self.shown(name)["suspect_reasons"]} for name in found]

    def shown(self, node: str) -> dict[str, Any]:
        score, ages = self.by_node.get(node), self.trends.get(node, ())
        suspect, aged, _ = self.suspicion(node)
        return {
            "failures_30d": score.failures if score is not None else 0,
            "score": _score(score) if score is not None else None,
            "suspect": suspect or aged,
            "suspect_reasons": [
                *(score.reasons if score is not None and suspect else ()),
                *(trend.reason for trend in ages if trend.suspect),
            ],
            "trends": [_trend(trend) for trend in ages],
        }


class Board:
    """Scores for people. Of a large cluster they take seconds: then they are kept for a while, of a small one never."""

    def __init__(self, store: Store, live: Live, counters: Mapping[str, Counter], clock: Clock) -> None:
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
                self._until_s = time.monotonic() + (_REST * took_s if took_s > _QUICK_S else 0.0)
            return self._kept


def read_scores(store: Store, live: Live, counters: Mapping[str, Counter], now: datetime) -> Scores:
    """Blocking: reads the last month from the store."""
    since = now - WINDOW
    rows = store.incident_rows(since=since, limit=_MOST)
    busy = exposure(store, since, now, running(live))
    scores = node_scores(History(tuple(failures_of(rows)), busy), now)
    ages: dict[str, tuple[Trend, ...]] = {}
    for trend in read_trends(store, counters, now):
        ages[trend.node] = (*ages.get(trend.node, ()), trend)
    return Scores({score.node: score for score in scores}, ages)


def running(live: Live) -> set[tuple[int, int]] | None:
    """Attempts that run now; None while Slurm has not answered yet."""
    if live.fleet is None:
        return None
    return {
        (job.id, job.restarts)
        for job in live.fleet.jobs.values()
        if job.state in ("running", "completing", "suspended")
    }


def _score(score: NodeScore) -> dict[str, Any]:
    return {
        "failures": score.failures,
        "busy_days": round(score.busy_days, 3),
        "per_month": _month(score.rate),
        "low_per_month": _month(score.low),
        "high_per_month": _month(score.high),
        "others_per_month": _month(score.others),
        "lemon": score.lemon,
        "reasons": list(score.reasons),
        "last_at": score.last_at,
        "burst_s": score.burst_s,
    }


def _month(per_day: float) -> float:
    """Failures in a month of work."""
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
