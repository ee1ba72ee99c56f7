"""The daemon's own loop: what its end cuts off is no error, and what it runs out of is its own trouble."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from core_daemon import Daemon
from core_world import World

from sentinel.config.settings import Settings
from sentinel.daemon.run import _listen, _report_exhaustion, until_stopped
from sentinel.errors import UserError


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


@pytest.mark.parametrize(
    ("error", "ours"),
    [(OSError(errno.EMFILE, "Too many open files"), True), (OSError(errno.ENOMEM, "no memory"), True),
     (ConnectionResetError(errno.ECONNRESET, "reset"), False), (ValueError("x"), False), (None, False)],
)  # fmt: skip
async def test_a_connection_that_could_not_be_accepted_makes_silence_say_nothing(
    world: Callable[..., World], error: BaseException | None, ours: bool
) -> None:
    daemon = Daemon(world())
    context = {"message": "socket.accept() out of system resource"} | ({"exception": error} if error else {})
    _report_exhaustion(daemon.runner, asyncio.get_running_loop(), context)
    seen = daemon.state.watch.visibility
    assert (seen is not None and "no connection can be accepted" in seen.why) is ours


class NeverServing:
    """A server that cannot take its address."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.stopped = False

    async def start(self) -> None:
        raise self._error

    async def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("error", "words", "fix"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "0.0.0.0:9478 is taken by another program", "ss -tlnp"),
        (OSError(errno.EACCES, "Permission denied"), "cannot be listened at", "correct [daemon] listen"),
        (ValueError("invalid literal for int()"), "cannot be listened at", "correct [daemon] listen"),
    ],
)
async def test_address_that_cannot_be_had_is_one_line_with_the_fix(error: Exception, words: str, fix: str) -> None:
    server = NeverServing(error)
    with pytest.raises(UserError) as caught:
        await _listen(server, Settings())  # type: ignore[arg-type]
    assert words in caught.value.message and fix in caught.value.fix and server.stopped
