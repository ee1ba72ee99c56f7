"""Finds the job that owns a GPU on a node shared by several jobs, from the GPUs that Slurm gave to each in the prolog.

Evidence about a GPU concerns the job that holds it, and no other. A job whose GPUs are not known may hold any; where several
may hold the GPU, or it is not known which GPU it is, none of them is taken for its holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sentinel.correlate.attempt_times import SLACK, ran, ran_at, was_there
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, JobView, Kind
from sentinel.text import whole_number


def held_gpus(jobs: object) -> dict[tuple[int, int], frozenset[int]]:
    """GPU indices by job and attempt, from a node's list of running jobs; jobs without known GPUs are skipped."""
    found = {}
    for item in jobs if isinstance(jobs, list) else ():
        if not isinstance(item, Mapping) or not isinstance(item.get("gpus"), str):
            continue
        job, attempt = item.get("job"), item.get("attempt")
        gpus = [whole_number(word.strip()) for word in item["gpus"].split(",")]
        if isinstance(job, int) and isinstance(attempt, int) and None not in gpus:
            found[job, attempt] = frozenset(gpu for gpu in gpus if gpu is not None)
    return found


def is_of_one_gpu(item: Evidence) -> bool:
    """Whether evidence concerns one GPU of its node, known or not, rather than the node."""
    return item.where.gpu is not None or item.kind == Kind.XID or item.data.get("pci") is not None


def holds(job: JobView, item: Evidence, cluster: ClusterView) -> bool | None:
    """Whether the GPU that the evidence names is one that Slurm gave the job there; None: not known."""
    node, gpu = item.where.node, item.where.gpu
    held = cluster.node(node).gpus.get((job.id, cluster.attempt_on(job))) if node is not None else None
    return gpu in held if held is not None and gpu is not None else None


def job_of(item: Evidence, cluster: ClusterView) -> JobView | None:
    """The running job that evidence of a node concerns: of a GPU the job that holds it, else the largest job on the node.

    None also where several jobs may hold that GPU, and where those on the node began after it, as what a machine says may be
    heard hours later: the one that it harms shows so itself.
    """
    if item.where.node is None:
        return None
    jobs = [job for job in cluster.jobs_on(item.where.node) if was_there(job, item, cluster)]
    if is_of_one_gpu(item):
        held = [(job, holds(job, item, cluster)) for job in jobs]
        jobs = [job for job, own in held if own] or [job for job, own in held if own is None]
        if len(jobs) > 1 and not any(own for _, own in held):
            return None
    return max(jobs, key=lambda job: len(job.nodes), default=None)


def is_spared(job: JobView, item: Evidence, cluster: ClusterView) -> bool:
    """Whether a broken GPU is none of the job's: Slurm gave it others, or it is not known which job of several had it."""
    own = holds(job, item, cluster)
    if own is not None:
        return not own
    return job.started_at is not None and any(
        _was_beside(job.started_at, key, item, cluster)
        for key, seen in cluster.attempts.items()
        if key[0] != job.id and item.where.node in seen.nodes
    )


def _was_beside(began: datetime, key: tuple[int, int], item: Evidence, cluster: ClusterView) -> bool:
    """Whether the attempt ran when it happened, and beside a job that began then; not where that one followed on it."""
    seen = cluster.attempts[key]
    ended = seen.view.ended_at
    together = ended is not None and began + SLACK <= ended if seen.ended else True
    return together and ran_at(item.at, ran(*key, None, cluster))


def of_another_job(job: int | None, item: Evidence, cluster: ClusterView) -> bool:
    """Whether ``item`` concerns a GPU that a job other than ``job`` held when it happened."""
    if job is None or item.where.job is not None or item.where.node is None or item.where.gpu is None:
        return False
    held: Mapping[tuple[int, int], Any] = cluster.node(item.where.node).gpus
    holders = [
        view
        for view in cluster.jobs_on(item.where.node)
        if item.where.gpu in held.get((view.id, cluster.attempt_on(view)), ())
    ]
    return bool(holders) and all(
        view.id != job and view.started_at is not None and view.started_at <= item.at + SLACK for view in holders
    )
