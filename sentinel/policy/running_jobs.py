"""Decides whether a running job is stopped for what broke, or left to go on.

A job is stopped where a sign convicts a node by itself, surely enough to take it out, where the driver has reported an error
that ends what uses the GPU (an Xid of memory, NVLink, the bus or the firmware), or where the job itself shows that it makes
no further steps: it hangs, has ended, or trains on bad numbers. Everything else may pass (a lockup of seconds, a port
that comes back, a disk that answers again), also where two such signs agree and drain the node: Slurm's drain lets the job
finish there. A job that it does harm hangs or ends, which is judged together with it.
"""

from __future__ import annotations

from sentinel.model.records import Cause, Incident, JobView, Kind, Scalar, Verdict
from sentinel.policy.drains import sure_enough
from sentinel.policy.situation import SILENCE, Situation, from_silence

_NOT_FAILED = frozenset(
    {"running", "suspended", "completing", "completed"}
)  # Slurm's states of jobs, as far as these tell

_BY_XID = frozenset(
    {Cause.GPU_MEMORY_ECC, Cause.GPU_NVLINK, Cause.GPU_FALLEN_OFF_BUS, Cause.GPU_GSP_OR_DRIVER}
)  # the driver resets or removes the channels of what used the GPU, whatever the job prints meanwhile


def may_go_on(job: JobView, verdict: Verdict, incident: Incident, situation: Situation, act_confidence: float) -> str:
    """Why the job is not stopped: nothing shows that it makes no further steps, nor convicts a node alone. Empty if it is.

    Whether it makes steps need not be known: what a sign of one node did to a job whose steps nobody can read is not known
    either. One that has ended by now, long after the sign or well, did not end by it: its own end tells.
    """
    stopped = any(item.kind in (Kind.JOB_ENDED, Kind.STALL) for item in incident.evidence)
    stopped = stopped or not (job.state in _NOT_FAILED or situation.goes_on)
    if stopped or concerns_numbers(verdict, incident, act_confidence) or _convicts_surely(verdict, act_confidence):
        return ""
    if job.state == "completed":
        return f"Job {job.id} is done: what its nodes said has not stopped it."
    by_xid = verdict.cause in _BY_XID and any(item.kind == Kind.XID for item in incident.evidence)
    if by_xid and sure_enough(verdict, act_confidence):
        return ""
    return f"Job {job.id} is not stopped: what its nodes say may pass. If the job ends or hangs, that shows."


def _convicts(verdict: Verdict) -> bool:
    """Whether a sign convicts a node by itself."""
    return not {*verdict.drain} <= {*verdict.may_pass}


def _convicts_surely(verdict: Verdict, act_confidence: float) -> bool:
    return _convicts(verdict) and sure_enough(verdict, act_confidence)


def has_gone_on(job: JobView, verdict: Verdict, incident: Incident, situation: Situation) -> bool:
    """Whether a job that was to be stopped has overcome its trouble by itself."""
    if job.state != "running" or any(item.kind == Kind.JOB_ENDED for item in incident.evidence):
        return False
    if stands_still(verdict, incident):
        after = silent_after(incident)
        return after is not None and situation.last_step is not None and situation.last_step > after
    return bool(verdict.drain) and set(verdict.drain) <= situation.good_nodes and situation.goes_on


def stands_still(verdict: Verdict, incident: Incident) -> bool:
    """Whether a running job is to be stopped since it hangs: no sign convicts a node by itself."""
    kinds = {item.kind for item in incident.evidence}
    return Kind.STALL in kinds and Kind.JOB_ENDED not in kinds and not _convicts(verdict)


def ground_of_stop(verdict: Verdict, incident: Incident) -> dict[str, Scalar]:
    """What a step that stops the job says of its silence: the last step that it made, and whether nothing else is known."""
    silent: dict[str, Scalar] = {"silent_after": silent_after(incident)} if stands_still(verdict, incident) else {}
    return {**silent, **({"ground": SILENCE} if from_silence(verdict, incident) else {})}


def silent_after(incident: Incident) -> int | None:
    """The last step before the silence, -1 before the first: if the job makes another one, it is left alone."""
    steps = [item.data.get("step", "") for item in incident.evidence if item.kind == Kind.STALL]
    return max((-1 if step is None else step for step in steps if step is None or isinstance(step, int)), default=None)


def concerns_numbers(verdict: Verdict, incident: Incident, act_confidence: float) -> bool:
    """Whether this is about numbers that stay bad in a job that still runs, and that no node's conviction stops."""
    kinds = {item.kind for item in incident.evidence}
    runs = not kinds & {Kind.JOB_ENDED, Kind.STALL}
    return Kind.NUMBERS in kinds and runs and not _convicts_surely(verdict, act_confidence)
