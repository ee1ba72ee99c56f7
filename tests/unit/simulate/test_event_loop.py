"""An event loop on virtual time: hours pass at once, in order, and a killed process leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from sentinel.simulate.event_loop import VirtualLoop


class Moments:
    """``Time`` in which something happens at given moments."""

    def __init__(self, *moments: float) -> None:
        self.now_s = 0.0
        self.moments = sorted(moments)
        self.passed: list[float] = []

    def go_on(self, until_s: float | None) -> None:
        if self.moments and (until_s is None or self.moments[0] <= until_s):
            self.now_s = self.moments.pop(0)
            self.passed.append(self.now_s)
        elif until_s is not None:
            self.now_s = until_s

    def thread_s(self) -> float:
        return 0.5


def test_sleeps_take_no_time_and_end_in_order() -> None:
    time, ended = Moments(), []
    loop = VirtualLoop(time)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((seconds, loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(*(sleep(seconds) for seconds in (7200.0, 1.0, 60.0)))

    loop.run_until_complete(all_of_them())
    loop.close()
    assert ended == [(1.0, 1.0), (60.0, 60.0), (7200.0, 7200.0)]


def test_what_happens_outside_happens_between_the_timers() -> None:
    time = Moments(5.0, 15.0, 25.0)
    loop = VirtualLoop(time)
    loop.run_until_complete(asyncio.sleep(20.0))
    loop.close()
    assert time.passed == [5.0, 15.0] and time.now_s == 20.0


def test_a_thread_is_a_call_a_little_later_and_its_error_arrives() -> None:
    loop = VirtualLoop(Moments())

    def divide(by: int) -> float:
        return 1 / by

    async def both() -> float:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divide, 0)
        return await asyncio.to_thread(divide, 2)

    assert loop.run_until_complete(both()) == 0.5 and loop.time() == 1.0
    loop.close()


def test_deadlines_hold_on_virtual_time() -> None:
    loop = VirtualLoop(Moments())

    async def waits() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 30.0)

    loop.run_until_complete(waits())
    assert loop.time() == 30.0
    loop.close()


def test_dropped_work_does_not_go_on() -> None:
    loop, done = VirtualLoop(Moments()), []

    async def works() -> None:
        try:
            await asyncio.sleep(10.0)
            done.append("worked")
        finally:
            done.append("cleared away")

    task = loop.create_task(works())
    never_begun = loop.create_task(works())
    loop.call_later(1.0, loop.stop)
    loop.run_forever()
    later = loop.create_task(works())
    loop.drop()
    assert done == ["cleared away", "cleared away"] and not any(one.done() for one in (task, never_begun, later))
