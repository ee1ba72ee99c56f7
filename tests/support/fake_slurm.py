"""A Slurm in memory: both ports, held to the same contract suite as the real one.

It sits under the real writer and the real parser (records have the shape of Slurm's JSON), so what a room or root sees
is what it would see over a cluster. Time is the caller's: ``clock`` moves only when told to.

    slurm = FakeSlurm(nodes=4)
    job = slurm.submit(nodes=2, comment="...")
    slurm.lose("n1"); slurm.end(job, exit_code=3); slurm.answers = False
    await slurm.fleet(); await slurm.drain("n1", "sentinel: ...")
    slurm.calls      # every write that reached "slurmctld", in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sentinel.adapters.slurm_parse import ENDED, Record, job_view, node_view
from sentinel.adapters.slurm_process import Answer, SlurmSaidNo
from sentinel.adapters.slurm_writer import DEFERRED, Writer
from sentinel.errors import Denied, Timeout
from sentinel.model import Fleet, JobView, NodeView

REQUEUE_WAIT_S = 121  # Slurm's own wait before a requeued job may start again
FOREVER_PRIORITY = 4_294_901_760


class FakeClock:
    """``Clock`` whose time is set by hand."""

    def __init__(self, at: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


@dataclass
class FakeNode:
    name: str
    port: int
    gpus: int = 8
    alive: bool = True
    down: bool = False
    drained: bool = False
    silent: bool = False  # Slurm has noticed that it does not answer
    reason: str = ""


@dataclass
class FakeJob:
    id: int
    nodes: int
    submitted: float
    record: dict[str, Any] = field(default_factory=dict)  # what the submitter chose
    state: str = "PENDING"
    held: bool = False
    held_by: str = ""
    on: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    requeue: bool = True
    batch: bool = True
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    admin_comment: str = ""
    eligible: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    printed: list[str] = field(default_factory=list)


class FakeSlurm(Writer):
    """``SlurmReader`` and ``SlurmWriter``."""

    def __init__(self, nodes: int | Sequence[str] = 4, *, gpus: int = 8, clock: FakeClock | None = None) -> None:
        super().__init__(_FakeVerbs(self), now=self._time, sleep=self._no_wait)
        names = [f"n{index}" for index in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        self.clock = clock or FakeClock()
        self.nodes = {name: FakeNode(name, port=17_001 + index, gpus=gpus) for index, name in enumerate(names)}
        self.jobs: dict[int, FakeJob] = {}
        self.calls: list[tuple[str, ...]] = []
        self.answers = True  # False: slurmctld is frozen
        self.denies = False  # True: munge trouble
        self.waited_s = 0.0  # what the writer would have waited before releases
        self.release_name = "22.05.8"

    # -- what happens on the cluster ------------------------------------------------------------------------------------

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
        stdout: str = "",
        folder: str = "/home/alice",
        partition: str = "train",
        array: tuple[int, int] | None = None,
    ) -> int:
        """sbatch. ``array``: (array job id, task)."""
        job = FakeJob(max(self.jobs, default=100) + 1, nodes, self._time(), requeue=requeue, batch=batch)
        job.record = {
            "name": name,
            "comment": comment,
            "user_name": user,
            "user_id": uid,
            "partition": partition,
            "standard_output": stdout,
            "current_working_directory": folder,
        }
        if array is not None:
            job.record |= {"array_job_id": array[0], "array_task_id": array[1]}
        job.excluded, job.required = tuple(excluded), tuple(required)
        job.held, job.held_by = held, "JobHeldUser" if held else ""
        job.eligible = self._time()
        self.jobs[job.id] = job
        self.schedule()
        return job.id

    def end(self, job: int, *, exit_code: int = 0, exit_signal: int = 0, state: str = "") -> None:
        """The job's script ends by itself."""
        this = self.jobs[job]
        assert this.state == "RUNNING", this.state
        this.exit_code, this.exit_signal = exit_code, exit_signal
        self._stop(this, state or ("FAILED" if exit_code or exit_signal else "COMPLETED"))
        self.schedule()

    def cancel(self, job: int) -> None:
        self._stop(self.jobs[job], "CANCELLED")
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

    def person_drains(self, node: str, reason: str) -> None:
        self.nodes[node].drained, self.nodes[node].reason = True, reason

    def schedule(self) -> None:
        """Start what may run now."""
        for job in sorted(self.jobs.values(), key=lambda job: job.id):
            if job.state != "PENDING" or job.held or job.eligible > self._time():
                continue
            taken = {name for other in self.jobs.values() if other.state == "RUNNING" for name in other.on}
            free = [
                name
                for name, node in self.nodes.items()
                if not (node.down or node.drained or name in taken or name in job.excluded)
            ]
            chosen = list(job.required) if set(job.required) <= set(free) else None
            if chosen is None or len(free) < job.nodes:
                continue
            chosen += [name for name in free if name not in chosen][: max(0, job.nodes - len(chosen))]
            job.on = tuple(sorted(chosen, key=list(self.nodes).index))
            job.state, job.started, job.ended = "RUNNING", self._time(), 0.0

    # -- SlurmReader ----------------------------------------------------------------------------------------------------

    async def fleet(self) -> Fleet:
        self.check()
        self.schedule()
        nodes = [node_view(self.node_record(name)) for name in self.nodes]
        jobs = [job_view(self.job_json(job)) for job in self.jobs.values()]
        return Fleet(at=self.clock.now(), nodes={node.name: node for node in nodes}, jobs={job.id: job for job in jobs})

    async def node(self, name: str) -> NodeView | None:
        self.check()
        return node_view(self.node_record(name)) if name in self.nodes else None

    async def job(self, job: int) -> JobView | None:
        self.check()
        self.schedule()
        return job_view(self.job_json(self.jobs[job])) if job in self.jobs else None

    async def version(self) -> str:
        self.check()
        return self.release_name

    # -- inside -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if not self.answers:
            raise Timeout("slurmctld did not answer within its deadline")
        if self.denies:
            raise Denied("Slurm refused us: Protocol authentication error")

    def node_record(self, name: str) -> Record:
        node = self.nodes[name]
        busy = any(job.state == "RUNNING" and name in job.on for job in self.jobs.values())
        flags = [
            flag
            for flag, there in (("DRAIN", node.drained), ("NOT_RESPONDING", node.silent and not node.down))
            if there
        ]
        return {
            "name": name,
            "state": "down" if node.down else "mixed" if busy else "idle",
            "state_flags": flags,
            "reason": node.reason,
            "partitions": ["train"],
            "address": "127.0.0.1",
            "port": node.port,
            "gres": f"gpu:{node.gpus}",
        }

    def job_json(self, job: FakeJob) -> dict[str, Any]:
        pending = job.state == "PENDING"
        waiting = "BeginTime" if pending and job.eligible > self._time() else "None"
        return {
            **job.record,
            "job_id": job.id,
            "job_state": job.state,
            "state_reason": job.held_by if job.held else waiting,
            "priority": 0 if job.held else FOREVER_PRIORITY,
            "nodes": ",".join(job.on),
            "batch_host": job.on[0] if job.on else "",
            "batch_flag": job.batch,
            "restart_cnt": job.restarts,
            "requeue": job.requeue,
            "admin_comment": job.admin_comment,
            "excluded_nodes": ",".join(job.excluded),
            "required_nodes": ",".join(job.required),
            "node_count": len(job.on) or job.nodes,
            "exit_code": (job.exit_code << 8) | job.exit_signal,
            "submit_time": int(job.submitted),
            "eligible_time": int(job.eligible),
            "start_time": int(job.started),
            "end_time": int(job.ended),
        }

    def _time(self) -> float:
        return self.clock.now().timestamp()

    async def _no_wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def _stop(self, job: FakeJob, state: str) -> None:
        job.state, job.ended = state, self._time()

    def _node_fail(self, node: str) -> None:
        for job in self.jobs.values():
            if job.state == "RUNNING" and node in job.on:
                self._stop(job, "NODE_FAIL")
                if job.requeue and job.batch:
                    self.back_to_queue(job, held=False)
        self.schedule()

    def back_to_queue(self, job: FakeJob, *, held: bool) -> None:
        job.state, job.on, job.restarts = "PENDING", (), job.restarts + 1
        job.exit_code = job.exit_signal = 0
        job.started = job.ended = 0.0
        job.held, job.held_by = held, "JobHeldUser" if held else ""
        job.eligible = self._time() + REQUEUE_WAIT_S

    def set_down(self, node: str) -> None:
        self.nodes[node].down = True
        self._node_fail(node)


class _FakeVerbs:
    """The single requests; says no where slurmctld says no."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm = slurm

    async def node(self, name: str) -> NodeView | None:
        return await self._slurm.node(name)

    async def job_record(self, job: int) -> Record | None:
        self._slurm.check()
        self._slurm.schedule()
        return self._slurm.job_json(self._slurm.jobs[job]) if job in self._slurm.jobs else None

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        self._called("set_node", node, state, reason or "")
        if node not in self._slurm.nodes:
            raise SlurmSaidNo(Answer.NO_NODE, "Invalid node name specified")
        this = self._slurm.nodes[node]
        if state == "RESUME":
            if not (this.down or this.drained):
                raise SlurmSaidNo(Answer.NODE_STATE, "Invalid node state specified")
            this.down = this.drained = False
            this.reason = ""
            if not this.alive:
                self._slurm.notice(node)
            self._slurm.schedule()
            return
        this.reason = reason or this.reason
        if state == "DRAIN":
            this.drained = True
        else:
            assert state == "DOWN", state
            self._slurm.set_down(node)

    async def requeue_hold(self, job: str) -> None:
        this = self._job("requeue_hold", job)
        if this.state == "PENDING":
            raise SlurmSaidNo(Answer.PENDING, "Job is pending execution")
        if not this.batch:
            raise SlurmSaidNo(Answer.NOT_BATCH, "Only batch jobs are accepted or processed")
        if not this.requeue:
            raise SlurmSaidNo(Answer.DISABLED, "Requested operation is presently disabled")
        self._slurm.back_to_queue(this, held=True)
        self._slurm.schedule()

    async def hold(self, job: str) -> None:
        this = self._job("hold", job)
        if this.state != "PENDING":
            raise SlurmSaidNo(Answer.NOT_PENDING, "Job is no longer pending execution")
        this.held, this.held_by = True, "JobHeldUser"

    async def release(self, job: str) -> None:
        this = self._job("release", job)
        if this.state in {state.upper() for state in ENDED}:
            raise SlurmSaidNo(Answer.FINISHED, "Job has already finished")
        if this.held and this.state == "PENDING":
            this.eligible = max(this.eligible, self._slurm.clock.now().timestamp())
        this.held, this.held_by = False, ""
        self._slurm.schedule()

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        this = self._job("set_job", job, *(f"{key}={value}" for key, value in fields.items()))
        if this.state in {state.upper() for state in ENDED}:
            raise SlurmSaidNo(Answer.FINISHED, "Job has already finished")
        if this.state != "PENDING" and fields.keys() & {"ExcNodeList", "ReqNodeList", "StartTime"}:
            raise SlurmSaidNo(Answer.NOT_PENDING, "Job is no longer pending execution")
        for key in ("ExcNodeList", "ReqNodeList"):
            names = tuple(name for name in fields.get(key, "").split(",") if name)
            if set(names) - set(self._slurm.nodes):
                raise SlurmSaidNo(Answer.NO_NODE, "Invalid node name specified")
            if key in fields:
                setattr(this, "excluded" if key == "ExcNodeList" else "required", names)
        this.admin_comment = fields.get("AdminComment", this.admin_comment)
        if "Requeue" in fields:
            this.requeue = fields["Requeue"] == "1"
        if fields.get("StartTime") == "now":
            this.eligible = self._slurm.clock.now().timestamp()
        elif fields.get("StartTime") == DEFERRED:
            this.eligible = self._slurm.clock.now().timestamp() + 30 * 86_400
        self._slurm.schedule()

    async def notify(self, job: str, text: str) -> None:
        this = self._job("notify", job, text)
        if this.state != "RUNNING":
            raise SlurmSaidNo(Answer.FINISHED, "Job/step already completing or completed")
        this.printed.append(text)

    def _called(self, *call: str) -> None:
        self._slurm.check()
        self._slurm.calls.append(call)

    def _job(self, verb: str, spec: str, *data: str) -> FakeJob:
        self._called(verb, spec, *data)
        siblings = [job for job in self._slurm.jobs.values() if f"{job.record.get('array_job_id')}" == spec]
        assert verb == "notify" or len(siblings) < 2, f"{verb} {spec}: that is the whole array, not its last task"
        for job in self._slurm.jobs.values():
            array, task = job.record.get("array_job_id"), job.record.get("array_task_id")
            if spec in {f"{job.id}", f"{array}_{task}"}:
                return job
        raise SlurmSaidNo(Answer.NO_JOB, "Invalid job id specified")
