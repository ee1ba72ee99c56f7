"""A running job that may hang is asked who holds it up: its nodes' agents ask it as its user, and all is judged together.

What the job says of itself is evidence of the job: it can name a rank and keep its node from the retry, never drain it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.classify.hang import HangFinding
from sentinel.classify.hang_live import analyse_live
from sentinel.collectives import RankTrace, Unreadable
from sentinel.collectives_live import RasPoll, Stack
from sentinel.daemon.live import AttemptSeen
from sentinel.errors import ProtocolError, Unavailable
from sentinel.evidence.control_plane import group_stacks, read_py_spy, read_stack
from sentinel.evidence.flight_recorder_wire import from_wire
from sentinel.evidence.nccl_ras import read_ras
from sentinel.model import Evidence, Source, Trust, Where, stable_id
from sentinel.ports import Clock, Orders
from sentinel.protocol import OrderKind

_LEAST_GAP_S = 2.5
_MOST_GAP_S = 10.0
_GAP_STEPS = 1.5  # the job is silent for longer than its steps take, so that polls may be as close as they
_REST_S = 4.5  # for connecting, a dump, stacks, and the way
_NAMED = 64


@dataclass(slots=True)
class _Told:
    """What all nodes answered."""

    polls: list[tuple[float, RasPoll]] = field(default_factory=list)
    traces: list[RankTrace] = field(default_factory=list)
    torn: list[Unreadable] = field(default_factory=list)
    stacks: dict[int, Stack] = field(default_factory=dict)
    homes: dict[int, str] = field(default_factory=dict)  # rank -> node
    processes: dict[int, list[tuple[str, str, int]]] = field(default_factory=dict)  # pid -> (host, node, rank)


class Asking:
    def __init__(self, orders: Orders, clock: Clock) -> None:
        self._orders = orders
        self._clock = clock

    async def who(self, job: int, attempt: int, seen: AttemptSeen) -> list[Evidence]:
        """Who holds the others up, by the job's own word; empty where it does not tell."""
        uid, nodes = seen.view.uid, seen.nodes
        if uid is None or not nodes:
            return []
        gap_s = min(_MOST_GAP_S, max(_LEAST_GAP_S, _GAP_STEPS * (seen.rhythm.gap_s or 0.0)))
        answers = await asyncio.gather(
            *(self._ask(node, {"job": job, "uid": uid, "ras": node == nodes[0], "gap_s": gap_s}) for node in nodes)
        )
        told = _Told()
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, dict):
                _gather(node, answer, told)
        finding = await asyncio.to_thread(_judge, told)
        if finding.basis in ("not known", "none", "moving") or finding.kind == "none":
            return []
        return [self._evidence(job, attempt, finding, told)]

    async def _ask(self, node: str, arguments: Mapping[str, object]) -> object:
        deadline_s = float(str(arguments["gap_s"])) + _REST_S
        try:
            return await self._orders.ask(node, OrderKind.ASK_JOB, arguments, deadline_s=deadline_s)
        except Unavailable:
            return None  # a node that cannot be asked says nothing; that it is silent was noted by the looks

    def _evidence(self, job: int, attempt: int, finding: HangFinding, told: _Told) -> Evidence:
        now = self._clock.now()
        at_home = {told.homes.get(rank) for rank in finding.culprit_ranks}
        node = next(iter(at_home)) if len(at_home) == 1 else None
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


def _gather(node: str, answer: Mapping[str, object], told: _Told) -> None:
    """One node's answer; what is not of its shape is left out, since a user's process may have had a hand in it."""
    host = str(answer.get("host", ""))
    for item in _dicts(answer.get("ranks")):
        pid, rank = item.get("pid"), item.get("rank")
        if isinstance(pid, int) and isinstance(rank, int):
            told.homes.setdefault(rank, node)
            told.processes.setdefault(pid, []).append((host, node, rank))
    for item in _dicts(answer.get("ras")):
        poll = read_ras(str(item.get("text", "")).encode(), "RAS")
        after_s = item.get("after_s")
        if isinstance(poll, RasPoll) and isinstance(after_s, (int, float)):
            told.polls.append((float(after_s), poll))
    for item in _dicts(answer.get("dumps")):
        try:
            found = from_wire(item)
        except ProtocolError as error:
            found = Unreadable(node, None, str(error))
        if isinstance(found, Unreadable):
            told.torn.append(found)
        else:
            told.traces.append(found)
    for item in _dicts(answer.get("stacks")):
        rank, text = item.get("rank"), str(item.get("text", "")).encode()
        stack = read_py_spy(text) if item.get("form") == "py-spy" else read_stack(text)
        if stack is not None and isinstance(rank, int):
            told.stacks[rank] = stack


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _judge(told: _Told) -> HangFinding:
    polls, gap_s = None, None
    if len(told.polls) >= 2:
        (first_s, first), (second_s, second) = told.polls[0], told.polls[-1]
        polls, gap_s = (first, second), second_s - first_s
    return analyse_live(
        polls,
        gap_s=gap_s,
        least_gap_s=0.9 * _LEAST_GAP_S,
        traces=told.traces,
        unreadable=told.torn,
        stacks=group_stacks(told.stacks) if len(told.stacks) > 2 else None,
        ranks=_ranks(polls, told) if polls is not None else None,
    )


def _ranks(polls: tuple[RasPoll, RasPoll], told: _Told) -> dict[tuple[str, int], int] | None:
    """(host, process) as NCCL names them -> rank. NCCL names a host by its address, then its processes must tell which."""
    on_host: dict[str, set[int]] = {}
    for communicator in polls[1].communicators:
        for member in communicator.members:
            if member.pid is not None:
                on_host.setdefault(member.host, set()).add(member.pid)
    on_node: dict[str, dict[int, int]] = {}
    for pid, known in told.processes.items():
        for host, node, rank in known:
            on_node.setdefault(node, {})[pid] = rank
            if host != node:
                on_node.setdefault(host, {})[pid] = rank
    nodes = {node for known in told.processes.values() for _, node, _ in known}
    found: dict[tuple[str, int], int] = {}
    for host, pids in on_host.items():
        fitting = [host] if host in on_node else [node for node in nodes if pids <= on_node[node].keys()]
        if len(fitting) == 1:
            found.update({(host, pid): on_node[fitting[0]][pid] for pid in pids if pid in on_node[fitting[0]]})
        else:  # several nodes behind one address, or some of its processes were not told of
            found.update(
                {(host, pid): told.processes[pid][0][2] for pid in pids if len(told.processes.get(pid, ())) == 1}
            )
    return found or None
