"""A delivery that hangs costs its own receiver a thread, and nobody else anything."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.errors import Refused, Unavailable


async def test_a_receiver_that_hangs_holds_up_no_other_and_is_tried_again_when_it_lets_go() -> None:
    threads, over = DeliveryThreads(), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await threads.call("tarpit", 0.01, over.wait)
    with pytest.raises(Unavailable):
        await threads.call("tarpit", 60.0, over.wait)
    assert await threads.call("pager", 60.0, lambda: "taken") == "taken"
    over.set()
    while threads._left["tarpit"]:
        await asyncio.sleep(0)
    assert await threads.call("tarpit", 60.0, over.wait) is True


async def test_a_storm_to_one_receiver_leaves_the_others_their_turn() -> None:
    threads, over = DeliveryThreads(), threading.Event()
    storm = [asyncio.create_task(threads.call("slow", 60.0, over.wait)) for _ in range(20)]
    assert await threads.call("pager", 60.0, lambda: "taken") == "taken"
    over.set()
    assert await asyncio.gather(*storm) == [True] * 20


async def test_all_together_are_bounded_where_there_are_many_receivers() -> None:
    threads, over, running = DeliveryThreads(most=3), threading.Event(), []

    def deliver() -> None:
        running.append(threading.current_thread())
        over.wait()

    calls = [asyncio.create_task(threads.call(f"user{number}", 60.0, deliver)) for number in range(9)]
    while len(running) < 3:
        await asyncio.sleep(0)
    assert len(running) == 3
    over.set()
    await asyncio.gather(*calls)
    assert len(running) == 9


async def test_an_error_is_the_callers() -> None:
    def refuse() -> None:
        raise Refused("never")

    with pytest.raises(Refused):
        await DeliveryThreads().call("pager", 60.0, refuse)


_LEFT_BEHIND = """
import asyncio, threading
from sentinel.adapters.notify.delivery_threads import DeliveryThreads

async def main():
    try:
        await DeliveryThreads().call("tarpit", 0.01, threading.Event().wait)
    except TimeoutError:
        print("left behind")

asyncio.run(main())
"""


def test_a_delivery_that_hangs_holds_up_no_exit() -> None:
    ended = subprocess.run([sys.executable, "-c", _LEFT_BEHIND], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "left behind\n"), ended.stderr
