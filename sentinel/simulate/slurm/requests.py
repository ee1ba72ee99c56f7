"""The single requests to the simulated slurmctld; each says no where the real one says no."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sentinel.adapters.slurm.parse import ENDED, Record
from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.adapters.slurm.writer import AT_ONCE, DEFERRED
from sentinel.model.records import NodeView

if TYPE_CHECKING:
    from sentinel.simulate.slurm.cluster import SimulatedSlurm
    from sentinel.simulate.slurm.records import SimulatedJob

_FAR_S = 30 * 86_400  # what the writer's DEFERRED comes to
_AT_WORK = frozenset({"RUNNING", "SUSPENDED", "STOPPED"})
_OVER = frozenset(state.upper() for state in ENDED)


class Requests:
    """``Verbs`` of the real writer."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self._slurm = slurm
        self.ahead_s = 0.0  # the clock of the host on which scontrol runs, minus slurmctld's

    async def node(self, name: str) -> NodeView | None:
        return await self._slurm.node(name)

    async def job_record(self, job: int) -> Record | None:
        self._slurm.check()
        self._slurm.catch_up()
        return self._slurm.job_json(self._slurm.jobs[job]) if job in self._slurm.jobs else None

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        self._called("set_node", node, state, reason or "")
        if node not in self._slurm.nodes:
            raise SlurmSaidNo(Answer.NO_NODE, "Invalid node name specified")
        this = self._slurm.nodes[node]
        if state == "RESUME":
            if not (this.down or this.drained):
                raise SlurmSaidNo(Answer.NODE_STATE, "Invalid node state specified")
            self._slurm.person_resumes(node)
            return
        self._may_be_refused("nodes")
        this.reason = reason or this.reason
        if state == "DRAIN":
            this.drained = True
        else:
            assert state == "DOWN", state
            self._slurm.set_down(node)

    async def requeue_hold(self, job: str, *, incomplete: bool) -> None:
        this = self._leader(self._job("requeue_hold", job))
        parts = [part for part in self._slurm.parts(this) if part.state in _AT_WORK or not incomplete]
        if not parts:
            return  # scontrol requeuehold Incomplete says no no
        if this.state == "PENDING":
            raise SlurmSaidNo(Answer.PENDING, "Job is pending execution")
        if not this.batch:
            raise SlurmSaidNo(Answer.NOT_BATCH, "Only batch jobs are accepted or processed")
        if not this.requeue:
            raise SlurmSaidNo(Answer.DISABLED, "Requested operation is presently disabled")
        for part in parts:
            if part.state == "PENDING":  # back in the queue already, or on its way there
                part.held, part.held_by = True, part.held_by or "JobHeldUser"
            else:
                self._slurm.to_queue(part, held=True)
        self._slurm.schedule()

    async def hold(self, job: str) -> None:
        this = self._job("hold", job)
        if this.state != "PENDING":
            raise SlurmSaidNo(Answer.NOT_PENDING, "Job is no longer pending execution")
        this.hold(self._slurm.time_s())

    async def release(self, job: str) -> None:
        this = self._job("release", job)
        if this.state in _OVER:
            raise SlurmSaidNo(Answer.FINISHED, "Job has already finished")
        if this.held and this.state == "PENDING":
            this.eligible = max(this.eligible, self._slurm.time_s())
        this.held, this.held_by, this.special, this.requeue_held = False, "", False, False
        self._slurm.schedule()

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        this = self._job("set_job", job, *(f"{key}={value}" for key, value in fields.items()))
        if this.state in _OVER:
            raise SlurmSaidNo(Answer.FINISHED, "Job has already finished")
        if this.state != "PENDING" and fields.keys() & {"ExcNodeList", "ReqNodeList", "StartTime", "NumNodes"}:
            raise SlurmSaidNo(Answer.NOT_PENDING, "Job is no longer pending execution")
        for key in ("ExcNodeList", "ReqNodeList"):
            names = tuple(name for name in fields.get(key, "").split(",") if name)
            if set(names) - set(self._slurm.nodes):
                raise SlurmSaidNo(Answer.NO_NODE, "Invalid node name specified")
            if key in fields:
                setattr(this, "excluded" if key == "ExcNodeList" else "required", names)
                this.bad = False  # looked at anew
        if "NodeList" in fields:
            self._shrink(this, fields["NodeList"].split(","))
        if "ReservationName" in fields:
            kept, asked = self._slurm.kept, fields["ReservationName"]
            if asked and (kept is None or asked != kept.name or this.record["user_name"] not in kept.users):
                raise SlurmSaidNo(Answer.OTHER, "Access denied to requested reservation")
            this.reservation = asked
        if "NumNodes" in fields:
            least, _, most = fields["NumNodes"].partition("-")
            this.nodes, this.bad = int(least), False
            this.most = int(most or least) if this.most else 0
        this.admin_comment = fields.get("AdminComment", this.admin_comment)
        if "Requeue" in fields:
            this.requeue = fields["Requeue"] == "1"
        now_s = self._slurm.time_s()
        if fields.get("StartTime") == AT_ONCE:
            this.eligible = max(now_s, math.floor(now_s + self.ahead_s))  # scontrol sends whole seconds
        elif fields.get("StartTime") == DEFERRED:
            this.eligible = now_s + self.ahead_s + _FAR_S
        self._slurm.schedule()

    async def set_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        self._called("set_reservation", name, *(f"{key}={value}" for key, value in fields.items()))
        kept = self._slurm.kept
        if kept is None or kept.name != name:
            raise SlurmSaidNo(Answer.OTHER, "Requested reservation is invalid")
        if user := fields.get("Users+"):
            kept.users |= {user}
        if user := fields.get("Users-"):
            kept.users -= {user}
        self._slurm.schedule()

    def _shrink(self, job: SimulatedJob, kept: list[str]) -> None:
        """A running job gives nodes back; not its first one, nor one on which a step runs."""
        gone = {*job.on} - {*kept}
        if job.state != "RUNNING":
            raise SlurmSaidNo(Answer.FINISHED, "Job has already finished")
        if not {*kept} <= {*job.on} or job.on[0] in gone or any(gone & {*nodes} for _, nodes in job.steps.values()):
            raise SlurmSaidNo(Answer.OTHER, "Job update not available right now")
        job.on = tuple(name for name in job.on if name in kept)

    async def end_step(self, job: str, step: int) -> None:
        this = self._job("end_step", job, f"{step}")
        if this.state != "RUNNING":
            raise SlurmSaidNo(Answer.NO_JOB, "Invalid job id specified")
        if step in this.steps:
            self._slurm.step_ends(this, step)
        self._slurm.schedule()

    async def notify(self, job: str, text: str) -> None:
        this = self._job("notify", job, text)
        if this.state != "RUNNING":
            raise SlurmSaidNo(Answer.FINISHED, "Job/step already completing or completed")
        this.printed.append(text)

    def _called(self, *call: str) -> None:
        self._slurm.check()
        self._slurm.catch_up()
        self._slurm.calls.append(call)

    def _may_be_refused(self, of: str) -> None:
        if self._slurm.time_s() < self._slurm.refused_until_s.get(of, 0.0):
            raise SlurmSaidNo(Answer.OTHER, "Unspecified error")

    def _job(self, verb: str, spec: str, *data: str) -> SimulatedJob:
        self._called(verb, spec, *data)
        self._may_be_refused("jobs")
        siblings = [job for job in self._slurm.jobs.values() if f"{job.record.get('array_job_id')}" == spec]
        assert verb == "notify" or len(siblings) < 2, f"{verb} {spec}: that is the whole array, not its last task"
        found = self._slurm.find(spec)
        if found is not None:
            return found
        raise SlurmSaidNo(Answer.NO_JOB, "Invalid job id specified")

    def _leader(self, job: SimulatedJob) -> SimulatedJob:
        """A requeue of a heterogeneous job's component acts on the leader, and so on all."""
        leader = job.record.get("het_job_id")
        return self._slurm.jobs.get(leader, job) if isinstance(leader, int) else job
