"""Asks nodes for process states and flight-recorder dumps before a verdict, if the evidence calls for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sentinel.daemon.effects.ask_dumps import DumpQuestions
from sentinel.daemon.effects.ask_hung_job import HungJobQuestions
from sentinel.detect.activity import Look, read_look
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.transition import AskHungJob
from sentinel.errors import Unavailable
from sentinel.model.orders import TaskStates
from sentinel.model.records import Evidence, Incident, Kind, Source, Where, stable_id
from sentinel.ports import Clock, Orders

_ANSWER_S = 3.0  # /proc answers in milliseconds; a node that needs longer is itself a finding
_STATES = {
    "R": " (runs)",
    "S": " (waits)",
    "D": " (sleeps in the kernel: storage or a driver)",
    "T": " (stopped by a signal)",
    "t": " (held by a debugger)",
    "Z": " (dead, not yet collected)",
}


class NodeQuestions:
    def __init__(self, orders: Orders, live: ClusterView, clock: Clock) -> None:
        self._orders = orders
        self._live = live
        self._clock = clock
        self._dumps = DumpQuestions(orders, live, clock)
        self._hung_job = HungJobQuestions(orders, clock)

    async def about(self, incident: Incident) -> list[Evidence]:
        """Ask what the incident's evidence calls for; empty if there is nothing to ask or it was asked already."""
        found = await self._dumps.about(incident)
        kinds = {item.kind for item in incident.evidence}
        if Kind.STALL not in kinds or Kind.TASK_STATE in kinds or incident.job is None or incident.attempt is None:
            return found
        return [*found, *await self.tasks(incident.job, incident.attempt)]

    async def tasks(self, job: int, attempt: int) -> list[Evidence]:
        """The state of every task of the job, from its nodes; a node that does not answer gives *unreadable* evidence."""
        nodes = self._live.nodes_of(job, attempt)
        answers = await asyncio.gather(*(self._tasks(job, attempt, node) for node in nodes))
        return [item for answer in answers for item in answer]

    async def ask_job(self, effect: AskHungJob) -> list[Evidence]:
        """The rank that blocks the others, according to the running job itself."""
        return await self._hung_job.ask(effect)

    async def looks(self, job: int, attempt: int, nodes: Sequence[str]) -> tuple[dict[str, Look], list[Evidence]]:
        """The present activity of the job's processes by node, and the same as evidence.

        A node that does not answer is missing; one that found no process of the job is present with an empty ``Look``.
        """
        answers = await asyncio.gather(*(self._answer(job, node) for node in nodes))
        looks: dict[str, Look] = {}
        found: list[Evidence] = []
        for node, answer in zip(nodes, answers, strict=True):
            found.extend(self._read(job, attempt, node, answer))
            now_s = self._clock.now().timestamp()
            look = None if isinstance(answer, Unavailable) else read_look(answer, now_s)
            if look is not None:
                looks[node] = look
        return looks, found

    async def _answer(self, job: int, node: str) -> object:
        try:
            return await self._orders.ask(node, TaskStates.kind, TaskStates(job).arguments(), deadline_s=_ANSWER_S)
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
