"""A Slurm in memory: nodes, jobs and the scheduler, as slurmctld and its slurmd behave towards Sentinel.

Time is the caller's: ``clock`` moves only when told to, and what has become due since is caught up with at the next call
(``catch_up``), in order of time. What Sentinel asks of slurmctld goes through ``sentinel.simulate.slurm.requests``; the
methods here are what happens on the cluster: jobs are submitted and end, nodes die, people use ``scontrol``.

    slurm = SimulatedSlurm(nodes=4)
    job = slurm.submit(nodes=2, comment="...")
    slurm.lose("n1"); slurm.end(job, exit_code=3); slurm.answers = False
    await slurm.fleet(); await slurm.drain("n1", "sentinel: ...")
    slurm.calls      # every write that reached "slurmctld", in order
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sentinel.adapters.slurm.writer import Writer
from sentinel.errors import Denied, Timeout
from sentinel.model.records import Fleet, JobView, NodeView
from sentinel.model.spares import Spares
from sentinel.ports import Clock
from sentinel.simulate.slurm.people import PeopleUseScontrol
from sentinel.simulate.slurm.records import (
    LIMITS_S,
    KeptNodes,
    SimulatedJob,
    SimulatedNode,
    SlurmTimes,
    StandingClock,
    Views,
    copied,
    waited_only_for,
    waits_for_a_lost_node,
)
from sentinel.simulate.slurm.requests import Requests
from sentinel.simulate.slurm.scheduling import start_what_may_run


class SimulatedSlurm(PeopleUseScontrol, Writer):
    """``SlurmReader`` and ``SlurmWriter``, held to the contract suite of the real ones."""

    def __init__(
        self,
        nodes: int | Sequence[str] = 4,
        *,
        clock: Clock | None = None,
        times: SlurmTimes | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        """``seconds``: Unix time, where somebody knows it without asking ``clock``."""
        self._seconds = seconds or self._clock_s
        super().__init__(Requests(self), now=self.time_s, sleep=self._no_wait)
        names = [f"n{index + 1}" for index in range(nodes)] if isinstance(nodes, int) else list(nodes)
        self.clock: Any = clock or StandingClock()
        self.times = times or SlurmTimes()
        self.nodes = {name: SimulatedNode(name, port=17_001 + index) for index, name in enumerate(names)}
        self.jobs: dict[int, SimulatedJob] = {}
        self.kept: KeptNodes | None = None
        self.calls: list[tuple[str, ...]] = []
        self.answers = True  # False: slurmctld is frozen
        self.denies = False  # True: munge trouble
        self.refused_until_s: dict[str, float] = {}  # Unix time, by what may not be changed until then: nodes, jobs
        self.unreadable: set[int | str] = set()  # jobs and nodes whose records cannot be read
        self.waited_s = 0.0  # what the writer would have waited before releases
        self.release_name = "22.05.8"
        self.requeue_exit_hold = False  # whether slurm.conf requeues and holds what fails
        self.booted = self.clock.now() - timedelta(days=1)  # when slurmctld was started the last time
        self.started: Callable[[SimulatedJob], None] = lambda _job: None  # called when an attempt begins
        self.stopped: Callable[[SimulatedJob, str], None] = lambda _job, _state: None  # when it ends, with its state
        self.step_over: Callable[[SimulatedJob, str], None] = lambda _job, _name: None  # when a step was ended
        self.final_s: dict[int, float] = {}  # by job: when the epilogs of its newest attempt were over, Unix time
        self._views = Views(self)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._saved: tuple[dict[str, SimulatedNode], dict[int, SimulatedJob], KeptNodes | None] | None = None

    # -- what happens on the cluster -------------------------------------------------------------------------------

    def submit(
        self,
        *,
        nodes: int = 1,
        name: str = "train",
        comment: str = "",
        user: str = "alice",
        uid: int = 1001,
        requeue: bool = True,
        batch: bool = True,
        held: bool = False,
        excluded: Sequence[str] = (),
        required: Sequence[str] = (),
        partition: str = "train",
        array: tuple[int, int] | None = None,
        het: int | None = None,
        after_ok: int | None = None,
        no_kill: bool = False,
    ) -> int:
        """sbatch. ``array``: (array job id, task). ``het``: id of the leader. ``after_ok``: job that must complete first."""
        job = SimulatedJob(max(self.jobs, default=100) + 1, nodes, self.time_s(), requeue=requeue, batch=batch)
        job.record = {
            "name": name,
            "comment": comment,
            "user_name": user,
            "user_id": uid,
            "partition": partition,
        }
        if array is not None:
            job.record |= {"array_job_id": array[0], "array_task_id": array[1]}
        if het is not None:
            job.record["het_job_id"] = het or job.id
        job.after_ok, job.no_kill, job.eligible = after_ok, no_kill, self.time_s()
        job.excluded, job.required = tuple(excluded), tuple(required)
        job.held, job.held_by = held, "JobHeldUser" if held else ""
        self.jobs[job.id] = job
        if het is None:
            self.schedule()  # the components of a heterogeneous job are submitted together
        return job.id

    def end(self, job: int, *, exit_code: int = 0, exit_signal: int = 0, state: str = "") -> None:
        """The job's script ends, and with it all components of a heterogeneous job; with a ``state`` this one alone."""
        this = self.jobs[job]
        assert this.state == "RUNNING", this.state
        for part in [this] if state else [one for one in self.parts(this) if one.state == "RUNNING"]:
            part.exit_code, part.exit_signal = exit_code, exit_signal
            if exit_code and self.requeue_exit_hold:
                self.to_queue(part, held=True)
                part.special = True
            else:
                self._stop(part, state or ("FAILED" if exit_code or exit_signal else "COMPLETED"))
        self.schedule()

    def purge(self, job: int) -> None:
        """MinJobAge has passed."""
        del self.jobs[job]

    def lose(self, node: str) -> None:
        """The machine is gone; Slurm does not know it yet."""
        self.nodes[node].alive = False

    def notice(self, node: str) -> None:
        """SlurmdTimeout has passed: Slurm sets the lost node down by itself."""
        this = self.nodes[node]
        this.silent, this.down, this.reason = True, True, this.reason or "Not responding"
        self._node_fail(node)

    def revive(self, node: str) -> None:
        """The machine answers again (ReturnToService=2: a node that is only down comes back)."""
        this = self.nodes[node]
        this.alive, this.silent = True, False
        if this.down and not this.drained:
            this.down, this.reason = False, ""
        self.schedule()

    def lost_processes(self, node: str) -> None:
        """The node has started anew: Slurm finds that its jobs are not there."""
        self.nodes[node].alive = True
        self._node_fail(node)

    # -- slurmctld -------------------------------------------------------------------------------------------------

    def save_state(self) -> None:
        """What slurmctld has on its disk by now: a crash falls back to it."""
        self._saved = copied(self.nodes, self.jobs, self.kept)

    def crash(self, away_s: float = 0.0) -> None:
        """slurmctld is killed, and is started after ``away_s`` seconds; it has forgotten what it had not saved yet.

        A job that was stopped since then is listed as running, without a process (``ghost``), until Slurm finds out.
        """
        if self._saved is None:
            return
        nodes, jobs, self.kept = copied(*self._saved)
        for name, node in nodes.items():
            node.alive = self.nodes[name].alive
        for job in jobs.values():
            now = self.jobs.get(job.id)
            if job.state == "RUNNING" and (now is None or now.state != "RUNNING" or now.restarts != job.restarts):
                job.ghost, limit = True, now is not None and now.state == "TIMEOUT"  # slurmctld looks at limits itself
                found = partial(self._find_ghost, job.id, "TIMEOUT" if limit else "NODE_FAIL")
                self.later(LIMITS_S if limit else self.times.ghost_s, found)
        for number, job in [(job.id, job) for job in self.jobs.values() if job.state == "RUNNING"]:
            known = jobs.get(number)
            if known is None or known.restarts != job.restarts:
                continue
            if known.state == "RUNNING":  # its nodes report them
                known.on, known.steps, known.next_step = job.on, job.steps, job.next_step
            elif known.state == "PENDING":
                jobs[number] = job  # its nodes report it when they register
        self.nodes, self.jobs = nodes, jobs
        for job in jobs.values():
            if job.completing:  # its nodes tell again that their epilogs are over
                self.later(self.times.epilog_s, partial(self._epilogs_over, job.id, job.restarts))
        self.booted = (self.clock.now() + timedelta(seconds=away_s)).replace(microsecond=0)
        self.schedule()

    def _find_ghost(self, job: int, state: str) -> None:
        this = self.jobs.get(job)
        if this is not None and this.ghost and this.state == "RUNNING":
            self._stop(this, state, requeues=state == "NODE_FAIL" and this.requeue and this.batch)
            self.schedule()

    def launch_fails_later(self, job: SimulatedJob) -> None:
        """A node of the job is gone, and Slurm does not know it yet: the prolog there does not answer."""
        self.later(self.times.launch_s, partial(self._launch_fails, job.id, job.restarts))

    def _launch_fails(self, job: int, attempt: int) -> None:
        this = self.jobs.get(job)
        if this is not None and this.ghost and this.state == "RUNNING" and this.restarts == attempt:
            for part in self.parts(this):
                if part.state == "RUNNING":
                    part.launch_failed = True
                    self._stop(part, "NODE_FAIL", requeues=this.requeue and this.batch)
            self.schedule()

    def schedule(self) -> None:
        """Start what may run now."""
        start_what_may_run(self)

    def find(self, spec: str) -> SimulatedJob | None:
        """The job of an id, or of an array's id and task as scontrol takes it."""
        for job in self.jobs.values():
            if spec in (f"{job.id}", f"{job.record.get('array_job_id')}_{job.record.get('array_task_id')}"):
                return job
        return None

    def catch_up(self) -> None:
        """Do what has become due, in order of time."""
        while self._due and self._due[0][0] <= self.time_s():
            heapq.heappop(self._due)[2]()
        self.schedule()

    def next_due_s(self) -> float | None:
        """When something happens by itself the next time; None if nothing will."""
        now_s = self.time_s()
        due_s = self._due[0][0] if self._due else None
        for job in self.jobs.values():
            if job.state == "PENDING" and job.eligible > now_s and (due_s is None or job.eligible < due_s):
                due_s = job.eligible
        return due_s

    def later(self, after_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.time_s() + after_s, self._count, what))

    # -- SlurmReader -----------------------------------------------------------------------------------------------

    async def fleet(self) -> Fleet:
        self.check()
        self.catch_up()
        return self._views.fleet(self.clock.now())

    async def node(self, name: str) -> NodeView | None:
        self.check()
        self.catch_up()
        return self._views.node(name) if name in self.nodes else None

    async def job(self, job: int) -> JobView | None:
        self.check()
        self.catch_up()
        return self._views.job(self.jobs[job]) if job in self.jobs else None

    async def steps(self, job: int) -> dict[int, str]:
        self.check()
        self.catch_up()
        found = self.jobs.get(job)
        return {number: name for number, (name, _) in found.steps.items()} if found is not None else {}

    async def version(self) -> str:
        self.check()
        return self.release_name

    async def booted_at(self) -> datetime | None:
        self.check()
        return self.booted

    async def spares(self, reservation: str) -> Spares | None:
        self.check()
        self.catch_up()
        kept = self.kept if self.kept is not None and self.kept.name == reservation else None
        return Spares(kept.name, kept.nodes, tuple(sorted(kept.users))) if kept is not None else None

    def check(self) -> None:
        if not self.answers:
            raise Timeout("slurmctld did not answer within its deadline")
        if self.denies:
            raise Denied("Slurm refused us: Protocol authentication error")

    def job_json(self, job: SimulatedJob) -> dict[str, Any]:
        """The job in the shape of Slurm's JSON."""
        return self._views.job_record(job)

    def time_s(self) -> float:
        return self._seconds()

    def _clock_s(self) -> float:
        return float(self.clock.now().timestamp())

    async def _no_wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def _stop(self, job: SimulatedJob, state: str, *, requeues: bool = False) -> None:
        """The job ends or goes back to the queue; first its nodes run their epilogs."""
        ran = job.has_nodes and not job.completing
        job.state, job.ended, job.requeues = state, self.time_s(), requeues
        if not job.on:
            self._completed(job)
        elif not job.completing:
            job.completing = True
            if ran:
                self.stopped(job, state)
            if requeues:
                job.restarts, job.counted = job.restarts + 1, True
            if self.times.epilog_s:
                self.later(self.times.epilog_s, partial(self._epilogs_over, job.id, job.restarts))
            else:
                self._epilogs_over(job.id, job.restarts)

    def _epilogs_over(self, name: int, attempt: int) -> None:
        job = self.jobs.get(name)
        if job is None or not job.completing or job.restarts != attempt:
            return
        job.waits_for_node = bool(self.times.epilog_s) and waits_for_a_lost_node(job, self.nodes)
        if not job.waits_for_node:  # else until the node is set down, or Slurm sets it down itself
            self._completed(job)
            self.schedule()

    def _completed(self, job: SimulatedJob, *, set_down: bool = False) -> None:
        """``set_down``: the node that was waited for. Then Slurm (22.05) leaves the times of a requeued job as they were."""
        job.completing, job.waits_for_node, self.final_s[job.id] = False, False, self.time_s()
        if job.requeues:
            self.back_to_queue(job, held=job.held, renewed=not set_down)
        elif self.times.min_job_age_s is not None:
            self.later(self.times.min_job_age_s, partial(self._purge_old, job.id, job.restarts))

    def _purge_old(self, name: int, attempt: int) -> None:
        job = self.jobs.get(name)
        if job is not None and job.over and not job.completing and job.restarts == attempt:
            self.purge(name)

    def parts(self, job: SimulatedJob) -> list[SimulatedJob]:
        """The components of a heterogeneous job; of another job itself."""
        het = job.record.get("het_job_id")
        return [job] if het is None else [one for one in self.jobs.values() if one.record.get("het_job_id") == het]

    def _node_fail(self, node: str) -> None:
        for job in list(self.jobs.values()):
            if job.state == "RUNNING" and job.no_kill and node in job.on[1:]:
                job.on = tuple(name for name in job.on if name != node)
                for number in [number for number, (_, nodes) in job.steps.items() if node in nodes]:
                    self.step_ends(job, number)
            elif job.state == "RUNNING" and node in job.on:
                for part in self.parts(job):  # with one component, Slurm requeues the whole heterogeneous job
                    if part.state == "RUNNING":
                        self._stop(part, "NODE_FAIL", requeues=job.requeue and job.batch)
            elif waited_only_for(node, job, self.nodes):
                self._completed(job, set_down=self.nodes[node].down)
        self.schedule()

    def begin_step(self, job: SimulatedJob, name: str, nodes: Sequence[str]) -> None:
        """srun in the job's script."""
        job.steps[job.next_step] = (name, tuple(nodes))
        job.next_step += 1

    def step_ends(self, job: SimulatedJob, number: int) -> None:
        self.step_over(job, job.steps.pop(number)[0])

    def to_queue(self, job: SimulatedJob, *, held: bool) -> None:
        """Requeue a job from whatever state; its nodes are cleaned first."""
        if held:
            job.held, job.held_by, job.requeue_held = True, job.held_by or "JobHeldUser", True
        if job.has_nodes or job.completing:
            self._stop(job, "PENDING", requeues=True)
        else:
            self.back_to_queue(job, held=job.held)

    def back_to_queue(self, job: SimulatedJob, *, held: bool, renewed: bool = True) -> None:
        job.state, job.on, job.restarts = "PENDING", (), job.restarts + (not job.counted)
        job.completing = job.requeues = job.ghost = job.counted = False
        job.steps, job.next_step, job.exit_code, job.exit_signal = {}, 0, 0, 0
        job.started = job.ended = 0.0
        job.held, job.held_by = held, (job.held_by or "JobHeldUser") if held else ""
        if renewed:
            job.submitted, job.eligible = self.time_s(), self.time_s() + self.times.requeue_s

    def set_down(self, node: str) -> None:
        self.nodes[node].down = True
        self._node_fail(node)
