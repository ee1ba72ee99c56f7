"""Jobs whose steps became slower and stay so: people are told, with whom it points at; nothing is done to the job.

One slow rank is a part of a machine; other ranks every time are the job's own work, unevenly shared; several jobs at once
are what they share. What names a rank: the trainer's own straggler reports, its timers across
ranks, and what its node's telemetry says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.daemon.live import AttemptSeen, Live
from sentinel.daemon.placing import gpus_per_node, node_of_rank
from sentinel.evidence.laggards import FEW, Lag, lag
from sentinel.evidence.slowdown import SLOW_FACTS, WINDOW, slowed
from sentinel.model import Evidence

_REPORTS_S = 1800.0  # NVRx reports every 300 s
_STEADY = 0.7  # of the reports name the rank
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
        reported, reports = _named(seen.pool, now)
        timed = self._timed(found, seen)
        facts = self._facts(seen.nodes, now)
        pattern, where, fact = "", found.where, None
        ranks, words = self._one_place(reported, reports, timed, seen)
        if ranks:
            node = self._home(ranks[0], seen)
            pattern, where = "component", replace(found.where, rank=ranks[0], node=node)
            fact = next((item for item in facts if item.where.node == node), None) if node is not None else None
        elif len({item.where.node for item in facts}) == 1:
            pattern, fact = "component", facts[0]
            where = replace(found.where, node=facts[0].where.node, gpu=facts[0].where.gpu)
        elif timed is not None and timed.pattern in ("application", "cluster"):
            pattern, words = timed.pattern, timed.words
        elif reports >= 3 and reported:
            pattern = "application"
            words = f"{len(reported)} ranks took turns in {reports} reports: work unevenly shared"
        elif others := self._others(seen, now):
            pattern, words = "cluster", f"{others} other job{'s' if others > 1 else ''} became slow with it"
        elif timed is not None:
            pattern = timed.pattern if timed.pattern != "component" else ""
        if timed is not None and timed.words not in words:
            words = f"{words}; " * bool(words) + timed.words
        if fact is not None:
            words = f"{words}; " * bool(words) + f"{fact.where.node}: {fact.text[:200]}"
        data = {**found.data, "pattern": pattern, "fact": fact.kind if fact is not None else None, "watched": True}
        if ranks:
            data["ranks"] = ",".join(map(str, ranks))
        return replace(found, where=where, text=f"{found.text}; {words}" if words else found.text, data=data)

    def _one_place(
        self, reported: Counter[int], reports: int, timed: Lag | None, seen: AttemptSeen
    ) -> tuple[list[int], str]:
        """Slow ranks that are one rank or lie on one node, by the trainer's straggler reports or by its timers."""
        steady = sorted(rank for rank, count in reported.items() if count >= _STEADY * reports)
        if 0 < len(steady) <= FEW and (place := self._place(steady, seen)) is not None:
            most = max(reported[rank] for rank in steady)
            return steady, f"rank {', '.join(map(str, steady))}{place} was slow in {most} of {reports} reports"
        if timed is not None and timed.pattern == "component" and (place := self._place(timed.ranks, seen)) is not None:
            return list(timed.ranks), f"rank {timed.ranks[0]}{place}; " * bool(place) + timed.words
        return [], ""

    def _place(self, ranks: Sequence[int], seen: AttemptSeen) -> str | None:
        """Words for the node of all these ranks, "" for one rank whose node is not known; None if they are apart."""
        homes = {self._home(rank, seen) for rank in ranks}
        if len(homes) != 1 or (len(ranks) > 1 and None in homes):
            return None
        node = homes.pop()
        return f" on {node}" if node else ""

    def _home(self, rank: int, seen: AttemptSeen) -> str | None:
        return node_of_rank(rank, seen, gpus_per_node(seen, self._live)) if seen.nodes else None

    def _timed(self, found: Evidence, seen: AttemptSeen) -> Lag | None:
        """What the framework's own timers say of the steps since the onset, against those before."""
        onset, took_s = found.data.get("onset_step"), found.data.get("step_time_s")
        if not isinstance(onset, int) or not isinstance(took_s, float) or seen.rhythm.last_at is None:
            return None
        began = seen.rhythm.last_at - timedelta(seconds=(seen.rhythm.last_step - onset) * took_s)
        since = [report for at, report in seen.timers if at > began]
        return lag(since, [report for at, report in seen.timers if at <= began])

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
