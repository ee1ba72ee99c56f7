"""What a running job says of itself, from all its nodes, becomes one finding; nonsense becomes none."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from in_memory.daemon import FakeOrders
from in_memory.slurm import FakeClock

from sentinel.daemon.effects.ask_hung_job import HungJobQuestions
from sentinel.engine.transition import AskHungJob
from sentinel.evidence.nccl.ras import read_ras
from sentinel.model.collectives import Unreadable
from sentinel.model.live_collectives import RasPoll
from sentinel.model.records import Evidence, Trust

WAITS = 'Process 1: python\n\nThread 1 (idle): "MainThread"\n    all_reduce (dist.py:7)\n    <module> (t.py:1)\n'
LOADS = 'Process 2: python\n\nThread 2 (idle): "MainThread"\n    next_batch (data.py:3)\n    <module> (t.py:1)\n'


def report(counts: list[int]) -> str:
    ranks = [
        {"rank": r, "host": "10.0.0.9", "pid": 500 + r, "status": {}, "collective_counts": {"AllReduce": count}}
        for r, count in enumerate(counts)
    ]
    return json.dumps({"communicators": [{"hash": "a", "size": len(counts), "ranks": ranks, "missing_ranks": []}]})


def answer(first: int, **rest: Any) -> dict[str, Any]:
    """A node with two ranks, the processes of which are 500 + rank."""
    ranks = [{"pid": 500 + rank, "rank": rank} for rank in (first, first + 1)]
    return {"ras": [], "dumps": [], "stacks": [], "ranks": ranks, "host": f"host{first}", "notes": []} | rest


async def who(answers: dict[str, object]) -> tuple[list[Evidence], FakeOrders]:
    orders = FakeOrders({(node, "ask_job"): value for node, value in answers.items()})
    effect = AskHungJob("ask-job:101.0:7", 101, 0, ("n1", "n2"), step_s=None)
    return await HungJobQuestions(orders, FakeClock()).ask(effect), orders


async def test_counts_that_stand_name_the_rank_behind_and_its_node() -> None:
    ras = [{"after_s": 0.0, "text": report([9, 9, 9, 8])}, {"after_s": 2.6, "text": report([9, 9, 9, 8])}]
    (found,), orders = await who({"n1": answer(0, ras=ras), "n2": answer(2)})
    assert (found.kind, found.where.rank, found.where.node, found.data["ranks"]) == ("hang", 3, "n2", "3")
    assert found.trust is Trust.USER and "8 AllReduce" in found.text and found.data["basis"] == "laggard"
    assert [(node, bool(sent["ras"])) for node, _, sent in orders.asked] == [("n1", True), ("n2", False)]


async def test_a_process_number_that_two_nodes_have_is_told_apart_by_its_neighbours() -> None:
    """Rank 1 on n1 and rank 2 on n2 are both process 501."""
    places = [("10.0.0.1", 500), ("10.0.0.1", 501), ("10.0.0.2", 501), ("10.0.0.2", 502)]
    ranks = [
        {"rank": r, "host": host, "pid": pid, "status": {}, "collective_counts": {"AllReduce": 9 - (r == 2)}}
        for r, (host, pid) in enumerate(places)
    ]
    text = json.dumps({"communicators": [{"hash": "a", "size": 4, "ranks": ranks, "missing_ranks": []}]})
    ras = [{"after_s": 0.0, "text": text}, {"after_s": 2.6, "text": text}]
    first, second = (
        [{"pid": 500, "rank": 0}, {"pid": 501, "rank": 1}],
        [{"pid": 501, "rank": 2}, {"pid": 502, "rank": 3}],
    )
    (found,), _ = await who({"n1": answer(0, ras=ras, ranks=first), "n2": answer(2, ranks=second)})
    assert (found.where.rank, found.where.node) == (2, "n2")


async def test_counts_that_move_are_no_hang() -> None:
    ras = [{"after_s": 0.0, "text": report([8, 8, 8, 8])}, {"after_s": 2.6, "text": report([9, 9, 9, 9])}]
    assert (await who({"n1": answer(0, ras=ras), "n2": answer(2)}))[0] == []


async def test_answers_are_read_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be megabytes, and users wrote them."""
    read_in = set[bool]()

    def read(data: bytes, source: str) -> RasPoll | Unreadable:
        read_in.add(threading.current_thread() is threading.main_thread())
        return read_ras(data, source)

    monkeypatch.setattr("sentinel.daemon.effects.ask_hung_job.read_ras", read)
    await who({"n1": answer(0, ras=[{"after_s": 0.0, "text": report([9, 8])}])})
    assert read_in == {False}


async def test_polls_too_close_say_nothing() -> None:
    ras = [{"after_s": 0.0, "text": report([9, 9, 9, 8])}, {"after_s": 0.5, "text": report([9, 9, 9, 8])}]
    assert (await who({"n1": answer(0, ras=ras), "n2": answer(2)}))[0] == []


async def test_stacks_of_all_nodes_are_compared() -> None:
    def stacks(*texts: tuple[int, str]) -> list[dict[str, Any]]:
        return [{"rank": rank, "form": "py-spy", "text": text} for rank, text in texts]

    (found,), _ = await who(
        {"n1": answer(0, stacks=stacks((0, WAITS), (1, WAITS))), "n2": answer(2, stacks=stacks((2, LOADS), (3, WAITS)))}
    )
    assert (found.where.rank, found.where.node) == (2, "n2") and "next_batch (data.py:3)" in found.text


@pytest.mark.parametrize(
    "torn",
    [
        None,
        "torn",
        {},
        {"ras": "x", "stacks": 3, "dumps": [7], "ranks": None},
        {"ras": [{"text": "\x00", "after_s": "x"}], "dumps": [{"trace": {"groups": 1}}], "stacks": [{"text": 5}]},
    ],
)
async def test_nonsense_names_nobody(torn: object) -> None:
    assert (await who({"n1": torn, "n2": torn} if torn is not None else {}))[0] == []
