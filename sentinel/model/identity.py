"""Which job a record is of. Slurm gives the id of a job that is gone to another one: after ``MaxJobId``, and once the folder
of its state is lost."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sentinel.model.records import JobView, stable_id

CLOCKS_DIFFER = timedelta(minutes=5)  # the daemon's and slurmctld's, as far as nothing else is known
_TASK = re.compile(r"([0-9]{1,10})_([0-9]{1,10})")
_NOBODY = "nobody"  # what Slurm calls a user whose name the host of slurmctld cannot find just now


def task_named(text: str) -> tuple[int, int] | None:
    """The array and the number of the task that people name so, as squeue shows it (``440_2``); None: it names none."""
    named = _TASK.fullmatch(text)
    return (int(named[1]), int(named[2])) if named is not None else None


def taken_along_id(incident: str, job: int, attempt: int) -> str:
    """The id of the incident of another job on a node that ``incident`` takes out: it says so itself, also long after."""
    return stable_id("taken along", incident, job, attempt)[:10]


def is_another(known: JobView, now: JobView) -> bool:
    """Whether Slurm has given the id of the job of which ``known`` is an attempt to another job by ``now``.

    Another user owns it; or it was submitted, and never requeued, after that attempt had begun. A requeue counts a restart
    when it writes a new time of submission, and what slurmctld restores is older. What is not known says no.
    """
    if _differ(known, now):
        return True
    if now.restarts or now.submitted_at is None:
        return False
    same = known.restarts == 0 and (
        _same(known.submitted_at, now.submitted_at) or _same(known.started_at, now.started_at)
    )
    began = known.started_at or known.submitted_at
    return not same and began is not None and now.submitted_at > began


def _differ(known: JobView, now: JobView) -> bool:
    """Whether they are known to be two users' jobs."""
    if known.uid is not None and now.uid is not None:
        return known.uid != now.uid
    return names_differ(known.user, now.user)


def names_differ(one: str | None, other: str | None) -> bool:
    """Whether these are known to be two users. A number is a user whose name Slurm could not find."""
    names = {one or "", other or ""}
    return len(names) == 2 and names.isdisjoint({"", _NOBODY}) and not any(name.isdecimal() for name in names)


def _same(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and one == other


class JobsOfOneId:
    """Tells jobs apart that had one id at different times.

    Args:
        attempts: rows of the store. Another job begins with another user's attempt, or with an attempt 0 once the one before
            has ended: while its nodes boot, a job's first attempt may begin twice.
    """

    def __init__(self, attempts: Iterable[Mapping[str, Any]]) -> None:
        self._since: dict[int, list[datetime]] = {}  # by job id: from when on it was each further job's
        before: dict[int, Mapping[str, Any]] = {}
        for row in sorted(attempts, key=lambda row: row["started_at"]):
            job, last = row["job"], before.get(row["job"])
            if last is not None and (
                names_differ(last["user"], row["user"]) or (row["attempt"] == 0 and last["ended_at"] is not None)
            ):
                over = (last["ended_at"] or last["started_at"]) + timedelta.resolution
                since = min(row["started_at"], max(over, row["started_at"] - CLOCKS_DIFFER))
                self._since.setdefault(job, []).append(since)
            before[job] = row

    def of(self, job: int, at: datetime) -> tuple[int, int]:
        """The job that had this id at that time: equal for all that is of one job."""
        return job, bisect_right(self._since.get(job, ()), at)

    def is_former(self, job: int | None, at: datetime) -> bool:
        """Whether a job had this id at that time that is known to have another job's by now."""
        return job is not None and self.of(job, at)[1] < len(self._since.get(job, ()))
