"""The scheduler of the simulated Slurm: which pending job starts now, on which nodes, and why the others wait.

The components of a heterogeneous job start together or not at all (slurm.schedmd.com/heterogeneous_jobs.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sentinel.simulate.slurm.records import SimulatedJob, SimulatedNode

if TYPE_CHECKING:
    from sentinel.simulate.slurm.cluster import SimulatedSlurm


def start_what_may_run(slurm: SimulatedSlurm) -> None:
    """First come, first served; a job that cannot start holds up nobody behind it."""
    _refill(slurm)
    pending = [
        job for job in slurm.jobs.values() if job.state == "PENDING"
    ]  # in the order in which they were submitted
    if not pending:
        return
    taken: set[str] | None = None
    for job in pending:
        if job.state != "PENDING" or not _is_ready(slurm, job):
            continue
        together = [part for part in slurm.parts(job) if not part.over and part.state != "RUNNING"]
        if not all(part is job or _is_ready(slurm, part) for part in together):
            continue
        if taken is None:
            taken = {name for other in slurm.jobs.values() if other.has_nodes for name in other.on}
        places: dict[int, list[str]] = {}
        for part in together:
            places[part.id] = _nodes_for(slurm, part, taken.union(*places.values()))
        if not all(places.values()):
            continue
        for part in together:
            taken.update(places[part.id])
            _start(slurm, part, places[part.id])
        _refill(slurm)


def _refill(slurm: SimulatedSlurm) -> None:
    """Flag REPLACE: idle nodes take the place of those of the reservation that are busy or out of service."""
    kept = slurm.kept
    if kept is None:
        return
    busy = {name for job in slurm.jobs.values() if job.has_nodes for name in job.on}
    idle = [name for name, node in slurm.nodes.items() if not (node.out or node.maintenance or name in busy)]
    still = [name for name in kept.nodes if name in idle]
    kept.nodes = tuple([*still, *(name for name in idle if name not in still)][: kept.count])


def _is_ready(slurm: SimulatedSlurm, job: SimulatedJob) -> bool:
    """Whether the job lacks nothing but nodes."""
    if job.completing or job.held or job.limit or job.eligible > slurm.time_s():
        return False
    if job.reservation and (slurm.kept is None or job.record.get("user_name") not in slurm.kept.users):
        return False
    return _dependencies_are_met(slurm, job)


def _start(slurm: SimulatedSlurm, job: SimulatedJob, chosen: list[str]) -> None:
    job.on = tuple(sorted(chosen, key=list(slurm.nodes).index))
    job.state, job.started, job.ended = "RUNNING", slurm.time_s(), 0.0
    job.ghost = any(not slurm.nodes[name].alive for name in job.on)
    if job.ghost:
        slurm.launch_fails_later(job)
    slurm.started(job)


def _nodes_for(slurm: SimulatedSlurm, job: SimulatedJob, taken: set[str]) -> list[str]:
    """Empty if it must wait; ``job.bad`` says that no node that returns would change it."""
    members = members_of(slurm, job)
    members &= set(job.feature or members)
    short = 0 < len(job.required) < job.most
    if short or len(members - set(job.excluded)) < job.nodes or not set(job.required) <= members - set(job.excluded):
        job.bad = True
    if job.bad:
        return []
    free = [
        name
        for name, node in slurm.nodes.items()
        if name in members
        and not (
            node.out or name in taken or name in job.excluded or _is_kept(node, job) or _is_spare(slurm, name, job)
        )
    ]
    if len(free) < job.nodes or not set(job.required) <= set(free):
        return []
    chosen = list(job.required)
    return [*chosen, *[name for name in free if name not in chosen][: max(0, job.nodes - len(chosen))]]


def _is_kept(node: SimulatedNode, job: SimulatedJob) -> bool:
    """Whether a reservation keeps the job away from the node."""
    return node.maintenance or node.reserved_for not in ("", job.record.get("user_name"))


def _is_spare(slurm: SimulatedSlurm, node: str, job: SimulatedJob) -> bool:
    """Whether the node is kept for jobs that ask for its reservation and may."""
    kept = slurm.kept
    return kept is not None and node in kept.nodes and job.reservation != kept.name


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
