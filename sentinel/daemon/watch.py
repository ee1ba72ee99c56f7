"""What does not come: heartbeats of nodes, steps of jobs. And what events missed: reconciliation with Slurm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.store import Store
from sentinel.daemon.fleets import Fleets
from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.judge import job_ended
from sentinel.daemon.lateness import Lateness
from sentinel.daemon.live import AttemptSeen, Live
from sentinel.daemon.probe import slurmd_answers
from sentinel.daemon.silence import Silences
from sentinel.daemon.slowdown import Slowdowns, usual_step_s
from sentinel.errors import Unavailable
from sentinel.evidence.progress import observe
from sentinel.log import Log
from sentinel.model import OURS, Evidence, Fleet, JobView, Kind, NodeView, Source, Where, stable_id
from sentinel.ports import Clock
from sentinel.settings import Settings
from sentinel.telemetry import Telemetry

_LOOK_S = 0.25
_REMEMBERED = 10  # lines that stand for a job's rhythm after a start
_NEWS_S = 1.0  # between looks at Slurm that nodes' news of unknown jobs may cause
_ALONE = 3  # all of at least this many nodes silent together: more likely it is we who are cut off
_ENDED = frozenset(
    {"failed", "node_fail", "out_of_memory", "boot_fail", "completed", "cancelled", "timeout", "preempted", "deadline"}
)

Observe = Callable[[Sequence[Evidence]], Awaitable[None]]


class Watch:
    def __init__(
        self,
        *,
        live: Live,
        fleets: Fleets,
        store: Store,
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
        log: Log,
        observe: Observe,
        inquiry: Inquiry,
    ) -> None:
        self._live = live
        self._fleets = fleets
        self._store = store
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._log = log
        self._observe = observe
        self._slowdowns = Slowdowns(live)
        self._silences = Silences(inquiry=inquiry, limits=settings.judgement, log=log, observe=observe)
        self._started_s = time.monotonic()
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._probed_s: dict[str, float] = {}
        self._dark_s = float("-inf")  # when all were silent last
        self._told_cut_off = False  # said once for each time that all fall silent
        self._lateness = Lateness(2 * settings.daemon.heartbeat_lost_s)
        self._down: frozenset[str] | None = None
        self._kept: set[tuple[int, int]] = set()  # attempts of which a later daemon will know that they gain steps

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def nodes_forever(self) -> None:
        while True:
            try:
                self._look_at_nodes()
            except Exception as error:
                self._telemetry.bugs.inc()
                self._log.error("bug", where="watch-nodes", error=repr(error))
            await asyncio.sleep(_LOOK_S)

    def heard(self, node: str) -> None:
        seen = self._live.node(node)
        if seen.state != "heard":
            self._log.info("node-heard", node=node, before=seen.state)
        seen.heard_s = time.monotonic()
        seen.state = "heard"
        self._told_cut_off = False

    def waited(self, for_s: float) -> None:
        """Somebody waited ``for_s`` before we knew who it was."""
        self._lateness.waited(for_s, time.monotonic())

    def runs(self, node: str, jobs: object) -> None:
        """What a node says it runs: an attempt not heard of yet is worth a look at Slurm, once a second at most."""
        if not isinstance(jobs, list):
            return
        for item in jobs:
            job, attempt = (item.get("job"), item.get("attempt")) if isinstance(item, dict) else (None, None)
            if not isinstance(job, int) or not isinstance(attempt, int):
                continue
            seen = self._live.attempts.get((job, attempt))
            if seen is None or node not in seen.nodes:
                self._look_soon()
                return

    def _look_soon(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= _NEWS_S:
            self._looked_s = now_s
            self._looking = asyncio.create_task(self.reconcile())

    def lost_connection(self, node: str) -> None:
        """The agent's connection broke: ask now instead of after the silence."""
        seen = self._live.node(node)
        if seen.state == "heard":
            self._probe_soon(node)

    def _look_at_nodes(self) -> None:
        now_s = time.monotonic()
        self._lateness.looked(now_s, _LOOK_S)
        patience_s = self._settings.daemon.heartbeat_lost_s + self._lateness.excuse_s
        heard = 0
        again = []
        expected = self._expected()
        for name, seen in expected.items():
            since_s = seen if seen is not None else self._started_s
            if now_s - since_s <= patience_s:
                heard += 1
            elif self._live.node(name).state in ("heard", "unknown"):
                self._live.node(name).state = "silent"
                self._log.warning("node-silent", node=name, silent_s=f"{now_s - since_s:.1f}")
                self._probe_soon(name)
            elif self._live.node(name).state == "silent" and now_s - self._probed_s.get(name, 0.0) > patience_s:
                again.append(name)  # an agent may have died first and its node later; or we were cut off
        if heard == 0 and len(expected) >= _ALONE:
            self._dark_s = now_s  # cut off: nothing would be learned
        elif now_s - self._dark_s > patience_s:
            for name in again:
                self._probe_soon(name)
        self._telemetry.agents.set(heard)

    def _expected(self) -> dict[str, float | None]:
        """Nodes that should be heard: heard once before, or carrying a job now."""
        names: dict[str, float | None] = {name: seen.heard_s for name, seen in self._live.nodes.items() if seen.heard_s}
        if self._live.fleet is not None:
            for job in self._live.fleet.jobs.values():
                if job.state == "running":
                    for name in job.nodes:
                        names.setdefault(name, None)
        return names

    def _probe_soon(self, node: str) -> None:
        running = self._probing.get(node)
        if running is None or running.done():
            self._probed_s[node] = time.monotonic()
            self._probing[node] = asyncio.create_task(self._probe(node))

    async def _probe(self, node: str) -> None:
        """Silence is no proof. slurmd's port is: refused or silent several times in a row, the node is unreachable."""
        view = self._live.fleet.nodes.get(node) if self._live.fleet is not None else None
        if view is None or view.port is None:
            return
        refusals = []
        cut_off = self._cut_off()  # who was asked in the dark is not convicted when the first light comes back
        for _ in range(self._settings.daemon.probe_attempts):
            before_s = self._live.node(node).heard_s
            answer = await slurmd_answers(view, self._settings.daemon.probe_s)
            if answer is None or self._live.node(node).heard_s != before_s:
                return  # it answers, or its agent was heard meanwhile
            refusals.append(answer)
            await asyncio.sleep(self._settings.daemon.probe_s / 4)
        await self._unreachable(view, refusals, cut_off)

    def _silent(self) -> tuple[int, int]:
        """How many of the nodes that should be heard are not; and how many should be."""
        expected = self._expected()
        return sum(1 for name in expected if self._live.node(name).state in ("silent", "unreachable")), len(expected)

    def _cut_off(self) -> bool:
        if any(seen.state == "heard" for seen in self._live.nodes.values()):
            return False  # asked for each of many silent nodes: counting them all would take the time they have
        silent, expected = self._silent()
        return expected >= _ALONE and silent == expected

    async def _unreachable(self, view: NodeView, refusals: list[str], cut_off: bool) -> None:
        seen = self._live.node(view.name)
        out_of_work = view.drained and self._live.job_on(view.name) is None
        if seen.state == "unreachable" or view.state == "down" or out_of_work:
            seen.state = "unreachable"
            return
        seen.state = "unreachable"
        silent, _ = self._silent()
        if cut_off or self._cut_off():
            if not self._told_cut_off:
                self._told_cut_off = True
                self._log.warning("all-nodes-silent", nodes=silent, reading="our own network may be cut: not known")
            seen.state = "silent"
            return
        now = self._clock.now()
        job = self._live.job_on(view.name)
        item = Evidence(
            id=stable_id("unreachable", view.name, seen.heard_s, now.isoformat()),
            at=now,
            seen_at=now,
            source=Source.PROBE,
            kind=Kind.NODE_UNREACHABLE,
            where=Where(node=view.name),
            text=f"{view.name}: no heartbeat, and slurmd at {view.address}:{view.port}: {', '.join(refusals)}",
            data={"attempts": len(refusals), "silent_nodes": silent, "job_on_it": job.id if job else None},
        )
        self._log.warning("node-unreachable", node=view.name, answers=",".join(refusals))
        await self._observe([item])

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def jobs_forever(self) -> None:
        while True:
            try:
                await self._look_at_jobs()
            except Exception as error:
                self._telemetry.bugs.inc()
                self._log.error("bug", where="watch-jobs", error=repr(error))
            await asyncio.sleep(_LOOK_S)

    async def _look_at_jobs(self) -> None:
        now = self._clock.now()
        running = [
            (job, attempt, seen)
            for (job, attempt), seen in self._live.attempts.items()
            if not seen.ended and not seen.stalled and seen.view.state == "running"
        ]
        await asyncio.gather(*(self._look_at_job(job, attempt, seen, now) for job, attempt, seen in running))

    async def _look_at_job(self, job: int, attempt: int, seen: AttemptSeen, now: datetime) -> None:
        if seen.last_step is not None and (job, attempt) not in self._kept:
            self._kept.add((job, attempt))
            await asyncio.to_thread(self._save_attempts, [seen])
        if slow := self._slowdowns.look(seen, now):
            self._log.info("job-slow", job=job, attempt=attempt, step=seen.last_step)
            await self._observe(slow)
        found = await self._silences.look(job, attempt, seen, now)
        printed = seen.rhythm.last_at
        if not found or not await self._still_runs(job, attempt) or seen.rhythm.last_at != printed:
            return  # ended, printed a step, or was suspended: Slurm says so only now
        seen.stalled = True
        await asyncio.to_thread(self._save_attempts, [seen])  # should we die now, the next one finds it standing
        self._log.warning("job-stalled", job=job, attempt=attempt, step=seen.last_step)
        await self._observe(found)

    async def _still_runs(self, job: int, attempt: int) -> bool:
        """Before a job is called hung: does Slurm say that it still runs?"""
        try:
            fleet = await self._fleets.take(1.0)
        except Unavailable:
            return False  # not known; asked again at the next look
        view = fleet.jobs.get(job)
        return view is not None and view.restarts == attempt and view.state == "running"

    def remember(self) -> None:
        """After a start: who ran where, and the rhythm of what runs, so that a hang which began meanwhile is noticed."""
        now = self._clock.now()
        for row in self._store.attempts(since=now - timedelta(days=7)):
            view = JobView(
                id=row["job"],
                state=row["state"] or "unknown",
                user=row["user"] or "",
                name=row["name"] or "",
                partition=row["partition"] or "",
                restarts=row["attempt"],
                nodes=tuple(row["nodes"]),
                started_at=row["started_at"],
                ended_at=row["ended_at"],
            )
            seen = self._live.see_attempt(view)
            seen.first_step, seen.last_step, seen.step_time_s = row["first_step"], row["last_step"], row["step_time_s"]
            seen.ended = row["ended_at"] is not None
            if not seen.ended and seen.last_step is not None:
                for item in _remembered(row, now):
                    seen.rhythm = observe(seen.rhythm, item)

    # --- reconciliation -----------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """One snapshot: who runs where, and what ended or went down without our hearing of it."""
        try:
            fleet = await self._fleets.take()
        except Unavailable:
            return
        now = self._clock.now()
        items = [
            job_ended(job, now, nodes=self._live.nodes_of(job.id, job.restarts))
            for job in fleet.jobs.values()
            if job.state in _ENDED and self._was_ours(job)
        ]
        items.extend(self._went_down(fleet))
        if items:
            await self._observe(items)
        await asyncio.to_thread(self._save_attempts, list(self._live.attempts.values()))
        self._live.forget(now, self._settings.judgement.group_s)
        self._kept &= self._live.attempts.keys()

    def _was_ours(self, job: JobView) -> bool:
        """Ended while we watched, or a short while before we started: what a dead daemon missed."""
        seen = self._live.attempts.get((job.id, job.restarts))
        if seen is not None:
            return not seen.ended
        age = (self._clock.now() - job.ended_at).total_seconds() if job.ended_at else None
        return age is not None and age < self._settings.judgement.group_s and job.state != "completed"

    def _went_down(self, fleet: Fleet) -> list[Evidence]:
        down = frozenset(name for name, node in fleet.nodes.items() if node.state == "down" or "fail" in node.flags)
        before, self._down = self._down, down
        if before is None:
            return []
        now = self._clock.now()
        return [
            Evidence(
                id=stable_id("node_down", name, fleet.nodes[name].reason, now.isoformat()),
                at=now,
                seen_at=now,
                source=Source.SLURM,
                kind=Kind.NODE_DOWN,
                where=Where(node=name),
                text=f"Slurm says {name} is down: {fleet.nodes[name].reason}",
                data={"reason": fleet.nodes[name].reason[:200]},
            )
            for name in sorted(down - before)
            if not fleet.nodes[name].reason.startswith(OURS)
        ]

    def _save_attempts(self, attempts: Sequence[AttemptSeen]) -> None:
        for seen in attempts:
            if seen.view.started_at is not None:
                self._store.save_attempt(
                    seen.view, first_step=seen.first_step, last_step=seen.last_step, step_time_s=usual_step_s(seen)
                )


def _remembered(row: dict[str, Any], now: datetime) -> list[Evidence]:
    """Step lines as the job printed them before we went away, the last one as if now: what came since is not known."""
    gap_s = max(row["step_time_s"] or 1.0, 1.0)  # agents pass at most one line a second
    return [
        Evidence(
            id=stable_id("remembered", row["job"], row["attempt"], step, now.isoformat()),
            at=now - timedelta(seconds=gap_s * back),
            seen_at=now,
            source=Source.PROGRESS,
            kind=Kind.STEP,
            where=Where(job=row["job"], attempt=row["attempt"]),
            data={"step": step, "step_time_s": row["step_time_s"]},
        )
        for back in range(_REMEMBERED, -1, -1)
        if (step := row["last_step"] - back) >= 0
    ]
