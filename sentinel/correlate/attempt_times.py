"""When an attempt of a job ran, and which one ran at a time: what Slurm says of a job is the next attempt's from the moment
of a requeue."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import JobView

Ran = tuple[datetime | None, datetime | None]  # began (None: not known), ended (None: not yet)
SLACK = timedelta(seconds=2)  # Slurm's times are whole seconds, and clocks of nodes are not the same


def ran(job: int | None, attempt: int | None, view: JobView | None, cluster: ClusterView) -> Ran:
    """When this attempt ran. ``view``: what the newest snapshot shows of the job."""
    seen = cluster.attempts.get((job, attempt)) if job is not None and attempt is not None else None
    if seen is not None and seen.view.started_at is not None:
        return seen.view.started_at, seen.view.ended_at
    return (view.started_at, view.ended_at) if view is not None and view.restarts == attempt else (None, None)


def ran_at(at: datetime, when: Ran) -> bool:
    began, ended = when
    if began is None or at < began - SLACK:
        return False
    return ended is None or at <= ended + SLACK


def attempt_at(job: JobView, at: datetime, cluster: ClusterView) -> int:
    """The attempt of the job that ran at this time; where that is not known the one that holds its nodes, or held them."""
    known = sorted((attempt for number, attempt in cluster.attempts if number == job.id), reverse=True)
    those = (attempt for attempt in known if ran_at(at, ran(job.id, attempt, job, cluster)))
    return next(those, cluster.attempt_on(job))
