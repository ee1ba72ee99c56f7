"""Lets an APScheduler go on at its intervals when the host's clock is set.

It dates the next run of each job by that clock. Set back by an hour, nothing would run for an hour; set forward by a day, a
run would be looked up for each interval of that day.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

_SET = timedelta(seconds=1)  # from here on the clock was set, and not only made to go faster or slower
_LOOK_S = 1.0  # how often it is looked at least: the clock may be set between a look and the wait that follows it


def keep_steady(scheduler: Any) -> None:
    """Before ``scheduler`` is started: move its jobs along with the host's clock when it looks for what is due."""
    process, seen = scheduler._process_jobs, (datetime.now(UTC), time.monotonic())

    def look() -> float | None:
        nonlocal seen
        (at, at_s), seen = seen, (datetime.now(UTC), time.monotonic())
        set_by = seen[0] - at - timedelta(seconds=seen[1] - at_s)
        if abs(set_by) > _SET:
            for job in scheduler.get_jobs():
                if job.next_run_time is not None:
                    job.modify(next_run_time=job.next_run_time + set_by)
        wait_s: float | None = process()
        return None if wait_s is None else min(wait_s, _LOOK_S)

    scheduler._process_jobs = look
