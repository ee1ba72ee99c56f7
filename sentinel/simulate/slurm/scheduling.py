"""The scheduler of the simulated Slurm: which pending job starts now, on which nodes, and why the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sentinel.simulate.slurm.records import SimulatedJob

if TYPE_CHECKING:
    from sentinel.simulate.slurm.cluster import SimulatedSlurm


def start_what_may_run(slurm: SimulatedSlurm) -> None:
    """First come, first served; a job that cannot start holds up nobody behind it."""
    taken: set[str] | None = None
    for job in sorted(slurm.jobs.values(), key=lambda job: job.id):
        if job.state != "PENDING" or job.completing or job.held or job.eligible > slurm.time_s():
            continue
        if not _dependencies_are_met(slurm, job):
            continue
        if taken is None:
            taken = {name for other in slurm.jobs.values() if other.has_nodes for name in other.on}
        chosen = _nodes_for(slurm, job, taken)
        if not chosen:
            continue
        job.on = tuple(sorted(chosen, key=list(slurm.nodes).index))
        taken.update(job.on)
        job.state, job.started, job.ended = "RUNNING", slurm.time_s(), 0.0
        job.ghost = any(not slurm.nodes[name].alive for name in job.on)
        slurm.started(job)


def _nodes_for(slurm: SimulatedSlurm, job: SimulatedJob, taken: set[str]) -> list[str]:
    """Empty if it must wait; ``job.bad`` says that no node that returns would change it."""
    members = members_of(slurm, job)
    if len(members - set(job.excluded)) < job.nodes or not set(job.required) <= members:
        job.bad = True
    if job.bad:
        return []
    free = [
        name
        for name, node in slurm.nodes.items()
        if name in members and not (node.out or name in taken or name in job.excluded)
    ]
    if len(free) < job.nodes or not set(job.required) <= set(free):
        return []
    chosen = list(job.required)
    return [*chosen, *[name for name in free if name not in chosen][: max(0, job.nodes - len(chosen))]]


def members_of(slurm: SimulatedSlurm, job: SimulatedJob) -> set[str]:
    """Nodes of the job's partition; a partition that no node names is all of them."""
    partition = job.record.get("partition")
    return {name for name, node in slurm.nodes.items() if partition in node.partitions} or set(slurm.nodes)


def _dependencies_are_met(slurm: SimulatedSlurm, job: SimulatedJob) -> bool:
    """Whether what the job depends on has come true. A failure is final, whatever is requeued later."""
    if job.after_ok is None:
        return True
    other = slurm.jobs.get(job.after_ok)
    if other is not None and other.over and not other.completing and other.state != "COMPLETED":
        job.never = True
    if not job.never and (other is None or (other.state == "COMPLETED" and not other.completing)):
        job.after_ok = None
        return True
    return False
