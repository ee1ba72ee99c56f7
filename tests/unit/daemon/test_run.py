"""The end of the daemon: what is cut off by it is no error."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from sentinel.daemon.run import until_stopped


async def test_a_job_that_is_under_way_when_the_daemon_stops_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    async def reconcile() -> None:
        begun.set()
        await asyncio.Event().wait()

    scheduler = AsyncIOScheduler(timezone=UTC)
    scheduler.add_job(until_stopped(reconcile), "interval", hours=1, next_run_time=datetime.now(UTC))
    scheduler.start()
    await begun.wait()
    scheduler.shutdown(wait=False)
    for _ in range(20):
        await asyncio.sleep(0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
