"""Removes the resume points of jobs that are gone: a job that gets their id, and is requeued, would resume from another
run's checkpoint.

TaskProlog knows a job by its id, attempt and user only: of when a job was submitted Slurm tells the hooks nothing. What was
written before the daemon saw the job that has the id now is of another one: it writes for jobs that it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sentinel.adapters.resume_file import ResumeFiles
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.used_ids import begins_after
from sentinel.log import Log
from sentinel.model.identity import is_another
from sentinel.model.records import Fleet, JobView
from sentinel.ports import Clock

EVERY_S = 10.0  # a listing of the folder, and of what is left in it only what may be a former job's is looked at
_GONE_FOR = timedelta(days=1)  # what Slurm does not list may only be hidden from the daemon's account for a while
_NEW = timedelta(minutes=10)  # an older snapshot does not tell which jobs are gone


class FormerResumePoints:
    def __init__(self, files: ResumeFiles, live: ClusterView, clock: Clock, log: Log) -> None:
        self._files, self._live, self._clock, self._log = files, live, clock, log
        self._fleet: Fleet | None = None  # the newest snapshot that was looked at
        self._since: Mapping[int, datetime] = {}  # by job that came after the first of them: the last one without it

    async def look(self) -> None:
        """Remove what was written before the job that has the id now was there, and what is of no job that Slurm knows.

        Raises:
            Unavailable: the folder does not answer, or cannot be read or written.
        """
        fleet, now = self._live.fleet, self._clock.now()
        if fleet is None:
            return
        if self._fleet is not None and fleet is not self._fleet:
            since = ((job, self._came_after(job, view, self._fleet)) for job, view in fleet.jobs.items())
            self._since = {job: at for job, at in since if at is not None}
        self._fleet = fleet
        ahead_s, came = self._live.own_clock_ahead_s(), self._since
        for job in await self._files.remove_former(lambda job: former_before(job, fleet, came, ahead_s, now)):
            self._log.info("resume-point-removed", job=job, reading="it was of a job that had this id before")

    def _came_after(self, job: int, view: JobView, before: Fleet) -> datetime | None:
        known = before.jobs.get(job)
        if known is None:
            return None if before.may_have_job(job) else before.at
        return before.at if is_another(known, view) else self._since.get(job)


def former_before(
    job: int, fleet: Fleet, came_after: Mapping[int, datetime], own_clock_ahead_s: float | None, now: datetime
) -> datetime | None:
    """When a resume point for this id must have been written to be of a job that is gone; None: not known, it stays.

    Args:
        came_after: by job, a time by the daemon's clock before which Slurm did not know it.
    """
    view = fleet.jobs.get(job)
    if view is None:
        return None if fleet.may_have_job(job) or now - fleet.at > _NEW else now - _GONE_FOR
    # Slurm counts the restarts of a heterogeneous job at its leader. Of a job that was requeued it tells only when that was.
    leader = view if view.het is None else fleet.jobs.get(view.het)
    submitted = begins_after(leader, own_clock_ahead_s) if leader is not None and not view.restarts else None
    return max((at for at in (submitted, came_after.get(job)) if at is not None), default=None)
