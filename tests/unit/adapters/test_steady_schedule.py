"""What runs at intervals while the host's clock is set, in a thread as the agent's does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

from sentinel.adapters.steady_schedule import keep_steady

PATIENCE_S = 30.0


@pytest.fixture
def scheduler() -> Iterator[BackgroundScheduler]:
    made = BackgroundScheduler(job_defaults={"coalesce": True, "misfire_grace_time": 30}, timezone=UTC)
    keep_steady(made)
    yield made
    made.shutdown(wait=False)


@pytest.mark.parametrize("by", [timedelta(hours=-1), timedelta(days=1)])
def test_a_clock_that_is_set_stops_nothing(
    scheduler: BackgroundScheduler, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    set_by, ran = timedelta(), threading.Semaphore(0)

    class Set(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + set_by

    for module in ("apscheduler.schedulers.base", "apscheduler.executors.base", "sentinel.adapters.steady_schedule"):
        monkeypatch.setattr(f"{module}.datetime", Set)
    scheduler.add_job(ran.release, "interval", seconds=0.01)
    scheduler.start()
    assert ran.acquire(timeout=PATIENCE_S)
    set_by = by
    assert all(ran.acquire(timeout=PATIENCE_S) for _ in range(100))
