"""Resume points of jobs whose ids other jobs have by now: none of them takes another run's checkpoint."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_records import AT, fleet, job

from sentinel.adapters.resume_file import ResumeFiles
from sentinel.daemon.former_resume_points import FormerResumePoints
from sentinel.log import Log
from sentinel.model.records import Fleet, JobView, Unread

UNREAD = Unread("job", "101", "its record is cut off")


class Site:
    """A folder with the resume point of job 101, written at ``AT``, and what snapshots show."""

    def __init__(self, folder: Path) -> None:
        self.live: Any = SimpleNamespace(fleet=None, own_clock_ahead_s=lambda: None)
        self.clock: Any = SimpleNamespace(now=lambda: self.at)
        self.file, self.at = folder / "101.env", AT
        self.write(AT)
        self.former = FormerResumePoints(ResumeFiles(folder), self.live, self.clock, Log(io.StringIO()))

    def write(self, at: datetime) -> None:
        self.file.write_text("SENTINEL_JOB=101\n")
        os.utime(self.file, (at.timestamp(), at.timestamp()))

    async def shows(self, *jobs: JobView, after_s: float = 10.0, unread: Iterable[Unread] = ()) -> bool:
        """Whether the resume point is there after this snapshot."""
        self.at += timedelta(seconds=after_s)
        shown: Fleet = fleet(4, jobs)
        self.live.fleet = dataclasses.replace(shown, at=self.at, unread=tuple(unread))
        await self.former.look()
        return self.file.exists()


def submitted(after_s: float, **how: Any) -> JobView:
    started_s = None if how.get("state") == "pending" else after_s
    view = job(started_s=started_s, **how)
    return dataclasses.replace(view, submitted_at=AT + timedelta(seconds=after_s), requeue=True)


OLD = submitted(-3600.0, restarts=1)


async def test_the_job_that_it_is_for_keeps_it(tmp_path: Path) -> None:
    there = Site(tmp_path)
    for _ in range(3):
        assert await there.shows(OLD)
    assert await there.shows(unread=[UNREAD], after_s=10 * 86400.0) and await there.shows(OLD)


@pytest.mark.parametrize("restarts", [0, 1])
async def test_a_job_that_comes_with_the_id_does_not_get_it(tmp_path: Path, restarts: int) -> None:
    """Also where Slurm has requeued it when it is seen first."""
    there = Site(tmp_path)
    assert await there.shows(OLD) and await there.shows()
    assert not await there.shows(submitted(25.0, restarts=restarts))


async def test_a_job_that_has_the_id_at_once_does_not_get_it(tmp_path: Path) -> None:
    there = Site(tmp_path)
    assert await there.shows(OLD)
    assert not await there.shows(submitted(15.0))


async def test_its_own_is_left_to_a_job_that_came_with_the_id(tmp_path: Path) -> None:
    there, new = Site(tmp_path), submitted(15.0)
    assert await there.shows(OLD) and not await there.shows(new)
    there.write(there.at)
    assert await there.shows(new)
    assert await there.shows(dataclasses.replace(new, restarts=1, submitted_at=there.at))


@pytest.mark.parametrize(("after_s", "left"), [(3600.0, False), (60.0, True)])
async def test_after_a_start_the_time_of_submission_tells_as_far_as_clocks_agree(
    tmp_path: Path, after_s: float, left: bool
) -> None:
    there = Site(tmp_path)
    assert await there.shows(submitted(after_s), after_s=after_s + 5.0) is left


async def test_slurmctld_that_forgot_a_requeue_takes_nothing_from_the_job(tmp_path: Path) -> None:
    there = Site(tmp_path)
    assert await there.shows(OLD) and await there.shows(dataclasses.replace(OLD, restarts=0))


async def test_what_is_of_no_job_for_a_day_is_removed(tmp_path: Path) -> None:
    there = Site(tmp_path)
    assert await there.shows() and not await there.shows(after_s=86500.0)


async def test_an_old_snapshot_tells_of_no_job_that_it_is_gone(tmp_path: Path) -> None:
    there = Site(tmp_path)
    assert await there.shows()
    there.at += timedelta(days=3)
    await there.former.look()
    assert there.file.exists()


async def test_a_later_component_counts_its_leaders_restarts(tmp_path: Path) -> None:
    there = Site(tmp_path)
    part = dataclasses.replace(submitted(3600.0), het=100)
    leader = dataclasses.replace(submitted(3600.0, id=100, restarts=1), het=100)
    assert await there.shows(part, leader) and await there.shows(part)
