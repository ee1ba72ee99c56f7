"""How Slurm shows that Sentinel puts a job off: while it prepares a restart, the job waits for a start 30 days away."""

from __future__ import annotations

from datetime import timedelta

from sentinel.model.records import JobView

# After its requeue, by Slurm's clock: Sentinel defers by 30 days, and hardly anybody has a job start that far ahead.
OURS_FROM = timedelta(days=29)


def is_put_off(job: JobView) -> bool:
    """Whether the waiting job has such a start: nobody but Sentinel lets it go before."""
    if job.state != "pending" or job.held or job.restarts == 0 or None in (job.submitted_at, job.eligible_at):
        return False
    assert job.submitted_at is not None and job.eligible_at is not None
    return job.eligible_at - job.submitted_at >= OURS_FROM
