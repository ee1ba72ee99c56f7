"""Runs the daemon's periodic work, on APScheduler. The engine's timers are effects and run elsewhere.

Not run here: work that waits for an event, retries after a failure, and the lease, whose thread must not depend on the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from sentinel.adapters.steady_schedule import keep_steady
from sentinel.errors import SentinelError
from sentinel.log import Log
from sentinel.telemetry import Telemetry


def _is_error(record: logging.LogRecord) -> bool:
    """Log filter: drops the error of a run cancelled before it began, as the daemon stops; ``_run`` cannot catch it."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


class Periodic:
    """Runs functions on the event loop, each at its own interval and never twice at once.

    Missed runs are made up for by one run. A run still in progress at its next time replaces that one.
    """

    def __init__(self, telemetry: Telemetry, log: Log) -> None:
        self._telemetry = telemetry
        self._log = log
        self._started = False
        self._problems: dict[str, str] = {}  # name -> why its last run failed, to log each reason once
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        keep_steady(self._scheduler)
        logging.getLogger("apscheduler.executors.default").addFilter(_is_error)

    def every(
        self, interval_s: float, what: Callable[[], Awaitable[object]], name: str, *, first_s: float = 0.0
    ) -> None:
        """Await ``what()`` every ``interval_s``, ``first_s`` from now for the first time. ``name`` is for the log."""
        first = datetime.now(UTC) + timedelta(seconds=first_s)
        self._scheduler.add_job(
            self._run, "interval", args=[name, what], name=name, seconds=interval_s, next_run_time=first
        )

    def start(self) -> None:
        self._scheduler.start()
        self._started = True

    def stop(self) -> None:
        """Cancel runs in progress. A second call, or one before ``start``, does nothing."""
        if self._started:  # the scheduler itself stops only in the event loop's next turn
            self._started = False
            self._scheduler.shutdown(wait=False)

    async def _run(self, name: str, what: Callable[[], Awaitable[object]]) -> None:
        try:
            await what()
            self._problems.pop(name, None)
        except asyncio.CancelledError:
            pass  # the daemon stops: not an error, which APScheduler would log
        except SentinelError as error:
            if self._problems.get(name) != error.message:
                self._log.warning("periodic-work-failed", what=name, reason=error.message, fix=error.fix)
            self._problems[name] = error.message
        except Exception:  # the daemon goes on; the next run tries again
            self._telemetry.bugs.inc()
            self._log.bug(name)
