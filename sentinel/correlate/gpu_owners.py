"""Finds the job that owns a GPU on a node shared by several jobs, from the GPUs that Slurm gave to each in the prolog.

Evidence about a GPU concerns the job that holds it. A job whose GPUs are not known may hold any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.correlate.attempt_times import SLACK
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, JobView
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


def job_of(item: Evidence, cluster: ClusterView) -> JobView | None:
    """The running job that evidence of a node concerns: the holder of its GPU, else the largest job on the node."""
    node, gpu = item.where.node, item.where.gpu
    if node is None:
        return None
    jobs, held = cluster.jobs_on(node), cluster.node(node).gpus
    if gpu is not None:
        holders = [job for job in jobs if gpu in held.get((job.id, cluster.attempt_on(job)), ())]
        jobs = holders or [job for job in jobs if (job.id, cluster.attempt_on(job)) not in held]
    return max(jobs, key=lambda job: len(job.nodes), default=None)


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
