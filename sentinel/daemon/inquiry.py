"""What is asked of the nodes before a verdict, when the evidence calls for it. A hang: who stands still?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sentinel.daemon.asking import Asking
from sentinel.daemon.dumps import Dumps
from sentinel.daemon.live import AttemptSeen, Live
from sentinel.errors import Unavailable
from sentinel.evidence.standstill import Look, read_look
from sentinel.model import Evidence, Incident, Kind, Source, Where, stable_id
from sentinel.ports import Clock, Orders
from sentinel.protocol import OrderKind

_ANSWER_S = 3.0  # /proc answers in milliseconds; a node that needs longer is itself a finding
_STATES = {
    "R": " (runs)",
    "S": " (waits)",
    "D": " (sleeps in the kernel: storage or a driver)",
    "T": " (stopped by a signal)",
    "t": " (held by a debugger)",
    "Z": " (dead, not yet collected)",
}


class Inquiry:
    def __init__(self, orders: Orders, live: Live, clock: Clock) -> None:
        self._orders = orders
        self._live = live
        self._clock = clock
        self._dumps = Dumps(orders, live, clock)
        self._asking = Asking(orders, clock)

    async def about(self, incident: Incident) -> list[Evidence]:
        """Evidence gathered live; empty when nothing needs asking or it was asked already."""
        found = await self._dumps.about(incident)
        kinds = {item.kind for item in incident.evidence}
        if Kind.STALL not in kinds or Kind.TASK_STATE in kinds or incident.job is None or incident.attempt is None:
            return found
        return [*found, *await self.tasks(incident.job, incident.attempt)]

    async def tasks(self, job: int, attempt: int) -> list[Evidence]:
        """State of every task of the job, from the nodes it runs on; what does not answer is *unreadable*."""
        nodes = self._live.nodes_of(job, attempt)
        answers = await asyncio.gather(*(self._tasks(job, attempt, node) for node in nodes))
        return [item for answer in answers for item in answer]

    async def who(self, job: int, attempt: int, seen: AttemptSeen) -> list[Evidence]:
        """Who holds the others up, by the running job's own word."""
        return await self._asking.who(job, attempt, seen)

    def nodes(self, job: int, attempt: int) -> tuple[str, ...]:
        return self._live.nodes_of(job, attempt)

    async def looks(self, job: int, attempt: int, nodes: Sequence[str]) -> tuple[dict[str, Look], list[Evidence]]:
        """What the processes of the job do now, by node, and the same as evidence; who does not answer is missing."""
        answers = await asyncio.gather(*(self._answer(job, node) for node in nodes))
        looks: dict[str, Look] = {}
        found: list[Evidence] = []
        for node, answer in zip(nodes, answers, strict=True):
            found.extend(self._read(job, attempt, node, answer))
            look = None if isinstance(answer, Unavailable) else read_look(answer, self._clock.now().timestamp())
            if look is not None:
                looks[node] = look
        return looks, found

    async def _answer(self, job: int, node: str) -> object:
        try:
            return await self._orders.ask(node, OrderKind.TASK_STATES, {"job": job}, deadline_s=_ANSWER_S)
        except Unavailable as error:
            return error

    async def _tasks(self, job: int, attempt: int, node: str) -> list[Evidence]:
        return self._read(job, attempt, node, await self._answer(job, node))

    def _read(self, job: int, attempt: int, node: str, answer: object) -> list[Evidence]:
        if isinstance(answer, Unavailable):
            return [self._unreadable(job, attempt, node, answer.message)]
        tasks = answer.get("tasks") if isinstance(answer, dict) else None
        if not isinstance(tasks, list):
            return [self._unreadable(job, attempt, node, "the agent's answer has no list of tasks")]
        found = (
            self._task(job, attempt, node, task) for task in tasks if isinstance(task, dict) and task.get("leaf", True)
        )
        usable = [item for item in found if item is not None]
        return usable or [self._unreadable(job, attempt, node, "no process of the job was found")]

    def _task(self, job: int, attempt: int, node: str, task: dict[str, object]) -> Evidence | None:
        rank, state, pid = task.get("rank"), task.get("state"), task.get("pid")
        if not isinstance(rank, int) or not isinstance(state, str):
            return None
        seen = self._live.attempts.get((job, attempt))
        if seen is not None:
            seen.rank_nodes[rank] = node  # lines of the log that name a rank were said there
        now = self._clock.now()
        cpu = task.get("cpu_s")
        return Evidence(
            id=stable_id("task", job, attempt, node, rank, pid, now.isoformat()),
            at=now,
            seen_at=now,
            source=Source.PROCESS,
            kind=Kind.TASK_STATE,
            where=Where(node=node, rank=rank, job=job, attempt=attempt),
            text=f"rank {rank} on {node}: process {pid} is in state {state[:1]}{_STATES.get(state[:1], '')}",
            data={
                "state": state[:1],
                "pid": pid if isinstance(pid, int) else None,
                "cpu_s": cpu if isinstance(cpu, (int, float)) else None,
            },
        )

    def _unreadable(self, job: int, attempt: int, node: str, why: str) -> Evidence:
        now = self._clock.now()
        return Evidence(
            id=stable_id("task-unreadable", job, attempt, node, now.isoformat()),
            at=now,
            seen_at=now,
            source=Source.PROCESS,
            kind=Kind.UNREADABLE,
            where=Where(node=node, job=job, attempt=attempt),
            text=f"tasks on {node} are not known: {why}",
        )
