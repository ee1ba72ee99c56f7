"""Blocking calls beside the event loop: each answered once, in order, whatever happens to who asked."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator

import pytest

from sentinel.daemon.api.blocking_calls import BlockingCalls
from sentinel.errors import Denied
from sentinel.log import Log


class Place:
    def __init__(self, threads: int) -> None:
        self.said = io.StringIO()
        self.beside = BlockingCalls(threads, "bench", Log(self.said))
        self.open = threading.Event()
        self.begun = threading.Event()
        self.done: list[object] = []

    def held(self) -> None:
        self.begun.set()
        assert self.open.wait(30)

    async def hold(self) -> asyncio.Task[None]:
        """One thread waits until ``open`` is set."""
        task = asyncio.create_task(self.beside.call(self.held))
        while not self.begun.is_set():
            await asyncio.sleep(0)
        return task


def running(threads: int) -> Iterator[Place]:
    place = Place(threads)
    yield place
    place.open.set()
    place.beside.stop()


@pytest.fixture
def one() -> Iterator[Place]:
    yield from running(1)


@pytest.fixture
def four() -> Iterator[Place]:
    yield from running(4)


async def test_many_calls_are_each_answered_once(four: Place) -> None:
    def square(number: int) -> int:
        four.done.append(number)
        return number * number

    for _ in range(20):  # threads fall asleep in between
        found = await asyncio.gather(*(four.beside.call(square, number) for number in range(100)))
        assert found == [number * number for number in range(100)]
    assert sorted(map(str, four.done)) == sorted(str(number) for number in list(range(100)) * 20)


async def test_what_is_first_overtakes_what_waits_and_the_rest_keeps_its_order(one: Place) -> None:
    held = await one.hold()
    calls = [
        one.beside.call(one.done.append, word, first=word.startswith("first"))
        for word in ("a", "b", "first 1", "c", "first 2")
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    one.open.set()
    await asyncio.gather(held, *tasks)
    assert one.done == ["first 1", "first 2", "a", "b", "c"]


async def test_an_error_reaches_who_asked_and_nobody_else(four: Place) -> None:
    def refused() -> None:
        raise Denied("not a credential")

    outcome = await asyncio.gather(four.beside.call(refused), four.beside.call(int, "7"), return_exceptions=True)
    assert isinstance(outcome[0], Denied) and outcome[1] == 7 and "bug" not in four.said.getvalue()


async def test_an_error_of_our_own_is_seen_as_a_bug_and_the_thread_lives(one: Place) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await one.beside.call(int, "x")
    assert " bug " in one.said.getvalue()
    assert await one.beside.call(int, "7") == 7


async def test_a_call_that_is_held_up_does_not_hold_up_the_others(four: Place) -> None:
    held = await four.hold()
    assert await asyncio.gather(*(four.beside.call(int, str(number)) for number in range(50))) == list(range(50))
    assert not held.done()
    four.open.set()
    await held


async def test_who_goes_away_disturbs_nobody(one: Place) -> None:
    held = await one.hold()
    gone = asyncio.create_task(one.beside.call(one.done.append, "gone"))
    stays = asyncio.create_task(one.beside.call(one.done.append, "stays"))
    await asyncio.sleep(0)
    gone.cancel()
    one.open.set()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await asyncio.gather(held, stays)
    assert one.done == ["gone", "stays"]
