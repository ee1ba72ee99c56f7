"""Makes evidence of the end of an attempt: of Slurm's record, or of what its nodes say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.model.records import Evidence, Fleet, JobView, Kind, Source, Where, stable_id
from sentinel.model.vocabulary import END_NOT_SEEN, LIMIT_NEAR, PARTITION_GONE, PREEMPTED, PREEMPTED_AT

STATE_PREEMPTED = "preempted"  # of an attempt that Slurm preempted, as Slurm calls it, also where it requeued the job
STATE_REQUEUED = "requeued"  # by a person, or for what Slurm does not tell
# slurmstepd, in the job's log.
_SAYS_PREEMPTED = re.compile(r"\*\*\* (?:JOB|STEP) \S{1,40} ON .{1,80} DUE TO PREEMPTION")
_PARTITION_DOWN = "PartitionDown"  # Slurm's reason
_OUT = frozenset({"not_responding", "fail"})  # flags of a node
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


def partition_gone(job: JobView, nodes: Sequence[str], fleet: Fleet) -> str:
    """The partition for want of which Slurm ended the attempt, that was taken out or renamed; empty: none, or not known.

    Slurm calls that a node failure. From 26.05 on its reason tells them apart; before, that no node is in the partition any
    more. Where a node of the attempt may be out, that may be why.

    Args:
        nodes: those of the attempt, as far as known.
    """
    views = [fleet.nodes.get(name) for name in nodes]
    if job.state != "node_fail" or not job.partition or not views:
        return ""
    if any(view is None or view.state == "down" or not _OUT.isdisjoint(view.flags) for view in views):
        return ""
    unread = any(item.what == "node" for item in fleet.unread)
    named = {partition for view in fleet.nodes.values() for partition in view.partitions}
    empty = not unread and bool(named) and job.partition not in named
    return job.partition if job.reason == _PARTITION_DOWN or empty else ""


def job_ended(
    job: JobView, now: datetime, *, nodes: Sequence[str], maintenance: Sequence[str] = (), partition: str = ""
) -> Evidence:
    """Evidence that an attempt ended, with the same id from an event and from reconciliation.

    Args:
        nodes: those of the attempt, as far as known.
        maintenance: those of them on which people work, in a maintenance reservation.
        partition: the one for want of which Slurm ended it (``partition_gone``).
    """
    preempted_at, is_called_so = _preempted(job), job.state == STATE_PREEMPTED
    called_otherwise = preempted_at is not None and not is_called_so
    limit_neared = _ends_by_its_limit(job)
    return Evidence(
        id=_id(job, job.state),
        at=job.ended_at or now,
        seen_at=now,
        source=Source.SLURM,
        kind=Kind.JOB_ENDED,
        where=Where(job=job.id, attempt=job.restarts),
        text=f"job {job.id} ended as {job.state}, exit code {job.exit_code}, signal {job.exit_signal}"
        f"{', as its time limit neared' if limit_neared else ''}"
        f"{', after Slurm preempted it' if called_otherwise else ''}"
        f"{f', as partition {partition} is gone' if partition else ''}",
        data={
            "state": job.state,
            "exit_code": job.exit_code,
            "signal": job.exit_signal,
            "nodes": ",".join(nodes),
            **({"exit_held": True} if job.exit_held else {}),
            **({PREEMPTED: True} if preempted_at is not None or is_called_so else {}),
            **({PREEMPTED_AT: preempted_at.timestamp()} if preempted_at is not None else {}),
            **({"maintenance": ",".join(maintenance)} if maintenance else {}),
            **({LIMIT_NEAR: True} if limit_neared else {}),
            **({PARTITION_GONE: partition} if partition else {}),
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


def says_preempted(item: Evidence) -> bool:
    """Whether a line of the job's log is Slurm's word that it preempted the job. Its user may have written it, too."""
    return item.source is Source.JOB_LOG and _SAYS_PREEMPTED.search(item.text) is not None


def state_of_requeued(job: JobView, said: Iterable[Evidence]) -> str:
    """How an attempt ended after which Slurm requeued its job: Slurm's record does not say any more that it preempted it.

    Args:
        job: the attempt as it was seen last, maybe in its grace time.
        said: what was heard of the attempt.
    """
    preempted = _preempted(job) is not None or any(map(says_preempted, said))
    return STATE_PREEMPTED if preempted else STATE_REQUEUED


def _ends_by_its_limit(job: JobView) -> bool:
    """Whether a failed attempt ended when Slurm tells a job that its time is nearly over (sbatch --signal): it was asked to.

    Slurm does not count the time for which a job was suspended: of such a one it is not known.
    """
    if job.state != "failed" or None in (job.started_at, job.ended_at, job.warned_at):
        return False
    assert job.started_at is not None and job.ended_at is not None and job.warned_at is not None
    suspended = job.suspended_at is not None and job.suspended_at >= job.started_at
    return not suspended and job.ended_at >= job.warned_at


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
