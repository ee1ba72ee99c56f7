"""Detects lasting slowdowns of jobs and locates their origin. They are reported; the job is left running.

One steadily slow rank points at a hardware component, changing ranks at unevenly shared work of the job itself, several
jobs at once at something they share. Ranks are named by the trainer's straggler reports, its timers across ranks, and
the telemetry of their nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.correlate.rank_placement import gpus_per_node, node_of_rank
from sentinel.detect.change_point import SLOW_FACTS, SLOWER, WINDOW, slowed
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.seen import AttemptSeen
from sentinel.detect.step_rhythm import TIMES
from sentinel.detect.stragglers import FEW, Lag, from_start, lag
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id

_START_S = 300.0  # time that timer reports must cover before a rank counts as slow from its start
_START_STEPS = 5 * WINDOW  # and steps
_SLOWER = 1.2  # least ratio to the step time of the attempt before, on other nodes
_REPORTS_S = 1800.0  # age of the reports and telemetry that count; NVRx reports every 300 s
_STEADY = 0.7  # share of the reports that must name the rank
_TOGETHER_S = 900.0  # jobs that became slow within this time are assumed to share a cause
RANK_SLOWER = "rank_slower"  # kind of evidence: a rank takes longer, and whether it has more work is not known
_RANK = re.compile(r"(?:rank=)?\b(\d{1,6})\b")


class SlowdownWatch:
    def __init__(self, live: ClusterView) -> None:
        self._live = live
        self._told: set[str] = set()  # ids of reported slow-from-start findings

    def look(self, seen: AttemptSeen, now: datetime) -> list[Evidence]:
        """Evidence of a lasting slowdown, once for each; checked after every few step lines."""
        if seen.rhythm.lines - seen.slow.lines < WINDOW // 4:
            return []
        seen.slow.lines = seen.rhythm.lines
        found = slowed(seen.rhythm, now)
        if found is None:
            seen.slow.since = None
            return self._from_start(seen, now)
        if found.data.get("persistent") is not True or seen.slow.since is not None:
            return []
        seen.slow.since = now
        return [self._pointed(found, seen, now)]

    def _from_start(self, seen: AttemptSeen, now: datetime) -> list[Evidence]:
        """Slowness without a change point: a rank that was always slow, or a new node slower than the one it replaced.

        A rank that may simply have more work than the others is only recorded (``RANK_SLOWER``), not reported.
        """
        if len(seen.rhythm.times) < _START_STEPS:
            return []
        found = []
        reports = list(seen.timers)
        if reports and (reports[-1][0] - reports[0][0]).total_seconds() >= _START_S:
            lagging = from_start([report for _, report in reports])
            place = self._place(lagging.ranks, seen) if lagging is not None else None
            if lagging is not None and place is not None:
                rank, node = lagging.ranks[0], self._home(lagging.ranks[0], seen) if lagging.pattern else None
                words = f"rank {rank}{place}; " * bool(place and lagging.pattern) + lagging.words
                item = self._since_start(seen, now, "rank", words, Where(rank=rank, node=node))
                ranks = ",".join(map(str, lagging.ranks))
                if lagging.pattern:
                    found.append(replace(item, data={**item.data, "ranks": ranks}))
                else:
                    found.append(replace(item, kind=RANK_SLOWER, data={"ranks": ranks}))
        if (slower := self._than_before(seen)) is not None:
            found.append(self._since_start(seen, now, "node", slower[1], Where(node=slower[0])))
        fresh = [item for item in found if item.id not in self._told]
        self._told.update(item.id for item in fresh)
        return fresh

    def _than_before(self, seen: AttemptSeen) -> tuple[str, str] | None:
        """The only node that is new in this attempt, if its steps take longer than before, and an explanation."""
        job, attempt = seen.view.id, seen.view.restarts
        earlier = [other for number in range(attempt) if (other := self._live.attempts.get((job, number))) is not None]
        if len(seen.rhythm.times) < TIMES:
            return None  # a node is not blamed for a few slow minutes after a start
        alike = [o for o in earlier if len(o.nodes) == len(seen.nodes) and (o.usual_step_s() or 0.0) > 0]
        if not alike:
            return None
        took_s, before_s = seen.usual_step_s() or 0.0, alike[-1].usual_step_s() or 0.0
        quick_s = sorted(seen.rhythm.times)[len(seen.rhythm.times) // 4]  # three in four steps are slower than this
        new = [name for name in seen.nodes if name not in alike[-1].nodes]
        if took_s < _SLOWER * before_s or quick_s < SLOWER * before_s or len(new) != 1:
            return None
        words = f"steps take {took_s:.3f} s since the start of this attempt, {before_s:.3f} s in attempt"
        return new[0], f"{words} {alike[-1].view.restarts}: {new[0]} is the one node that is new"

    def _since_start(self, seen: AttemptSeen, now: datetime, what: str, words: str, where: Where) -> Evidence:
        job, attempt = seen.view.id, seen.view.restarts
        facts = self._facts([where.node], now) if where.node is not None else []
        fact = facts[0] if facts else None
        return Evidence(
            id=stable_id("slow-start", job, attempt, what, where.rank, where.node),
            at=now,
            seen_at=now,
            source=Source.PROGRESS,
            kind=Kind.SLOW,
            where=replace(where, job=job, attempt=attempt, path=seen.rhythm.where.path),
            text=f"{words}; {where.node}: {fact.text[:200]}" if fact is not None else words,
            data={
                "step": seen.rhythm.last_step, "persistent": True, "pattern": "component", "watched": True,
                "fact": fact.kind if fact is not None else None,
            },
            trust=Trust.USER,
        )  # fmt: skip

    def _pointed(self, found: Evidence, seen: AttemptSeen, now: datetime) -> Evidence:
        """``found`` with the origin of the slowdown added; ``watched`` in its data: the job keeps running."""
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
        """Steadily slow ranks that are a single rank or all on one node, and an explanation.

        Taken from the trainer's straggler reports, else from its timers.
        """
        steady = sorted(rank for rank, count in reported.items() if count >= _STEADY * reports)
        if 0 < len(steady) <= FEW and (place := self._place(steady, seen)) is not None:
            most = max(reported[rank] for rank in steady)
            return steady, f"rank {', '.join(map(str, steady))}{place} was slow in {most} of {reports} reports"
        if timed is not None and timed.pattern == "component" and (place := self._place(timed.ranks, seen)) is not None:
            return list(timed.ranks), f"rank {timed.ranks[0]}{place}; " * bool(place) + timed.words
        return [], ""

    def _place(self, ranks: Sequence[int], seen: AttemptSeen) -> str | None:
        """Text naming the one node of all these ranks; "" for one rank whose node is not known; None otherwise."""
        homes = {self._home(rank, seen) for rank in ranks}
        if len(homes) != 1 or (len(ranks) > 1 and None in homes):
            return None
        node = homes.pop()
        return f" on {node}" if node else ""

    def _home(self, rank: int, seen: AttemptSeen) -> str | None:
        return node_of_rank(rank, seen, gpus_per_node(seen, self._live)) if seen.nodes else None

    def _timed(self, found: Evidence, seen: AttemptSeen) -> Lag | None:
        """Compare the framework's own timers since the onset with those before."""
        onset, took_s = found.data.get("onset_step"), found.data.get("step_time_s")
        if not isinstance(onset, int) or not isinstance(took_s, float) or seen.rhythm.last_at is None:
            return None
        began = seen.rhythm.last_at - timedelta(seconds=(seen.rhythm.last_step - onset) * took_s)
        since = [report for at, report in seen.timers if at > began]
        return lag(since, [report for at, report in seen.timers if at <= began])

    def _facts(self, nodes: Iterable[str], now: datetime) -> list[Evidence]:
        """Recent telemetry evidence of slow clocks, heat and link errors on these nodes, the newest first."""
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
