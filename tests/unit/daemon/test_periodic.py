"""What is done at intervals: never twice at once, made up for when late, and no failure of one run is the last."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta, tzinfo

import pytest
from prometheus_client import CollectorRegistry

from sentinel.daemon.periodic import Periodic
from sentinel.errors import Unavailable
from sentinel.log import Log, take_libraries
from sentinel.telemetry import Telemetry

PATIENCE_S = 30.0
SOON_S = 0.01


class Case:
    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.telemetry = Telemetry(CollectorRegistry())
        self.periodic = Periodic(self.telemetry, Log(self.stream))
        self.runs = 0
        self.more = asyncio.Event()

    def every(
        self, what: Callable[[int], Awaitable[None]], interval_s: float = SOON_S, *, first_s: float = 0.0
    ) -> None:
        """``what`` takes the number of the run, from 1."""

        async def run() -> None:
            self.runs += 1
            self.more.set()
            await what(self.runs)

        self.periodic.every(interval_s, run, "the work", first_s=first_s)

    async def reach(self, runs: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.runs < runs:
                self.more.clear()
                await self.more.wait()

    @property
    def lines(self) -> list[str]:
        return [line.partition(" ")[2] for line in self.stream.getvalue().splitlines()]


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    made = Case()
    yield made
    made.periodic.stop()


async def test_a_failure_is_said_once_and_the_work_goes_on(case: Case) -> None:
    async def work(number: int) -> None:
        if number not in (3, 6):
            raise Unavailable("the store does not answer", fix="start it")

    case.every(work)
    case.periodic.start()
    await case.reach(6)
    said = 'WARNING periodic-work-failed what="the work" reason="the store does not answer" fix="start it"'
    assert case.lines == [said, said]  # again after a run that succeeded


async def test_a_bug_is_logged_with_its_place_and_counted(case: Case) -> None:
    async def work(number: int) -> None:
        raise KeyError(number)

    case.every(work)
    case.periodic.start()
    await case.reach(3)
    assert case.lines[0].startswith('ERROR bug where="the work" error=KeyError(1) place="test_periodic.py:')
    assert (case.telemetry.registry.get_sample_value("sentinel_bugs_total") or 0) >= 2


async def test_a_run_that_takes_long_is_not_joined_by_another_and_said_once(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    take_libraries()
    at_once = most = 0

    async def work(number: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(20):
            await asyncio.sleep(SOON_S / 5)
        at_once -= 1

    case.every(work)
    case.periodic.start()
    await case.reach(3)
    assert most == 1
    (line,) = capsys.readouterr().err.splitlines()  # not one for each time that it was still under way
    assert "WARNING library where=apscheduler.scheduler" in line and "the work" in line and "skipped" in line


async def test_a_run_whose_time_passed_while_the_loop_stood_still_is_made_up_for(case: Case) -> None:
    """APScheduler drops a run that is a second late: the store would not be pruned until the next day."""

    async def work(number: int) -> None: ...

    case.every(work, interval_s=3600.0, first_s=-60.0)
    case.periodic.start()
    await case.reach(1)
    assert case.lines == []


@pytest.mark.parametrize("by", [timedelta(hours=-1), timedelta(days=1)])
async def test_work_goes_on_when_the_clock_of_the_host_is_set(
    case: Case, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    set_by = timedelta()

    class Set(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + set_by

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Set)
    monkeypatch.setattr("sentinel.adapters.steady_schedule.datetime", Set)

    async def work(number: int) -> None: ...

    case.every(work)
    case.periodic.start()
    await case.reach(2)
    set_by = by
    await case.reach(case.runs + 3)
    assert case.lines == []


async def test_what_is_under_way_when_the_daemon_stops_is_no_error(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(number: int) -> None:
        await asyncio.Event().wait()

    case.every(work, interval_s=3600.0)
    case.periodic.start()
    await case.reach(1)
    case.periodic.stop()
    case.periodic.stop()
    for _ in range(20):
        await asyncio.sleep(0)
    assert case.lines == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stop_before_the_first_run_has_begun_is_no_error(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    async def work(number: int) -> None:
        await asyncio.sleep(PATIENCE_S)

    case.every(work)
    case.periodic.start()
    case.periodic.stop()  # in the loop's next turn the run is made, and cancelled
    for _ in range(5):
        await asyncio.sleep(0)
    assert case.runs == 0 and not caplog.records
