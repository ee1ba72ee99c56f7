"""Orders: asked once, given until answered, and never waited for where nobody listens."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest

from sentinel.daemon.effects import orders
from sentinel.daemon.effects.orders import OrderBook
from sentinel.errors import Timeout, Unavailable


class Seconds:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(orders, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_order_wakes_the_poll_and_its_answer_wakes_the_asker(seconds: Seconds) -> None:
    book = OrderBook()
    poll = asyncio.create_task(book.wait("n1", 60.0))
    await _settle()
    asked = asyncio.create_task(book.ask("n1", "inventory", {"job": 1}, deadline_s=20.0))
    (order,) = await poll
    assert order["kind"] == "inventory" and order["arguments"] == {"job": 1} and order["deadline_s"] == 20.0
    book.result("n1", str(order["id"]), True, {"listings": []}, "")
    assert await asked == {"listings": []}
    assert await book.wait("n1", 0) == []


async def test_a_book_that_is_closed_keeps_no_poll(seconds: Seconds) -> None:
    book = OrderBook()
    poll = asyncio.create_task(book.wait("n1", 60.0))
    await _settle()
    book.close()
    assert await poll == []
    assert await book.wait("n2", 60.0) == []


async def test_order_is_given_again_until_its_result_came(seconds: Seconds) -> None:
    book = OrderBook()
    asked = asyncio.create_task(book.ask("n1", "diagnose", {}, deadline_s=20.0))
    await _settle()
    (first,) = await book.wait("n1", 60.0)
    seconds.now_s += 5.0
    (second,) = await book.wait("n1", 60.0)
    assert first["id"] == second["id"] and second["deadline_s"] == 15.0
    seconds.now_s += 60.0
    assert (await book.wait("n1", 60.0))[0]["deadline_s"] == 0.1  # never negative
    book.result("n1", str(first["id"]), True, 1, "")
    book.result("n1", str(first["id"]), True, 2, "")  # a repeated result changes nothing
    assert await asked == 1


async def test_node_that_works_on_an_order_is_not_given_it_at_every_poll(seconds: Seconds) -> None:
    book = OrderBook()
    asked = asyncio.create_task(book.ask("n1", "diagnose", {}, deadline_s=600.0))
    await _settle()
    (first,) = await book.wait("n1", 60.0)
    seconds.now_s += 1.5
    assert await book.wait("n1", 0) == [], "what was given a moment ago is under way"
    seconds.now_s += 0.5
    assert [order["id"] for order in await book.wait("n1", 0)] == [first["id"]], "it may have been lost on its way"
    poll = asyncio.create_task(book.wait("n1", 60.0))
    await _settle()
    other = asyncio.create_task(book.ask("n1", "inventory", {}, deadline_s=20.0))
    (second,) = await poll
    assert second["kind"] == "inventory", "a new one wakes the poll that waits"
    for task in (asked, other):
        task.cancel()
    await asyncio.gather(asked, other, return_exceptions=True)


async def test_short_order_that_was_lost_is_given_again_well_before_its_deadline(seconds: Seconds) -> None:
    book = OrderBook()
    asked = asyncio.create_task(book.ask("n1", "task_states", {}, deadline_s=3.0))
    await _settle()
    await book.wait("n1", 60.0)
    seconds.now_s += 0.46
    assert len(await book.wait("n1", 0)) == 1
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def test_agent_that_could_not_is_unavailable(seconds: Seconds) -> None:
    book = OrderBook()
    asked = asyncio.create_task(book.ask("n1", "quarantine", {}, deadline_s=20.0))
    await _settle()
    (order,) = await book.wait("n1", 60.0)
    book.result("n1", str(order["id"]), False, None, "no such folder" + "x" * 5000)
    with pytest.raises(Unavailable, match="the agent of n1 could not do quarantine: no such folder") as caught:
        await asked
    assert len(caught.value.message) < 400


async def test_no_answer_in_time(seconds: Seconds) -> None:
    book = OrderBook()
    with pytest.raises(Timeout, match="did not answer inventory"):
        await book.ask("n1", "inventory", {}, deadline_s=0)
    assert await book.wait("n1", 0) == []  # nobody waits for it any more


async def test_late_unknown_and_foreign_results_are_dropped(seconds: Seconds) -> None:
    book = OrderBook()
    book.result("n1", "nothing", True, 1, "")
    asked = asyncio.create_task(book.ask("n1", "inventory", {}, deadline_s=20.0))
    await _settle()
    (order,) = await book.wait("n1", 60.0)
    book.result("n2", str(order["id"]), True, "forged by another node", "")
    await _settle()
    assert not asked.done()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    book.result("n1", str(order["id"]), True, 1, "")
    assert await book.wait("n1", 0) == []


async def test_node_that_never_polls_is_not_waited_for(seconds: Seconds) -> None:
    book = OrderBook()
    assert book.connected("n1")  # a young daemon gives agents the time to come
    seconds.now_s += 5.0
    assert not book.connected("n1")
    with pytest.raises(Unavailable, match="not connected"):
        await book.ask("n1", "inventory", {}, deadline_s=math.inf)


async def test_node_is_connected_while_it_polls_and_a_little_after(seconds: Seconds) -> None:
    book = OrderBook()
    seconds.now_s += 100.0
    poll = asyncio.create_task(book.wait("n1", 60.0))
    await _settle()
    seconds.now_s += 25.0
    assert book.connected("n1") and not book.connected("n2")
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    seconds.now_s += 4.9
    assert book.connected("n1")
    seconds.now_s += 0.2
    assert not book.connected("n1")


async def test_orders_of_nodes_and_of_runs_do_not_meet(seconds: Seconds) -> None:
    book, other = OrderBook(), OrderBook()
    tasks = [asyncio.create_task(b.ask("n1", "inventory", {}, deadline_s=20.0)) for b in (book, book, other)]
    await _settle()
    ids = [o["id"] for b in (book, other) for o in await b.wait("n1", 60.0)]
    assert len(set(ids)) == 3
    assert await book.wait("n2", 0) == []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_order_between_two_polls_is_not_missed(seconds: Seconds) -> None:
    book = OrderBook()
    assert await book.wait("n1", 0) == []
    asked = asyncio.create_task(book.ask("n1", "diagnose", {}, deadline_s=20.0))
    await _settle()
    assert len(await book.wait("n1", 0)) == 1
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
