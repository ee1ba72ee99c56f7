"""Tells what is heard of a job from what is heard of the job that had its id before.

Nodes and detectors name a job by its id and attempt, and make ids of evidence of these: what a node kept of the former job
comes late, and what is said of the new one may have the id of what was said of the former.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sentinel.detect.own_host import of_own_clock
from sentinel.model.identity import CLOCKS_DIFFER
from sentinel.model.records import Evidence, JobView, stable_id
from sentinel.wire import time_from, to_json

USED_IDS_KEPT = "used_ids"  # stored setting, by job
_MOST = 4096  # jobs that are kept, the newest: some 300 KB where all ids of a busy day came again


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    mark: str  # whose it is and when it was submitted: in the ids of its evidence
    since: datetime | None  # what was before then is of the former job; None: not known


def begins_after(job: JobView, own_clock_ahead_s: float | None) -> datetime | None:
    """What was before this, by the daemon's clock, is of a job that had the id before; None: that is not known.

    Of a job that was requeued Slurm tells only when that was. ``own_clock_ahead_s``: see ``ClusterView``.
    """
    if job.restarts or job.submitted_at is None:
        return None
    return of_own_clock(job.submitted_at, own_clock_ahead_s) - CLOCKS_DIFFER


class UsedIds:
    """The jobs whose ids other ones had before.

    Args:
        kept: what ``unsaved`` returned to an earlier daemon.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        self._changed = False
        self._jobs = {
            int(job): _Job(str(value["mark"]), time_from(value["since"]) if value["since"] is not None else None)
            for job, value in (kept or {}).items()
        }

    def note(self, job: JobView, own_clock_ahead_s: float | None) -> None:
        """The job has the id of one that is gone."""
        mark = f"{job.uid if job.uid is not None else job.user} {to_json(job.submitted_at)}"
        self._jobs.pop(job.id, None)
        self._jobs[job.id] = _Job(mark, begins_after(job, own_clock_ahead_s))
        while len(self._jobs) > _MOST:
            del self._jobs[next(iter(self._jobs))]
        self._changed = True

    def unsaved(self) -> dict[str, Any] | None:
        """The state to store, if it changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        return {str(job): {"mark": one.mark, "since": to_json(one.since)} for job, one in self._jobs.items()}

    def is_of_former(self, item: Evidence) -> bool:
        """Whether this happened before the job that has the id now was submitted."""
        job = self._jobs.get(item.where.job) if item.where.job is not None else None
        return job is not None and job.since is not None and item.at < job.since

    def own(self, item: Evidence) -> Evidence:
        """``item`` of the job that has the id now, with an id that nothing of the former job has."""
        job = self._jobs.get(item.where.job) if item.where.job is not None else None
        return item if job is None else dataclasses.replace(item, id=stable_id(item.id, job.mark))
