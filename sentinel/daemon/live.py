"""What the daemon remembers between events: nodes heard of, attempts of jobs, their progress and recent evidence.

Memory only; what must survive a restart is in the store (incidents, plans, attempts).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sentinel.daemon.listings import Listings
from sentinel.evidence.progress import Rhythm, observe
from sentinel.evidence.silence import Watched
from sentinel.evidence.standstill import Look
from sentinel.evidence.timers import TIMERS, Report, report_of
from sentinel.model import Evidence, Fleet, JobView, Kind, Source

_SAVES = 50  # newest saves of an attempt that its interval is taken from
_REPORTS = 128  # of timers, at most one in ten seconds: at least twenty minutes
_LOOK_BACK = timedelta(hours=1)
_POOL = 400  # recent evidence kept for each attempt and node, until an incident asks for it


@dataclass(slots=True)
class NodeSeen:
    """What the agent of a node last said. Times are monotonic seconds of this daemon."""

    heard_s: float | None = None
    state: str = "unknown"  # "heard", "silent", "unreachable"
    version: str = ""
    verdict: dict[str, object] = field(default_factory=dict)
    spool: dict[str, object] = field(default_factory=dict)
    clock_offset_s: float | None = None
    released_at: datetime | None = (
        None  # when an operator last returned it: its agent need not hold the past against it
    )
    gpus: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)  # by job and attempt, where known
    pool: deque[Evidence] = field(default_factory=lambda: deque(maxlen=_POOL))


@dataclass(slots=True)
class SilenceSeen:
    """The present silence of an attempt, and what looks at it showed."""

    watched: Watched = field(default_factory=Watched)
    looks: dict[str, Look] = field(default_factory=dict)  # the newest, by node
    count: int = 0
    looked_at: datetime | None = None
    tasks: list[Evidence] = field(default_factory=list)  # of the newest look
    looking: asyncio.Task[None] | None = None
    asking: asyncio.Task[list[Evidence]] | None = None  # who holds the others up
    told: bool = False  # that it is silent for longer than usual
    called_after: datetime | None = None  # the last step line before a silence that was called a hang
    peeked_at: datetime | None = None  # when one node was last asked, in the middle of a long step
    early: bool = False  # its GPUs stood then, so that all are asked


@dataclass(slots=True)
class SlowSeen:
    """The present slowdown of an attempt, and how many step lines were there when it was last looked for."""

    lines: int = 0
    since: datetime | None = None


@dataclass(slots=True)
class AttemptSeen:
    """One attempt of a job."""

    view: JobView
    nodes: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    step_time_s: float | None = None
    rhythm: Rhythm = field(default_factory=Rhythm)
    ended: bool = False
    stalled: bool = False
    silence: SilenceSeen = field(default_factory=SilenceSeen)
    slow: SlowSeen = field(default_factory=SlowSeen)
    pool: deque[Evidence] = field(default_factory=lambda: deque(maxlen=_POOL))
    timers: deque[tuple[datetime, Report]] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    saves: deque[Evidence] = field(default_factory=lambda: deque(maxlen=_SAVES))
    rank_nodes: dict[int, str] = field(default_factory=dict)  # as the tasks themselves told
    top_rank: int | None = None  # highest rank that the log named

    def save_interval_s(self) -> float | None:
        """Median time between the saves that the log told of; None before the third."""
        times = sorted(item.at for item in self.saves)
        gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
        return statistics.median(gaps) if len(gaps) >= 2 else None

    def save_s(self) -> float | None:
        """Median time that a save took, where the log prints it."""
        took = [float(s) for item in self.saves if isinstance(s := item.data.get("time_s"), (int, float)) and s > 0]
        return statistics.median(took) if took else None


class Live:
    """See the module's docstring. Also implements ``sentinel.actions.means.Progress``."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self.nodes: dict[str, NodeSeen] = {}
        self.attempts: dict[tuple[int, int], AttemptSeen] = {}
        self.listings = Listings()
        self._news = asyncio.Event()

    # --- progress -----------------------------------------------------------------------------------------------------

    def last_step(self, job: int, attempt: int) -> int | None:
        seen = self.attempts.get((job, attempt))
        return seen.last_step if seen else None

    def first_step(self, job: int, attempt: int) -> int | None:
        seen = self.attempts.get((job, attempt))
        return seen.first_step if seen else None

    def ended(self, job: int, attempt: int) -> bool:
        seen = self.attempts.get((job, attempt))
        return bool(seen and seen.ended)

    async def changed(self, job: int, within_s: float) -> None:
        news = self._news
        try:
            await asyncio.wait_for(news.wait(), within_s)
        except TimeoutError:
            return

    # --- what comes in ------------------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeSeen:
        seen = self.nodes.get(name)  # asked several times for each heartbeat: nothing is made in vain
        if seen is None:
            seen = self.nodes[name] = NodeSeen()
        return seen

    def see_fleet(self, fleet: Fleet) -> None:
        """Remember who runs where; an attempt keeps its nodes after it ended."""
        self.fleet = fleet
        for (job_id, attempt), seen in self.attempts.items():
            now = fleet.jobs.get(job_id)
            if now is not None and now.restarts == attempt and now.state not in ("pending", "configuring"):
                if _was_suspended(seen.view, now) and seen.rhythm.last_at is not None:
                    seen.rhythm = replace(seen.rhythm, last_at=fleet.at)  # its silence was Slurm's doing
                self.see_attempt(now)
            over = seen.view.started_at is not None and seen.view.ended_at is None
            if over and (now is None or now.restarts > attempt):
                # Requeued or purged: Slurm keeps no record of the attempt, so that this is the closest time we know.
                seen.view = replace(seen.view, state="requeued" if now else "unknown", ended_at=fleet.at)
                seen.ended = True
        for job in fleet.jobs.values():
            if job.state in ("running", "completing") and job.nodes:
                self.see_attempt(job)

    def see_attempt(self, job: JobView) -> AttemptSeen:
        seen = self.attempts.get((job.id, job.restarts))
        if seen is None:
            seen = self.attempts[job.id, job.restarts] = AttemptSeen(view=job)
        seen.nodes = job.nodes or seen.nodes
        seen.view = replace(job, nodes=seen.nodes)
        return seen

    def note(self, item: Evidence) -> None:
        """Keep ``item`` for the incident that may come, and the progress it tells of."""
        where = item.where
        if where.node is not None and where.job is None:
            self.node(where.node).pool.append(item)
        if where.job is None:
            return
        attempt = where.attempt if where.attempt is not None else self.newest_attempt(where.job)
        seen = self.attempts.get((where.job, attempt)) if attempt is not None else None
        if seen is None:
            if attempt is None:
                return
            seen = self.attempts[where.job, attempt] = AttemptSeen(
                view=JobView(id=where.job, state="unknown", restarts=attempt)
            )
        if item.kind == Kind.CHECKPOINTS_HELD:
            self.listings.note(item)
        elif item.kind == Kind.STEP:
            self._step(seen, item)
        elif item.kind == TIMERS:
            report = report_of(item.data)
            seen.timers.append((item.at, report))
            seen.top_rank = max(seen.top_rank or 0, report.ranks - 1) if report.ranks else seen.top_rank
        elif item.source is Source.CHECKPOINT:
            _saved(seen, item)  # read from files: it explains no failure and announces no pause
        else:
            seen.pool.append(item)
            seen.rhythm = observe(seen.rhythm, item)  # a line that announces a pause excuses it
        if item.kind == Kind.CHECKPOINT_SAVED and item.source is not Source.CHECKPOINT:
            seen.saves.append(item)
        if item.kind == Kind.TASK_STATE and where.rank is not None and where.node is not None:
            seen.rank_nodes[where.rank] = where.node
        if item.kind == Kind.JOB_ENDED:
            seen.ended = True
        self._news.set()
        self._news = asyncio.Event()

    def _step(self, seen: AttemptSeen, item: Evidence) -> None:
        seen.rhythm = observe(seen.rhythm, item)
        step = item.data.get("step")
        if isinstance(step, int):
            seen.first_step = step if seen.first_step is None else seen.first_step
            seen.last_step = step if seen.last_step is None else max(step, seen.last_step)
            seen.stalled = False
        step_time = item.data.get("step_time_s")
        if isinstance(step_time, (int, float)) and step_time > 0:
            seen.step_time_s = float(step_time)

    # --- what is asked ------------------------------------------------------------------------------------------------

    def newest_attempt(self, job: int) -> int | None:
        return max((attempt for known, attempt in self.attempts if known == job), default=None)

    def nodes_of(self, job: int | None, attempt: int | None) -> tuple[str, ...]:
        if job is None or attempt is None:
            return ()
        seen = self.attempts.get((job, attempt))
        return seen.nodes if seen else ()

    def jobs_on(self, node: str) -> list[JobView]:
        """The running jobs on ``node``."""
        if self.fleet is None:
            return []
        return [
            j for j in self.fleet.jobs.values() if node in j.nodes and j.state in ("running", "completing", "suspended")
        ]

    def job_on(self, node: str) -> JobView | None:
        """The running job on ``node``; of several the largest."""
        return max(self.jobs_on(node), key=lambda job: len(job.nodes), default=None)

    def recent(
        self,
        job: int | None,
        attempt: int | None,
        nodes: Iterable[str],
        since: datetime,
        without: Collection[str] = (),
    ) -> Sequence[Evidence]:
        """Evidence since ``since`` about this attempt and about these nodes; without what has these ids."""
        found: dict[str, Evidence] = {}
        seen = self.attempts.get((job, attempt)) if job is not None and attempt is not None else None
        pools = [seen.pool] if seen else []
        pools.extend(self.nodes[name].pool for name in nodes if name in self.nodes)
        for pool in pools:
            for item in pool:
                if item.at >= since and item.id not in without:
                    found[item.id] = item
        return sorted(found.values(), key=lambda item: item.at)

    def forget(self, before: datetime, group_s: float = 0.0) -> None:
        """Drop attempts that ended long ago, and what nodes said longer ago than anybody looks back."""
        for key, seen in list(self.attempts.items()):
            newest = max((item.at for item in seen.pool), default=seen.view.started_at)
            if seen.ended and newest is not None and newest < before - _LOOK_BACK:
                del self.attempts[key]
        since = before - max(_LOOK_BACK, timedelta(seconds=group_s))
        for node in self.nodes.values():  # 400 items of each of 2,048 nodes, for ever, would be a gigabyte
            while node.pool and node.pool[0].seen_at < since:
                node.pool.popleft()


def _was_suspended(before: JobView, now: JobView) -> bool:
    """Whether a job that runs stood still since the last look, also when it began and ended in between."""
    return now.state == "running" and (before.state == "suspended" or now.suspended_at != before.suspended_at)


def _saved(seen: AttemptSeen, item: Evidence) -> None:
    """A save that its files show; where the log tells of saves, the log counts: it has them all, and each once."""
    if item.kind == Kind.CHECKPOINT_SAVED and all(known.source is Source.CHECKPOINT for known in seen.saves):
        step = item.data.get("step")
        if all(known.data.get("step") != step for known in seen.saves):  # the same one, in another tier
            seen.saves.append(item)
