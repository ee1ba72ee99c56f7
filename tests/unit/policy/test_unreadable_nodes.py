"""A node whose record cannot be read counts against nobody."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from made_records import fleet, job, node, verdict
from made_situations import decide, drained

from sentinel.config.settings import Limits
from sentinel.model.records import Unread
from sentinel.policy.exclusions import excluded


def test_a_node_whose_record_cannot_be_read_is_left_alone_and_may_be_one_of_ours() -> None:
    unread = dataclasses.replace(fleet(10), unread=(Unread("node", "n11", "why"),))
    plan = decide(verdict(drain=("n11",)), fleet=unread, job=None)
    assert plan.steps == () and "record of n11 cannot be read" in plan.explanation
    assert "does not know n12" in decide(verdict(drain=("n12",)), fleet=unread, job=None).explanation
    refused = decide(verdict(drain=("n1",)), fleet=unread, job=None, limits=Limits(drain_fraction=1.0, drain_count=1))
    assert refused.refusal == "drain-budget" and "1 more cannot be read" in refused.explanation


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"drain_per_switch": 2}, "switch s1: 0 of its 6 nodes are drained by Sentinel, 2 more cannot be read; 2 are"),
        ({"drain_fraction": 0.2}, "partition train: 1 of 10 nodes are drained by Sentinel, 2 more cannot be read; 2"),
    ],
)
def test_a_node_whose_record_cannot_be_read_counts_as_drained_at_each_place(limits: dict[str, Any], said: str) -> None:
    out = node("n10", flags=("drain",), reason="sentinel: inc0 gpu_fallen_off_bus", topology="s2")
    there = [*(node(f"n{i}", topology="s1" if i <= 6 else "s2") for i in range(1, 10)), out]
    unread = dataclasses.replace(fleet(there), unread=tuple(Unread("node", name, "why") for name in ("n11", "n12")))
    wide = dataclasses.replace(Limits(drain_fraction=1.0, drain_per_switch=99, drain_count=99), **limits)
    refused = decide(verdict(drain=("n1",)), fleet=unread, job=None, limits=wide)
    assert refused.refusal == "drain-budget" and said in refused.explanation
    assert drained(decide(verdict(drain=("n1",)), fleet=fleet(there), job=None, limits=wide)) == ["n1"]


def test_a_record_that_cannot_be_read_does_not_keep_the_only_bad_node_of_a_small_partition_in_service() -> None:
    unread = dataclasses.replace(fleet(8), unread=(Unread("node", "x9", "why"),))
    assert drained(decide(verdict(drain=("n1",)), fleet=unread, job=None, limits=Limits())) == ["n1"]
    assert drained(decide(verdict(drain=("n1", "n2")), fleet=unread, job=None, limits=Limits())) == ["n1"]


def test_of_two_bad_nodes_the_one_in_service_is_left_out_before_the_one_in_maintenance() -> None:
    there = fleet([node("n1", flags=frozenset({"maintenance"})), node("n2"), node("n3"), node("n4")])
    found = excluded(
        dataclasses.replace(job(7), node_count=3), there, bad=["n1", "n2"], suspect=[], leaving=(), added_by_us=()
    )
    assert found.nodes == ("n2",)


def test_a_suspect_switch_is_not_cleared_by_records_that_cannot_be_read() -> None:
    there = [node(f"n{i}", topology="s1" if i <= 6 else "s2") for i in range(1, 11)]
    unread = dataclasses.replace(fleet(there[2:]), unread=tuple(Unread("node", name, "why") for name in ("n1", "n2")))
    for shown in (fleet(there), unread):
        plan = decide(
            verdict(drain=("n3",)), fleet=shown, job=None, failing_nodes=frozenset({"n1", "n2", "n3"}),
            limits=Limits(drain_fraction=1.0, breaker_switch_nodes=3, breaker_nodes=9),
        )  # fmt: skip
        assert plan.refusal == "switch"
