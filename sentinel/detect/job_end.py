"""Makes evidence of the end of an attempt: of Slurm's record, or of what its nodes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.model.records import Evidence, JobView, Kind, Source, Where, stable_id
from sentinel.model.vocabulary import END_NOT_SEEN, PREEMPTED, PREEMPTED_AT

_SEEN_LATELY = timedelta(minutes=10)  # an end between two looks so close is known well enough to count the work


def failed_attempt(job: JobView) -> JobView:
    """The attempt that failed, of a job that Slurm has requeued and held for it (``JobView.exit_held``)."""
    return replace(job, state="failed", restarts=job.restarts - 1, ended_at=job.submitted_at, held=False)


def without_record(job: JobView, state: str, ended_at: datetime, looked_at: datetime | None, now: datetime) -> JobView:
    """The attempt as it is kept where it is over and Slurm keeps no record of it.

    Args:
        state: of one whose end was seen.
        ended_at: the best known time of its end.
        looked_at: when Slurm was looked at before ``now``; None: not known.
    """
    lately = looked_at is not None and now - looked_at <= _SEEN_LATELY
    return replace(job, state=state if lately else END_NOT_SEEN, ended_at=ended_at)


def job_ended(job: JobView, now: datetime, *, nodes: Sequence[str], maintenance: Sequence[str] = ()) -> Evidence:
    """Evidence that an attempt ended, with the same id from an event and from reconciliation.

    Args:
        nodes: those of the attempt, as far as known.
        maintenance: those of them on which people work, in a maintenance reservation.
    """
    return Evidence(
        id=_id(job, job.state),
        at=job.ended_at or now,
        seen_at=now,
        source=Source.SLURM,
        kind=Kind.JOB_ENDED,
        where=Where(job=job.id, attempt=job.restarts),
        text=f"job {job.id} ended as {job.state}, exit code {job.exit_code}, signal {job.exit_signal}"
        f"{', after Slurm preempted it' if _preempted(job) is not None else ''}",
        data={
            "state": job.state,
            "exit_code": job.exit_code,
            "signal": job.exit_signal,
            "nodes": ",".join(nodes),
            **({"exit_held": True} if job.exit_held else {}),
            **({PREEMPTED: True, PREEMPTED_AT: at.timestamp()} if (at := _preempted(job)) is not None else {}),
            **({"maintenance": ",".join(maintenance)} if maintenance else {}),
        },
    )


def _id(job: JobView, state: str) -> str:
    """Job ids come again: the time of submission, which Slurm writes anew at each requeue, tells whose end it is."""
    submitted = (int(job.submitted_at.timestamp()),) if job.submitted_at is not None else ()
    return stable_id("job_ended", job.id, job.restarts, state, *submitted)


def earlier_id(job: JobView) -> str:
    """The id that earlier releases gave to the evidence of this end."""
    return _id(replace(job, submitted_at=None), job.state)


def _preempted(job: JobView) -> datetime | None:
    """When Slurm preempted this attempt, and did not only suspend it for a while: what it did then it was asked to."""
    at = job.preempted_at
    if at is None or job.started_at is None or at < job.started_at:
        return None
    return at if job.suspended_at is None or job.suspended_at < at else None


def unrecorded_end(job: JobView, since: datetime, now: datetime, *, nodes: Sequence[str]) -> Evidence:
    """Evidence that an attempt ended which Slurm lists as running: no process of it is left on its nodes.

    Its id is that of Slurm's own record of a failure, which may come later. How it ended is not known.
    """
    return Evidence(
        id=_id(job, "failed"),
        at=since,
        seen_at=now,
        source=Source.SLURM,
        kind=Kind.JOB_ENDED,
        where=Where(job=job.id, attempt=job.restarts),
        text=f"job {job.id} has ended, and Slurm still lists it as running: no process of it is left on its nodes",
        data={"state": "failed", "exit_code": None, "signal": None, "nodes": ",".join(nodes), "recorded": False},
    )
