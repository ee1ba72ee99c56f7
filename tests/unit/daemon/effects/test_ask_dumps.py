"""Dumps that the nodes of a job kept: judged together, and nobody named for want of an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from in_memory.daemon import FakeOrders
from in_memory.slurm import FakeClock
from made_records import evidence, fleet, incident, job

from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Timeout
from sentinel.evidence.nccl.flight_recorder_wire import from_wire, to_wire
from sentinel.model.collectives import Call, GroupTrace, RankTrace, Unreadable
from sentinel.model.records import Evidence, Kind, Source, Trust

TOLD = evidence("dumps", source=Source.FLIGHT_RECORDER, node="n1", job=101, attempt=0)


def trace(rank: int, calls: int) -> RankTrace:
    """A rank that has called so many collectives of four, and completed the first three."""
    made = tuple(
        Call(number, "all_reduce", ((8,), (8,)), (("Float",), ("Float",)), "completed" if number < 4 else "scheduled")
        for number in range(1, calls + 1)
    )
    group = GroupTrace("0", "default_pg", ranks=frozenset(range(4)), enqueued=calls, completed=3, calls=made)
    return RankTrace(f"dump{rank}", rank, "2.10", (group,), entries=calls)


def kept(*items: RankTrace | Unreadable, done: bool = True) -> dict[str, Any]:
    return {"done": done, "dumps": [to_wire(item) for item in items], "folder": "/bundles/101.0"}


async def asked(answers: dict[str, Any], *items: Evidence) -> list[Evidence]:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    orders = FakeOrders({(node, "collected"): answer for node, answer in answers.items()})
    return await NodeQuestions(orders, live, FakeClock()).about(incident(*(items or (TOLD,))))


async def test_all_nodes_together_name_the_rank_and_its_node() -> None:
    (found,) = await asked({"n1": kept(trace(0, 4), trace(1, 4)), "n2": kept(trace(2, 3), trace(3, 4))})
    assert (found.kind, found.source, found.trust) == ("hang", Source.FLIGHT_RECORDER, Trust.USER)
    assert (found.data["kind"], found.data["ranks"], found.data["dumps"]) == ("missing", "2", 4)
    assert (found.where.node, found.where.rank, found.where.job, found.where.attempt) == ("n2", 2, 101, 0)


async def test_a_rank_without_a_dump_is_evidence_when_its_node_answered() -> None:
    (found,) = await asked({"n1": kept(trace(0, 4), trace(1, 4)), "n2": kept(trace(3, 4))})
    assert (found.data["ranks"], found.where.node) == ("2", None)


async def test_dumps_are_read_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be megabytes of users' files."""
    read_in = set[bool]()

    def read(item: object) -> RankTrace | Unreadable:
        read_in.add(threading.current_thread() is threading.main_thread())
        return from_wire(item)

    monkeypatch.setattr("sentinel.daemon.effects.ask_dumps.from_wire", read)
    await asked({"n1": kept(trace(0, 4)), "n2": kept(trace(2, 3))})
    assert read_in == {False}


@pytest.mark.parametrize(
    "answer",
    [None, Timeout("it did not answer"), kept(done=False), {"done": True}, "torn", {"done": True, "dumps": [{"trace": {}}]},
     {"done": True, "dumps": ["x"]}],
)  # fmt: skip
async def test_nobody_is_named_for_want_of_an_answer(answer: Any) -> None:
    answers = {"n1": kept(trace(0, 4), trace(1, 4))} | ({"n2": answer} if answer is not None else {})
    (found,) = await asked(answers)
    assert (found.kind, dict(found.data)) == (Kind.UNREADABLE, {})
    assert "n2" in found.text


async def test_what_the_others_show_by_themselves_needs_no_further_answer() -> None:
    (found,) = await asked({"n1": kept(trace(0, 4), trace(1, 3), trace(2, 4), trace(3, 4))})
    assert (found.data["kind"], found.data["ranks"]) == ("missing", "1")


async def test_torn_dumps_alone_say_nothing() -> None:
    torn = kept(Unreadable("dump0", 0, "torn"))
    assert await asked({"n1": torn, "n2": torn}) == []


async def test_it_is_asked_only_when_dumps_are_told_of_and_once() -> None:
    answers = {"n1": kept(trace(0, 4), trace(1, 4), trace(2, 3), trace(3, 4)), "n2": kept()}
    assert await asked(answers, evidence(Kind.JOB_ENDED, source=Source.SLURM, job=101, attempt=0)) == []
    (found,) = await asked(answers)
    assert await asked(answers, TOLD, found) == []
    # What the user's own log calls so is not a node's word.
    assert await asked(answers, evidence("dumps", source=Source.JOB_LOG, job=101, attempt=0)) == []
