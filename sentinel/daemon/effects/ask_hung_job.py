"""Asks a running job that may hang which rank blocks it: agents query it as its user, the answers are analysed together.

The job's own answer is untrusted: it can name a rank and exclude its node from the retry, but never drain a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.classify.hang.analyse import HangFinding
from sentinel.classify.hang.running_job import analyse_live
from sentinel.engine.transition import AskHungJob
from sentinel.errors import ProtocolError, Unavailable
from sentinel.evidence.nccl.debug_endpoints import group_stacks, read_py_spy, read_stack
from sentinel.evidence.nccl.flight_recorder_wire import from_wire
from sentinel.evidence.nccl.ras import read_ras
from sentinel.model.collectives import RankTrace, Unreadable
from sentinel.model.live_collectives import RasPoll, Stack
from sentinel.model.orders import AskJob
from sentinel.model.records import Evidence, Source, Trust, Where, stable_id
from sentinel.ports import Clock, Orders
from sentinel.text import objects_in, plain

_LEAST_GAP_S = 2.5
_MOST_GAP_S = 10.0
_GAP_STEPS = 1.5  # time between the two RAS polls, in steps of the job: the job is already silent for longer
_REST_S = 4.5  # the rest of an answer: connecting, a dump, stacks, the network
_NAMED = 64


@dataclass(slots=True)
class _Answers:
    """The answers of all nodes."""

    polls: list[tuple[float, RasPoll]] = field(default_factory=list)
    traces: list[RankTrace] = field(default_factory=list)
    torn: list[Unreadable] = field(default_factory=list)
    stacks: dict[int, Stack] = field(default_factory=dict)
    rank_node: dict[int, str] = field(default_factory=dict)  # rank -> node
    processes: dict[int, list[tuple[str, str, int]]] = field(default_factory=dict)  # pid -> (host, node, rank)


class HungJobQuestions:
    def __init__(self, orders: Orders, clock: Clock) -> None:
        self._orders = orders
        self._clock = clock

    async def ask(self, effect: AskHungJob) -> list[Evidence]:
        """The rank that blocks the others, according to the job itself; empty if its answers do not show one."""
        job, nodes = effect.job, effect.nodes
        gap_s = min(_MOST_GAP_S, max(_LEAST_GAP_S, _GAP_STEPS * (effect.step_s or 0.0)))
        answers = await asyncio.gather(
            *(self._ask(node, AskJob(job, ras=node == nodes[0], gap_s=gap_s)) for node in nodes)
        )
        gathered = _Answers()
        finding = await asyncio.to_thread(_judge, dict(zip(nodes, answers, strict=True)), gathered)
        if finding.basis in ("not known", "none", "moving") or finding.kind == "none":
            return []
        return [self._evidence(job, effect.attempt, finding, gathered)]

    async def _ask(self, node: str, order: AskJob) -> object:
        try:
            return await self._orders.ask(node, order.kind, order.arguments(), deadline_s=order.gap_s + _REST_S)
        except Unavailable:
            return None  # no answer; that the node is silent was recorded by the activity polls

    def _evidence(self, job: int, attempt: int, finding: HangFinding, gathered: _Answers) -> Evidence:
        now = self._clock.now()
        nodes = {gathered.rank_node.get(rank) for rank in finding.culprit_ranks}
        node = next(iter(nodes)) if len(nodes) == 1 else None
        named = finding.culprit_ranks
        place = f" ({node})" if node is not None else ""
        return Evidence(
            id=stable_id("asked", job, attempt, finding.kind, named, finding.sequence, finding.basis),
            at=now,
            seen_at=now,
            source=Source.FLIGHT_RECORDER,
            kind="hang",
            where=Where(node=node, rank=named[0] if named else None, job=job, attempt=attempt),
            text=f"the job, asked while it stood still{place}: {finding.explanation}",
            data={
                "kind": finding.kind,
                "collective": finding.collective,
                "sequence": finding.sequence,
                "confidence": finding.confidence,
                "basis": finding.basis,
                "ranks": ",".join(map(str, named[:_NAMED])),
                "live": True,
            },
            trust=Trust.USER,
        )


def _gather(node: str, answer: Mapping[str, object], gathered: _Answers) -> None:
    """Add one node's answer; malformed parts are skipped, since a user's process may have written them."""
    host = str(answer.get("host", ""))
    for item in objects_in(answer.get("ranks")):
        pid, rank = item.get("pid"), item.get("rank")
        if isinstance(pid, int) and isinstance(rank, int):
            gathered.rank_node.setdefault(rank, node)
            gathered.processes.setdefault(pid, []).append((host, node, rank))
    for item in objects_in(answer.get("ras")):
        poll = read_ras(plain(str(item.get("text", ""))).encode(), "RAS")
        after_s = item.get("after_s")
        if isinstance(poll, RasPoll) and isinstance(after_s, (int, float)):
            gathered.polls.append((float(after_s), poll))
    for item in objects_in(answer.get("dumps")):
        try:
            found = from_wire(item)
        except ProtocolError as error:
            found = Unreadable(node, None, str(error))
        if isinstance(found, Unreadable):
            gathered.torn.append(found)
        else:
            gathered.traces.append(found)
    for item in objects_in(answer.get("stacks")):
        rank, text = item.get("rank"), plain(str(item.get("text", ""))).encode()
        stack = read_py_spy(text) if item.get("form") == "py-spy" else read_stack(text)
        if stack is not None and isinstance(rank, int):
            gathered.stacks[rank] = stack


def _judge(answers: Mapping[str, object], gathered: _Answers) -> HangFinding:
    """``gathered`` is filled with the answers, by node. Not in the event loop: they may be megabytes, which users wrote."""
    for node, answer in answers.items():
        if isinstance(answer, dict):
            _gather(node, answer, gathered)
    polls, gap_s = None, None
    if len(gathered.polls) >= 2:
        (first_s, first), (second_s, second) = gathered.polls[0], gathered.polls[-1]
        polls, gap_s = (first, second), second_s - first_s
    return analyse_live(
        polls,
        gap_s=gap_s,
        least_gap_s=0.9 * _LEAST_GAP_S,
        traces=gathered.traces,
        unreadable=gathered.torn,
        stacks=group_stacks(gathered.stacks) if len(gathered.stacks) > 2 else None,
        ranks=_ranks(polls, gathered) if polls is not None else None,
    )


def _ranks(polls: tuple[RasPoll, RasPoll], gathered: _Answers) -> dict[tuple[str, int], int] | None:
    """Map NCCL's (host, pid) to ranks. NCCL may name a host by its address: the node is then found by its pids."""
    on_host: dict[str, set[int]] = {}
    for communicator in polls[1].communicators:
        for member in communicator.members:
            if member.pid is not None:
                on_host.setdefault(member.host, set()).add(member.pid)
    on_node: dict[str, dict[int, int]] = {}
    for pid, known in gathered.processes.items():
        for host, node, rank in known:
            on_node.setdefault(node, {})[pid] = rank
            if host != node:
                on_node.setdefault(host, {})[pid] = rank
    nodes = {node for known in gathered.processes.values() for _, node, _ in known}
    found: dict[tuple[str, int], int] = {}
    for host, pids in on_host.items():
        fitting = [host] if host in on_node else [node for node in nodes if pids <= on_node[node].keys()]
        if len(fitting) == 1:
            found.update({(host, pid): on_node[fitting[0]][pid] for pid in pids if pid in on_node[fitting[0]]})
        else:  # several nodes behind one address, or some of its processes were not reported
            found.update(
                {
                    (host, pid): gathered.processes[pid][0][2]
                    for pid in pids
                    if len(gathered.processes.get(pid, ())) == 1
                }
            )
    return found or None
