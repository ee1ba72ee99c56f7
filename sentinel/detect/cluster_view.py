"""The in-memory view of the cluster between events: nodes and their agents, attempts of jobs, progress, recent evidence.

Nothing here is persistent: what must survive a restart is in the store (incidents, plans, attempts).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.detect.hang import SilenceSeen
from sentinel.detect.job_end import STATE_PREEMPTED, STATE_REQUEUED, says_preempted, state_of_requeued, without_record
from sentinel.detect.listings import Listings
from sentinel.detect.observed_silence import Observed
from sentinel.detect.own_host import ahead_s
from sentinel.detect.progress_curve import Point, ProgressCurve
from sentinel.detect.seen import AttemptSeen, NodeSeen
from sentinel.detect.step_rhythm import Rhythm, observe
from sentinel.evidence.logs.timers import TIMERS, report_of
from sentinel.model.jobs.chains import begun_tasks, still_linked, waiting
from sentinel.model.records import Evidence, Fleet, JobView, Kind, Source
from sentinel.model.vocabulary import END_NOT_SEEN

_LOOK_BACK = timedelta(hours=1)  # how long node evidence and ended attempts are kept at least
_CURVES = 1000  # of attempts that ended, the newest: 8 MB


class AskedPartitions:
    """In which partitions a job may be started, as snapshots showed it while it waited: once it has begun, Slurm shows the
    one in which it runs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, ...]] = {}  # by job: where it asks for several

    def told(self, fleet: Fleet) -> Fleet:
        """The snapshot whose jobs that have begun say what they ask for (``JobView.partitions``)."""
        for job in [job for job in self._known if not fleet.may_have_job(job)]:
            del self._known[job]
        begun = {}
        for view in fleet.jobs.values():
            if view.state == "pending" and "," in view.partition:
                self._known[view.id] = tuple(view.partition.split(","))
            elif view.state == "pending":
                self._known.pop(view.id, None)  # its user has changed it
            elif view.partition in (known := self._known.get(view.id, ())):
                begun[view.id] = replace(view, partitions=known)
        return replace(fleet, jobs={**fleet.jobs, **begun}) if begun else fleet


class ClusterView:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self.known_until: datetime | None = None  # before the first snapshot: when the previous daemon was last alive
        self.nodes: dict[str, NodeSeen] = {}
        self.attempts: dict[tuple[int, int], AttemptSeen] = {}
        self.listings = Listings()
        self.asked_partitions = AskedPartitions()
        self.dependents: dict[int, dict[int, str]] = {}  # by job: those that waited for its end, and their kind
        self._past_curves: dict[tuple[int, int], tuple[datetime | None, ProgressCurve]] = {}  # with the attempt's start

    def last_step(self, job: int, attempt: int) -> int | None:
        return seen.last_step if (seen := self.attempts.get((job, attempt))) else None

    def last_save(self, job: int, attempt: int) -> int | None:
        """The step of the newest save of the attempt that was seen."""
        return seen.last_save() if (seen := self.attempts.get((job, attempt))) else None

    def step_lines(self, job: int, attempt: int, since: datetime) -> list[Evidence]:
        """The last step lines that the attempt printed since then, for what its log says among them."""
        seen = self.attempts.get((job, attempt))
        return [item for item in seen.step_lines if item.at >= since] if seen is not None else []

    def first_step(self, job: int, attempt: int) -> int | None:
        return seen.first_step if (seen := self.attempts.get((job, attempt))) else None

    def has_run(self, job: int, attempt: int) -> bool:
        """Whether the attempt was seen on its nodes, or printed a step."""
        return self._was_seen(job, attempt) or self.first_step(job, attempt) is not None

    def curve(self, job: int, attempt: int, began: datetime) -> list[Point]:
        """Loss and step time over the steps that this daemon saw of the attempt that began then; empty where it saw none.

        One of that number and another start is of a job that has, or had, the same id: maybe another user's.
        """
        seen = self.attempts.get((job, attempt))
        kept = (seen.view.started_at, seen.curve) if seen is not None else self._past_curves.get((job, attempt))
        return kept[1].points() if kept is not None and kept[0] in (None, began) else []

    def ended(self, job: int, attempt: int) -> bool:
        return bool((seen := self.attempts.get((job, attempt))) and seen.ended)

    def node(self, name: str) -> NodeSeen:
        if (seen := self.nodes.get(name)) is None:  # called several times per heartbeat: no needless setdefault
            seen = self.nodes[name] = NodeSeen()
        return seen

    def own_clock_ahead_s(self) -> float | None:
        known = (seen for seen in self.nodes.values() if seen.state == "heard")
        return ahead_s([seen.clock_offset_s for seen in known if seen.clock_offset_s is not None])

    @property
    def looked_at(self) -> datetime | None:
        """When Slurm was looked at last, by this daemon or the one before; None: not known."""
        return self.fleet.at if self.fleet is not None else self.known_until

    def see_fleet(self, fleet: Fleet) -> None:
        """Update nodes and attempts from a snapshot; an attempt keeps its nodes after it ended."""
        before, fleet = self.looked_at, self.asked_partitions.told(fleet)
        for (job_id, attempt), seen in self.attempts.items():
            now = fleet.jobs.get(job_id)
            on_nodes = now is not None and now.state not in ("pending", "configuring")
            if now is not None and on_nodes and now.restarts == attempt == self.attempt_on(now):
                seen.after_suspension(now, fleet.at)
                was = seen.view.state
                if was in (STATE_REQUEUED, END_NOT_SEEN) or (was == STATE_PREEMPTED and now.state != was):
                    seen.ended = False  # slurmctld forgot the requeue
                self.see_attempt(now)
            over = seen.view.started_at is not None and seen.view.ended_at is None
            gone = now is None and not fleet.may_have_job(job_id)  # an unreadable record is no end
            if over and (gone or (now is not None and now.restarts > attempt)):
                # Requeued or purged: Slurm keeps no record of it; the snapshot's time is the best known end.
                state = state_of_requeued(seen.view, seen.pool) if now else "unknown"
                seen.view, seen.ended = without_record(seen.view, state, fleet.at, before, fleet.at), True
        for job in fleet.jobs.values():
            if job.state not in ("running", "completing") or not job.nodes:
                continue
            attempt = self.attempt_on(job)
            if attempt == job.restarts:
                self.see_attempt(job)
            elif not self._was_seen(job.id, attempt):
                self.see_attempt(replace(job, restarts=attempt))
        self._see_dependents(fleet)
        self.fleet = self._with_whole_allocations(fleet)

    def attempt_on(self, job: JobView) -> int:
        """The attempt of the job that holds its nodes, or held them last."""
        return job.restarts - 1 if self._is_being_requeued(job) else job.restarts

    def _is_being_requeued(self, job: JobView) -> bool:
        """Whether only the epilogs of the attempt before run: Slurm counts the restart at once, on the old nodes.

        Its start stays there, too, or is Slurm's forecast already (after a requeue that holds nothing); a new time of
        submission is written only when the epilogs are over. Where neither attempt was seen, it is the one before: the
        next starts two minutes after its requeue at the earliest.
        """
        if job.state != "completing" or not job.restarts:
            return False
        if not self._was_seen(job.id, job.restarts - 1):
            return (job.id, job.restarts) not in self.attempts
        before = self.attempts[job.id, job.restarts - 1].view.started_at
        if job.started_at == before or self._was_seen(job.id, job.restarts):
            return job.started_at == before
        return before is not None and job.submitted_at is not None and job.submitted_at <= before

    def _was_seen(self, job: int, attempt: int) -> bool:
        """Whether a snapshot showed the attempt on its nodes."""
        seen = self.attempts.get((job, attempt))
        return seen is not None and seen.view.started_at is not None

    def _see_dependents(self, fleet: Fleet) -> None:
        """Slurm forgets what a job waited for when it lets it go: here that is kept as long as both are in the snapshots,
        of a singleton until both run at once."""
        jobs, tasks = fleet.jobs, begun_tasks(fleet.jobs.values())
        self.dependents = {
            job: still_linked(jobs[job], others, jobs, tasks) for job, others in self.dependents.items() if job in jobs
        }
        for view, kind, job in waiting(jobs.values()):
            self.dependents.setdefault(job, {})[view] = kind

    def _with_whole_allocations(self, fleet: Fleet) -> Fleet:
        """Slurm lists only those nodes of a completing job that are not done yet, and of a requeued one the start that it
        forecasts; here it keeps all that it had, and when it began."""
        completing = {
            job.id: replace(job, nodes=seen.nodes, started_at=seen.view.started_at or job.started_at)
            for job in fleet.jobs.values()
            if job.state == "completing" and (seen := self.attempts.get((job.id, self.attempt_on(job)))) is not None
        }
        return replace(fleet, jobs={**fleet.jobs, **completing}) if completing else fleet

    def job(self, fleet: Fleet, job: int | None, attempt: int | None) -> JobView | None:
        """The job in ``fleet``, or as last seen if its record cannot be read; None if it is not there.

        A caller that acts on it must read Slurm's state again first.
        """
        seen = self.attempts.get((job, attempt)) if job is not None and attempt is not None else None
        if job is None or job in fleet.jobs or seen is None or not fleet.may_have_job(job):
            return fleet.jobs.get(job) if job is not None else None
        return seen.view

    def jobs(self) -> Collection[JobView]:
        """Jobs of the newest snapshot; those whose record could not be read as they were last seen."""
        fleet = self.fleet
        if fleet is None:
            return ()
        if not fleet.unread:
            return fleet.jobs.values()
        newest = {job: seen.view for (job, _), seen in sorted(self.attempts.items()) if not seen.ended}
        missing = [view for job, view in newest.items() if job not in fleet.jobs and fleet.may_have_job(job)]
        return [*fleet.jobs.values(), *missing]

    def see_attempt(self, job: JobView) -> AttemptSeen:
        seen = self.attempts.get((job.id, job.restarts))
        if seen is None:
            seen = self.attempts[job.id, job.restarts] = AttemptSeen(view=job)
        if job.state == "completing":
            seen.nodes = seen.nodes or job.nodes
        elif job.nodes:
            seen.nodes, seen.nodes_whole = job.nodes, True
        seen.view = job if job.nodes == seen.nodes else replace(job, nodes=seen.nodes)
        return seen

    def begin_run(self, job: int, attempt: int, at: datetime) -> AttemptSeen | None:
        """The attempt begins anew in its allocation, without the progress that it made; None if it is not known."""
        seen = self.attempts.get((job, attempt))
        if seen is not None:
            seen.run_since, seen.first_step, seen.last_step, seen.start_learned = at, None, None, False
            seen.rhythm, seen.silence, seen.observed, seen.stalled = Rhythm(), SilenceSeen(), Observed(), False
        return seen

    def note(self, item: Evidence) -> None:
        """Keep ``item`` for an incident opened later, and update the attempt's progress from it."""
        where = item.where
        if where.node is not None and where.job is None:
            self.node(where.node).pool.append(item)
        if where.job is None:
            return
        attempt = where.attempt if where.attempt is not None else self.newest_attempt(where.job)
        if attempt is None:
            return
        if (seen := self.attempts.get((where.job, attempt))) is None:
            seen = self.see_attempt(JobView(id=where.job, state="unknown", restarts=attempt))
        seen.noted_at = item.seen_at
        if item.kind == Kind.CHECKPOINTS_HELD:
            self.listings.note(item)
        elif item.kind == Kind.STEP:
            self._step(seen, item)
        elif item.kind == TIMERS:
            report = report_of(item.data)
            seen.timers.append((item.at, report))
            seen.top_rank = max(seen.top_rank or 0, report.ranks - 1) if report.ranks else seen.top_rank
        elif item.source is Source.CHECKPOINT:
            _saved(seen, item)  # derived from files: it neither explains a failure nor announces a pause
        else:
            seen.pool.append(item)
            seen.rhythm = observe(seen.rhythm, item)  # a line that announces a pause excuses it
            if seen.view.state == STATE_REQUEUED and says_preempted(item):  # the log is read after Slurm is looked at
                seen.view = replace(seen.view, state=STATE_PREEMPTED)
        if item.kind == Kind.CHECKPOINT_SAVED and item.source is not Source.CHECKPOINT:
            seen.saves.append(item)
        if item.kind == Kind.TASK_STATE and where.rank is not None and where.node is not None:
            seen.rank_nodes[where.rank] = where.node
        if item.kind == Kind.JOB_ENDED:
            seen.ended = True

    def _step(self, seen: AttemptSeen, item: Evidence) -> None:
        if seen.run_since is not None and item.at <= seen.run_since:
            return  # of the run before
        seen.rhythm = observe(seen.rhythm, item)
        seen.curve.note(item)
        seen.step_lines.append(item)
        step = item.data.get("step")
        if isinstance(step, int):
            seen.first_step = step if seen.first_step is None else seen.first_step
            seen.last_step = step if seen.last_step is None else max(step, seen.last_step)
            seen.stalled = False
        step_time = item.data.get("step_time_s")
        if isinstance(step_time, (int, float)) and step_time > 0:
            seen.step_time_s = float(step_time)

    def place_ranks(self, items: Iterable[Evidence]) -> None:
        """Note on which nodes ranks run, from the states of their processes."""
        for item in items:
            where = item.where
            seen = self.attempts.get((where.job or -1, where.attempt if where.attempt is not None else -1))
            if item.kind == Kind.TASK_STATE and seen is not None and where.rank is not None and where.node is not None:
                seen.rank_nodes[where.rank] = where.node

    def newest_attempt(self, job: int) -> int | None:
        return max((attempt for known, attempt in self.attempts if known == job), default=None)

    def attempt_with(self, job: int, node: str) -> int | None:
        """The newest attempt of the job that is known to run, or to have run, on ``node``; None: none is known."""
        view = self.fleet.jobs.get(job) if self.fleet is not None else None
        here = [number for (known, number), seen in self.attempts.items() if known == job and node in seen.nodes]
        if view is not None and node in view.nodes:
            here.append(self.attempt_on(view))
        return max(here, default=None)

    def nodes_of(self, job: int | None, attempt: int | None) -> tuple[str, ...]:
        seen = self.attempts.get((job, attempt)) if job is not None and attempt is not None else None
        return seen.nodes if seen else ()

    def ran_on(self, job: int, attempt: int | None, node: str) -> bool | None:
        """Whether the attempt (None: any of the job) runs or ran on ``node``; None: the newest snapshot does not say.

        Of a job whose record cannot be read, or of whose nodes Slurm names only those that are not done, any may be one.
        """
        view = self.fleet.jobs.get(job) if self.fleet is not None else None
        if view is None and self.fleet is not None and self.fleet.may_have_job(job):
            return True
        newest = view.restarts if view is not None else 0
        numbers = range(newest, -1, -1) if attempt is None else (attempt,)
        if view is not None and newest in numbers and node in view.nodes:
            return True
        known = [seen for number in numbers if (seen := self.attempts.get((job, number))) is not None and seen.nodes]
        if any(node in seen.nodes or not seen.nodes_whole for seen in known):
            return True
        return False if len(known) == len(numbers) else None

    def jobs_on(self, node: str) -> list[JobView]:
        """The running jobs on ``node``."""
        return [j for j in self.jobs() if node in j.nodes and j.state in ("running", "completing", "suspended")]

    def job_on(self, node: str) -> JobView | None:
        """The running job on ``node``; of several the largest."""
        return max(self.jobs_on(node), key=lambda job: len(job.nodes), default=None)

    def recent(
        self, job: int | None, attempt: int | None, nodes: Iterable[str], since: datetime, without: Collection[str] = ()
    ) -> Sequence[Evidence]:
        """Evidence since ``since`` about this attempt and these nodes, except the ids in ``without``."""
        found: dict[str, Evidence] = {}
        seen = self.attempts.get((job, attempt)) if job is not None and attempt is not None else None
        pools = [*([seen.pool] if seen else []), *(self.nodes[name].pool for name in nodes if name in self.nodes)]
        for pool in pools:
            for item in pool:
                if item.at >= since and item.id not in without:
                    found[item.id] = item
        return sorted(found.values(), key=lambda item: item.at)

    def forget(self, before: datetime, group_s: float = 0.0) -> None:
        """Drop attempts that ended long ago or of which Slurm knows nothing, and node evidence older than the look-back."""
        fleet = self.fleet
        for key, seen in list(self.attempts.items()):
            # What its node's clock calls later than when it came is not kept for longer.
            newest = max((min(item.at, item.seen_at) for item in seen.pool), default=seen.view.started_at)
            now = before
            if not seen.ended:
                if fleet is None or fleet.may_have_job(key[0]):
                    continue
                newest, now = seen.noted_at, min(before, fleet.at)  # no snapshot will ever show its end
            if newest is not None and newest < now - _LOOK_BACK:
                del self.attempts[key]
                self._past_curves[key] = seen.view.started_at, seen.curve
        while len(self._past_curves) > _CURVES:
            del self._past_curves[next(iter(self._past_curves))]
        since = before - max(_LOOK_BACK, timedelta(seconds=group_s))
        for node in self.nodes.values():  # without this, 400 items of each of 2,048 nodes would be a gigabyte
            while node.pool and node.pool[0].seen_at < since:
                node.pool.popleft()


def _saved(seen: AttemptSeen, item: Evidence) -> None:
    """Note a save found in files, and what its manifest cost.

    If the log reports saves, only those count: it has all of them, each once.
    """
    size, took_s = item.data.get("read_bytes"), item.data.get("read_s")
    if item.kind == Kind.CHECKPOINT_MANIFEST and isinstance(size, int) and isinstance(took_s, (int, float)):
        seen.read_back_bytes += size
        seen.read_back_s += took_s
    if item.kind == Kind.CHECKPOINT_SAVED and all(known.source is Source.CHECKPOINT for known in seen.saves):
        step = item.data.get("step")
        if all(known.data.get("step") != step for known in seen.saves):  # the same one, in another tier
            seen.saves.append(item)
