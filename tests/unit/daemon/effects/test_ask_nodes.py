"""What nodes are asked before a hang is judged: whatever they answer, or do not, becomes evidence and nothing breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from in_memory.daemon import FakeOrders
from in_memory.slurm import FakeClock
from made_records import AT, evidence, fleet, incident, job

from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.detect.activity import Motion, motion_of_job
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Timeout
from sentinel.model.records import Evidence, Kind, Source

STALL = evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0)
TASK = {"rank": 3, "state": "Sleeping", "pid": 77, "cpu_s": 1.5}


def inquiry(answers: Mapping[str, object]) -> tuple[NodeQuestions, FakeOrders]:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    orders = FakeOrders({(node, "task_states"): answer for node, answer in answers.items()})
    return NodeQuestions(orders, live, FakeClock()), orders


async def asked(answers: Mapping[str, object]) -> list[Evidence]:
    return await inquiry(answers)[0].tasks(101, 0)


async def test_each_task_of_each_node() -> None:
    found = await asked({"n1": {"tasks": [TASK, TASK | {"rank": 4, "state": "T"}]}, "n2": {"tasks": [TASK]}})
    assert [(item.where.node, item.where.rank, item.data["state"]) for item in found] == [
        ("n1", 3, "S"),
        ("n1", 4, "T"),
        ("n2", 3, "S"),
    ]
    first = found[0]
    assert (first.kind, first.source, first.where.job, first.where.attempt, first.at) == (
        Kind.TASK_STATE, Source.PROCESS, 101, 0, AT,
    )  # fmt: skip
    assert first.data == {"state": "S", "pid": 77, "cpu_s": 1.5} and len({item.id for item in found}) == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "not connected"),
        (Timeout("the agent of n1 did not answer task_states within 3 s"), "within 3 s"),
        ({}, "no list of tasks"),
        ({"tasks": {"rank": 1}}, "no list of tasks"),
        ("torn", "no list of tasks"),
        ({"tasks": []}, "no process of the job"),
        ({"tasks": ["torn", 7, {"rank": None, "state": "S"}]}, "no process of the job"),
        ({"tasks": [TASK | {"leaf": False}]}, "no process of the job"),
    ],
)
async def test_node_that_cannot_tell_is_unreadable_and_the_other_counts(answer: object, why: str) -> None:
    found = await asked({"n2": {"tasks": [TASK]}} | ({"n1": answer} if answer is not None else {}))
    assert [(item.kind, item.where.node) for item in found] == [(Kind.UNREADABLE, "n1"), (Kind.TASK_STATE, "n2")]
    assert why in found[0].text and found[0].where.job == 101


@pytest.mark.parametrize("task", ["torn", {"rank": "3", "state": "S"}, {"rank": 3}, {"rank": 3, "state": 9}])
async def test_torn_task_is_left_out(task: object) -> None:
    found = await asked({node: {"tasks": [task, TASK]} for node in ("n1", "n2")})
    assert [item.where.rank for item in found] == [3, 3]


async def test_values_of_the_wrong_kind_are_not_known() -> None:
    found = await asked({"n1": {"tasks": [TASK | {"pid": "x", "cpu_s": [1]}]}, "n2": {"tasks": [TASK]}})
    assert found[0].data == {"state": "S", "pid": None, "cpu_s": None}


async def test_processes_between_a_task_and_its_leaf_are_not_meant() -> None:
    found = await asked({node: {"tasks": [TASK | {"leaf": False, "rank": 9}, TASK]} for node in ("n1", "n2")})
    assert [item.where.rank for item in found] == [3, 3]


@pytest.mark.parametrize(
    ("items", "job_id", "attempt"),
    [
        ((evidence(Kind.XID, node="n1"),), 101, 0),
        ((STALL, evidence(Kind.TASK_STATE, source=Source.PROCESS)), 101, 0),
        ((STALL,), None, None),
        ((STALL,), 101, None),
    ],
)
async def test_nobody_is_asked_without_need(
    items: tuple[Evidence, ...], job_id: int | None, attempt: int | None
) -> None:
    made, orders = inquiry({"n1": {"tasks": [TASK]}})
    assert await made.about(incident(*items, job=job_id, attempt=attempt)) == [] and orders.asked == []


async def test_hang_asks_the_nodes_of_its_attempt() -> None:
    made, orders = inquiry({"n1": {"tasks": [TASK]}, "n2": {"tasks": [TASK]}})
    assert len(await made.about(incident(STALL))) == 2
    assert orders.asked == [("n1", "task_states", {"job": 101}), ("n2", "task_states", {"job": 101})]
    assert await made.about(incident(STALL, attempt=7)) == []  # nobody knows where that ran


@pytest.mark.parametrize(
    ("answer", "seen"), [(None, False), ("torn", False), ({}, False), ({"tasks": []}, True), ({"tasks": [TASK]}, True)]
)
async def test_node_that_finds_no_process_has_answered_and_one_that_does_not_answer_has_not(
    answer: object, seen: bool
) -> None:
    made, _ = inquiry({"n1": answer} if answer is not None else {})
    looks, _found = await made.looks(101, 0, ["n1"])
    assert ("n1" in looks) is seen
    assert motion_of_job(
        ["n1"], looks, {name: replace(look, at_s=look.at_s + 5.0) for name, look in looks.items()}
    ) is (Motion.UNCLEAR if seen else Motion.UNSEEN)
