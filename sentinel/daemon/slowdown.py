"""Jobs whose steps became slower and stay so: people are told, with whom it points at; nothing is done to the job.

One slow rank is a part of a machine; other ranks every time are the job's own work, unevenly shared; several jobs at once
are what they share. What names a rank: the trainer's own straggler reports, and what its node's telemetry says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.daemon.live import AttemptSeen, Live
from sentinel.evidence.slowdown import SLOW_FACTS, WINDOW, slowed
from sentinel.model import Evidence

_REPORTS_S = 1800.0  # NVRx reports every 300 s
_STEADY = 0.7  # of the reports name the rank
_FEW = 8  # ranks of one node
_TOGETHER_S = 900.0  # jobs that became slow within this time share a reason
_RANK = re.compile(r"(?:rank=)?\b(\d{1,6})\b")


class Slowdowns:
    def __init__(self, live: Live) -> None:
        self._live = live

    def look(self, seen: AttemptSeen, now: datetime) -> list[Evidence]:
        """Evidence of a lasting slowdown, once for each; looked for after every few steps."""
        if seen.rhythm.lines - seen.slow.lines < WINDOW // 4:
            return []
        seen.slow.lines = seen.rhythm.lines
        found = slowed(seen.rhythm, now)
        if found is None:
            seen.slow.since = None
            return []
        if found.data.get("persistent") is not True or seen.slow.since is not None:
            return []
        seen.slow.since = now
        return [self._pointed(found, seen, now)]

    def _pointed(self, found: Evidence, seen: AttemptSeen, now: datetime) -> Evidence:
        """The evidence with whom the slowdown points at; ``watched``: its job goes on."""
        ranks, reports = _named(seen.pool, now)
        steady = sorted(rank for rank, count in ranks.items() if count >= _STEADY * reports)
        homes = {seen.rank_nodes.get(rank) for rank in steady}
        facts = self._facts(seen.nodes, now)
        pattern, where, words, fact = "", found.where, "", None
        if 0 < len(steady) <= _FEW and (len(steady) == 1 or len(homes) == 1):
            node = next(iter(homes))
            pattern, where = "component", replace(found.where, rank=steady[0], node=node)
            fact = next((item for item in facts if item.where.node == node), None) if node is not None else None
            place = f" on {node}" if node else ""
            words = f"rank {', '.join(map(str, steady))}{place} was slow in {_most(ranks, steady)} of {reports} reports"
        elif len({item.where.node for item in facts}) == 1:
            pattern, fact = "component", facts[0]
            where = replace(found.where, node=facts[0].where.node, gpu=facts[0].where.gpu)
        elif reports >= 3 and ranks:
            pattern, words = "application", f"{len(ranks)} ranks took turns in {reports} reports: work unevenly shared"
        elif others := self._others(seen, now):
            pattern, words = "cluster", f"{others} other job{'s' if others > 1 else ''} became slow with it"
        if fact is not None:
            words = f"{words}; " * bool(words) + f"{fact.where.node}: {fact.text[:200]}"
        data = {**found.data, "pattern": pattern, "fact": fact.kind if fact is not None else None, "watched": True}
        if steady and pattern == "component":
            data["ranks"] = ",".join(map(str, steady))
        return replace(found, where=where, text=f"{found.text}; {words}" if words else found.text, data=data)

    def _facts(self, nodes: Iterable[str], now: datetime) -> list[Evidence]:
        """What the job's nodes said of slow clocks, heat and links, newest first."""
        since = now - timedelta(seconds=_REPORTS_S)
        known = [self._live.nodes[name] for name in nodes if name in self._live.nodes]
        found = [item for node in known for item in node.pool if item.kind in SLOW_FACTS and item.at >= since]
        return sorted(found, key=lambda item: item.at, reverse=True)

    def _others(self, seen: AttemptSeen, now: datetime) -> int:
        since = now - timedelta(seconds=_TOGETHER_S)
        return sum(
            other is not seen and not other.ended and other.slow.since is not None and other.slow.since >= since
            for other in self._live.attempts.values()
        )


def _named(pool: Iterable[Evidence], now: datetime) -> tuple[Counter[int], int]:
    """How often each rank was reported slow lately, and in how many reports."""
    since = now - timedelta(seconds=_REPORTS_S)
    reports = [item for item in pool if item.kind == "straggler" and item.at >= since]
    ranks: Counter[int] = Counter()
    for item in reports:
        ranks.update({int(rank) for rank in _RANK.findall(str(item.data.get("text") or ""))})
    return ranks, len(reports)


def _most(ranks: Counter[int], steady: Iterable[int]) -> int:
    return max(ranks[rank] for rank in steady)
