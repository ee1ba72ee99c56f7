"""How Slurm shows that Sentinel puts a job off: while it prepares a restart, the job waits for a start 30 days away."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.model.records import JobView

_BY = timedelta(days=30)
# After its requeue, by Slurm's clock: Sentinel defers by 30 days, and hardly anybody has a job start that far ahead.
OURS_FROM = timedelta(days=29)


def put_off_at(job: JobView) -> datetime | None:
    """When Sentinel would have given the job the start for which it waits, by Slurm's clock; None: it has none."""
    return job.eligible_at - _BY if job.eligible_at is not None else None


def is_put_off(job: JobView) -> bool:
    """Whether the waiting job has a start as far ahead of its requeue as Sentinel's is: a person may have given it, too."""
    if job.state != "pending" or job.held or job.restarts == 0 or None in (job.submitted_at, job.eligible_at):
        return False
    assert job.submitted_at is not None and job.eligible_at is not None
    return job.eligible_at - job.submitted_at >= OURS_FROM
