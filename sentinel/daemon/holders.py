"""Whose GPU it is: on a node that several jobs share, each has its own, as the node's prolog was told.

News of a GPU is news of the job that holds it. Where a job's GPUs are not known it may hold any.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sentinel.daemon.live import Live
from sentinel.model import Evidence, JobView

_SLACK = timedelta(seconds=2)  # Slurm's times are whole seconds, and clocks of nodes are not the same


def held_gpus(jobs: object) -> dict[tuple[int, int], frozenset[int]]:
    """GPUs by job and attempt, from what a node says it runs; without those whose GPUs it does not know."""
    found = {}
    for item in jobs if isinstance(jobs, list) else ():
        if not isinstance(item, Mapping) or not isinstance(item.get("gpus"), str):
            continue
        job, attempt, gpus = item.get("job"), item.get("attempt"), item["gpus"].split(",")
        if isinstance(job, int) and isinstance(attempt, int) and all(word.strip().isdigit() for word in gpus):
            found[job, attempt] = frozenset(int(word) for word in gpus)
    return found


def job_of(item: Evidence, live: Live) -> JobView | None:
    """The running job that news of a node is about: who holds its GPU; else, of several, the largest."""
    node, gpu = item.where.node, item.where.gpu
    if node is None:
        return None
    jobs, held = live.jobs_on(node), live.node(node).gpus
    if gpu is not None:
        holders = [job for job in jobs if gpu in held.get((job.id, job.restarts), ())]
        jobs = holders or [job for job in jobs if (job.id, job.restarts) not in held]
    return max(jobs, key=lambda job: len(job.nodes), default=None)


def of_another_job(job: int | None, item: Evidence, live: Live) -> bool:
    """Whether ``item`` is news of a GPU that another job than ``job`` held when it happened."""
    if job is None or item.where.job is not None or item.where.node is None or item.where.gpu is None:
        return False
    held: Mapping[tuple[int, int], Any] = live.node(item.where.node).gpus
    holders = [
        view for view in live.jobs_on(item.where.node) if item.where.gpu in held.get((view.id, view.restarts), ())
    ]
    return bool(holders) and all(
        view.id != job and view.started_at is not None and view.started_at <= item.at + _SLACK for view in holders
    )
