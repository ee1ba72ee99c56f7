"""Gathers the NCCL flight-recorder dumps of an ended job from all its nodes and analyses them together.

Which rank blocked the others can be seen only from all ranks at once, so every node of the attempt is asked. A rank
without a dump is evidence, unless its node did not answer: then it is *not known*, and no rank is blamed for a missing
dump.
"""

from __future__ import annotations

import asyncio

from sentinel.classify.hang.analyse import HangFinding, analyse
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import ProtocolError, Unavailable
from sentinel.evidence.nccl.flight_recorder_wire import from_wire
from sentinel.model.collectives import RankTrace, Unreadable
from sentinel.model.orders import Collected
from sentinel.model.records import Evidence, Incident, Kind, Source, Where, stable_id
from sentinel.ports import Clock, Orders

ANSWER_S = 6.0  # a node collects dumps within 2 s of a job's end; it does not answer while the user's file system hangs
_NAMED = 64  # most ranks that one evidence lists
_KINDS = frozenset({"missing", "mismatch", "stuck"})


class DumpQuestions:
    """Asks the nodes for their dumps and makes one evidence from the analysis of all of them."""

    def __init__(self, orders: Orders, live: ClusterView, clock: Clock) -> None:
        self._orders = orders
        self._live = live
        self._clock = clock

    async def about(self, incident: Incident) -> list[Evidence]:
        """The finding from the dumps of the incident's attempt; empty if no node has any, or they were analysed already."""
        job, attempt = incident.job, incident.attempt
        told = [item for item in incident.evidence if item.kind == "dumps" and item.source is Source.FLIGHT_RECORDER]
        judged = any(item.kind == "hang" and item.source is Source.FLIGHT_RECORDER for item in incident.evidence)
        if not told or judged or job is None or attempt is None:
            return []
        nodes = dict.fromkeys((*self._live.nodes_of(job, attempt), *(i.where.node for i in told if i.where.node)))
        answers = await asyncio.gather(*(self._of(node, job, attempt) for node in nodes))
        traces: list[RankTrace] = []
        torn: list[Unreadable] = []
        homes: dict[int, str] = {}
        silent: list[str] = []
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                silent.append(node)
                continue
            for item in answer:
                if isinstance(item, Unreadable):
                    torn.append(item)
                else:
                    traces.append(item)
                    if item.rank is not None:
                        homes.setdefault(item.rank, node)
        if not traces:
            return []
        finding = await asyncio.to_thread(analyse, traces, torn)
        return [self._evidence(job, attempt, finding, homes, silent, len(traces))]

    async def _of(self, node: str, job: int, attempt: int) -> list[RankTrace | Unreadable] | None:
        """The dumps of one node; None if it did not answer."""
        try:
            order = Collected(job, attempt)
            answer = await self._orders.ask(node, order.kind, order.arguments(), deadline_s=ANSWER_S)
            dumps = answer.get("dumps") if isinstance(answer, dict) and answer.get("done") is True else None
            # Not in the event loop: they may be megabytes, of users' files.
            return await asyncio.to_thread(_read, dumps) if isinstance(dumps, list) else None
        except (Unavailable, ProtocolError):
            return None

    def _evidence(
        self, job: int, attempt: int, finding: HangFinding, homes: dict[int, str], silent: list[str], count: int
    ) -> Evidence:
        now = self._clock.now()
        unseen = set(finding.culprit_ranks) & set(finding.without_dump)
        if finding.kind not in _KINDS or (silent and unseen):
            text = finding.explanation
            if silent:
                text = f"the dumps of {', '.join(silent[:8])} are not known, so that nobody can be named: {text}"
            return Evidence(
                id=stable_id("hang-not-known", job, attempt, tuple(silent), count),
                at=now,
                seen_at=now,
                source=Source.FLIGHT_RECORDER,
                kind=Kind.UNREADABLE if silent else "hang",
                where=Where(job=job, attempt=attempt),
                text=text,
                data={} if silent else {"kind": "none", "dumps": count},
            )
        at_home = {homes.get(rank) for rank in finding.culprit_ranks}
        (node,) = at_home if len(at_home) == 1 else (None,)
        return Evidence(
            id=stable_id("hang", job, attempt, finding.kind, finding.culprit_ranks, finding.sequence),
            at=now,
            seen_at=now,
            source=Source.FLIGHT_RECORDER,
            kind="hang",
            where=Where(
                node=node, rank=finding.culprit_ranks[0] if finding.culprit_ranks else None, job=job, attempt=attempt
            ),
            text=finding.explanation,
            data={
                "kind": finding.kind,
                "collective": finding.collective,
                "sequence": finding.sequence,
                "confidence": finding.confidence,
                "ranks": ",".join(map(str, finding.culprit_ranks[:_NAMED])),
                "dumps": count,
            },
        )


def _read(dumps: list[object]) -> list[RankTrace | Unreadable]:
    """
    Raises:
        ProtocolError: one of them is no dump.
    """
    return [from_wire(item) for item in dumps]
