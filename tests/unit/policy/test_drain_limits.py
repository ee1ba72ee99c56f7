"""What limits drains: the breaker, switches, confidence, budgets, shares and the last usable nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from made_records import AT, fleet, node, verdict
from made_situations import RESTART, WIDE, decide, drained, kinds, waiting

from sentinel.config.settings import Limits
from sentinel.model.approvals import plan_words
from sentinel.model.records import Cause, Fleet, Restart, Scope, StepKind
from sentinel.policy.drains import switches

OUT = {"flags": frozenset({"drain"}), "reason": "sentinel: inc gpu_fallen_off_bus"}


def ours(*names: str) -> Fleet:
    """Ten nodes, of which these carry our drain."""
    return fleet(
        [
            node(f"n{i}", flags=("drain",), reason="sentinel:abc gpu_memory_ecc") if f"n{i}" in names else node(f"n{i}")
            for i in range(1, 11)
        ]
    )


@pytest.mark.parametrize(("others", "refused"), [(3, ""), (4, "breaker")])
def test_breaker_counts_the_nodes_of_other_incidents(others: int, refused: str) -> None:
    failing = frozenset(f"n{i}" for i in range(2, 2 + others))
    plan = decide(verdict(drain=("n1",)), failing_nodes=failing, limits=Limits(drain_fraction=1.0, breaker_nodes=5))
    assert plan.refusal == refused
    assert bool(plan.steps) is not bool(refused)
    assert not refused or "5 nodes failed" in plan_words(plan)


def test_breaker_does_not_count_a_node_twice() -> None:
    failing = frozenset({"n1", "n2", "n3", "n4"})
    assert decide(verdict(drain=("n1",)), failing_nodes=failing, limits=WIDE).refusal == ""


def under(*, ours: int = 0, here: int = 12, there: int = 28) -> Fleet:
    """Nodes under leaf1 (n1 on, of which the last ``ours`` are drained by us) and others under leaf2."""
    found = [
        node(f"n{at}", topology="top.leaf1" if at <= here else "top.leaf2", **(OUT if here - ours < at <= here else {}))
        for at in range(1, here + there + 1)
    ]
    return fleet(found)


@pytest.mark.parametrize(
    ("others", "waits"), [((), False), (("n2",), False), (("n2", "n3"), True), (("n2", "n30"), False)]
)
def test_nodes_that_fail_together_under_a_switch_wait_for_people(others: tuple[str, ...], waits: bool) -> None:
    plan = decide(verdict(drain=("n1",)), failing_nodes=frozenset(others), fleet=under())
    assert (StepKind.DRAIN not in kinds(plan)) is waits
    assert [wait.kind for wait in plan.waits] == ["switch"] * waits
    if waits:
        assert kinds(plan) == RESTART  # elsewhere, without n1
        assert (
            "n1" in str(plan.steps[4].data) and plan.waits[0].what == ("drain n1",) and plan.waits[0].until is not None
        )
        assert "3 nodes under switch leaf1 failed within 60 s" in plan_words(plan) and "sentinel resume" in plan_words(
            plan
        )


def test_a_suspicion_lasts_while_its_nodes_are_bad_and_ends_when_a_person_has_looked() -> None:
    still = {"under_suspect_switch": frozenset({"n1", "n2", "n3"}), "fleet": under()}
    assert [wait.kind for wait in decide(verdict(drain=("n1",)), **still).waits] == ["switch"]
    assert StepKind.DRAIN in kinds(decide(verdict(drain=("n1",)), **still, breaker_passed=True))


def test_one_incident_may_name_all_nodes_of_a_switch() -> None:
    plan = decide(verdict(drain=("n1", "n2", "n3", "n30")), fleet=under())
    assert [step.node for step in plan.steps if step.kind is StepKind.DRAIN] == ["n30"]
    assert plan.waits[0].what == ("drain n1", "drain n2", "drain n3")


@pytest.mark.parametrize(("ours", "refused"), [(3, False), (4, True)])
def test_few_nodes_of_a_switch_are_drained(ours: int, refused: bool) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=under(ours=ours))
    assert (StepKind.DRAIN not in kinds(plan)) is refused
    if refused:
        assert "switch leaf1: 4 of its 12 nodes are drained by Sentinel; 4 are allowed" in plan_words(plan)
        elsewhere = decide(verdict(drain=("n30",)), fleet=under(ours=ours))
        assert StepKind.DRAIN in kinds(elsewhere)


def test_a_switch_is_one_whatever_else_slurm_says_of_where_its_nodes_are() -> None:
    """Of two topologies (25.05 and newer) a node's place names both; other nodes' places may come from another answer."""
    places = ["sw:leaf1,bl:b1", "sw:leaf1,bl:b2", "leaf1", "top.leaf1", "sw:leaf2,bl:b3"]
    there = fleet([node(f"n{at}", topology=place) for at, place in enumerate(places, 1)])
    assert switches(["n1", "n2", "n3", "n4", "n5"], there) == {"leaf1": ["n1", "n2", "n3", "n4"], "leaf2": ["n5"]}
    more = [node(f"m{at}", topology="sw:leaf2,bl:b4") for at in range(12)]
    moved = [node(name, topology=f"sw:leaf1,bl:{name}", **(OUT if name != "n1" else {})) for name in ("n1", "n2", "n3")]
    plan = decide(verdict(drain=("n1",)), limits=Limits(drain_per_switch=2), fleet=fleet([*moved, *more]))
    assert "switch leaf1: 2 of its 3 nodes are drained by Sentinel; 2 are allowed" in plan_words(plan)
    only = fleet([node("n1", topology="sw:leaf1,bl:b1"), node("n2", topology="sw:leaf1,bl:b2")])
    assert switches(["n1"], only) == {}  # all nodes share it


def test_what_a_switch_of_all_nodes_or_no_topology_says_counts_for_nothing() -> None:
    together = frozenset({"n2", "n3"})
    for cluster in (under(there=0), fleet(10)):
        assert StepKind.DRAIN in kinds(decide(verdict(drain=("n1",)), failing_nodes=together, fleet=cluster))


def test_the_breaker_names_the_switch_that_all_share() -> None:
    def words(others: frozenset[str]) -> str:
        return decide(verdict(drain=("n1",)), failing_nodes=others, fleet=under()).explanation

    assert "5 nodes failed within 60 s, all under switch leaf1 (n[1-5]):" in words(frozenset({"n2", "n3", "n4", "n5"}))
    assert "5 nodes failed within 60 s (n[1-4,30]):" in words(frozenset({"n2", "n3", "n4", "n30"}))


def test_breaker_leaves_verdicts_alone_that_drain_nothing() -> None:
    failing = frozenset(f"n{i}" for i in range(1, 9))
    plan = decide(verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD), failing_nodes=failing)
    assert kinds(plan) == [StepKind.HOLD]


@pytest.mark.parametrize(("confidence", "steps"), [(0.6, ["n1"]), (0.59, [])])
def test_confidence(confidence: float, steps: list[str]) -> None:
    plan = decide(verdict(drain=("n1",), confidence=confidence))
    assert drained(plan) == steps
    assert kinds(plan)[-7:] == RESTART  # the job goes on without the node all the same
    assert plan.steps[-3].data["nodes"] == "n1"
    assert ("Not drained: 0.59 sure" in plan_words(plan)) is not bool(steps)


def test_node_that_slurm_does_not_know_is_named_and_left() -> None:
    plan = decide(verdict(drain=("ghost",)))
    assert drained(plan) == [] and "Slurm does not know ghost" in plan_words(plan)
    assert plan.steps[4].data["nodes"] == ""  # Slurm would refuse an exclusion of it


def test_stranger_is_named_when_the_verdict_is_too_unsure_as_well() -> None:
    plan = decide(verdict(drain=("n1", "ghost"), confidence=0.1))
    assert "ghost" in plan_words(plan) and "Not drained" in plan_words(plan)


@pytest.mark.parametrize("reason", ["person: bad fan", "sentinel:abc gpu_memory_ecc"])
def test_node_that_is_drained_already_is_left_as_it_is(reason: str) -> None:
    nodes = [node("n1", flags=("drain",), reason=reason), *(node(f"n{i}") for i in range(2, 6))]
    plan = decide(verdict(drain=("n1",)), fleet=fleet(nodes))
    assert drained(plan) == [] and kinds(plan) == RESTART


@pytest.mark.parametrize(("minutes", "allowed"), [((5, 10), False), ((5, 61), True), ((5, 60), False)])
def test_budget_per_hour(minutes: tuple[int, ...], allowed: bool) -> None:
    drains = tuple(AT - timedelta(minutes=m) for m in minutes)
    plan = decide(verdict(drain=("n1",)), drains=drains, limits=Limits(drain_fraction=1.0, drain_per_hour=2))
    assert waiting(plan) == ("" if allowed else "drain-budget")
    assert allowed or "2 drains in the last hour; 2 are allowed" in plan_words(plan)


@pytest.mark.parametrize(("there", "allowed"), [(("n9",), True), (("n9", "n10"), False)])
def test_budget_in_nodes(there: tuple[str, ...], allowed: bool) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=ours(*there), limits=Limits(drain_fraction=1.0, drain_count=2))
    assert waiting(plan) == ("" if allowed else "drain-budget")


def test_budget_in_nodes_counts_only_ours() -> None:
    nodes = [node("n1"), *(node(f"n{i}", flags=("drain",), reason="a person") for i in range(2, 9)), node("n9")]
    plan = decide(verdict(drain=("n1",)), fleet=fleet(nodes), limits=Limits(drain_fraction=1.0, drain_count=1))
    assert drained(plan) == ["n1"]


@pytest.mark.parametrize(
    ("there", "asked", "allowed"),
    [((), ("n1",), True), (("n9",), ("n1",), True), (("n9", "n10"), ("n1",), False), ((), ("n1", "n2", "n3"), False)],
)
def test_share_of_a_partition(there: tuple[str, ...], asked: tuple[str, ...], allowed: bool) -> None:
    plan = decide(verdict(drain=asked), fleet=ours(*there), limits=Limits(drain_fraction=0.2))
    assert waiting(plan) == ("" if allowed else "drain-budget")
    assert allowed or "partition train" in plan_words(plan)


def test_of_several_bad_nodes_as_many_go_out_as_the_budget_allows_and_the_others_wait() -> None:
    asked = ("n1", "n2", "n3")
    plan = decide(verdict(drain=asked), fleet=ours("n9"), limits=Limits(drain_fraction=0.3))
    assert drained(plan) == ["n1", "n2"] and plan.refusal == ""
    (wait,) = plan.waits
    assert (wait.kind, wait.what) == ("drain-budget", ("drain n3",))
    assert kinds(plan)[2:] == RESTART
    assert set(str(plan.steps[6].data["nodes"]).split(",")) == set(asked)


def test_a_node_of_another_partition_goes_out_though_the_first_one_waits() -> None:
    nodes = [node("n1"), *(node(f"n{i}", partitions=("short",)) for i in range(2, 9))]
    plan = decide(verdict(drain=("n1", "n2")), fleet=fleet(nodes))
    assert drained(plan) == ["n2"] and [wait.what for wait in plan.waits] == [("drain n1",), ("restart 101",)]


def test_share_of_a_small_partition_allows_the_first() -> None:
    assert decide(verdict(drain=("n1",)), fleet=fleet(3), limits=Limits(drain_fraction=0.1)).refusal == ""


def test_every_partition_of_the_node_counts() -> None:
    nodes = [node(f"n{i}") for i in range(2, 11)] + [node("n1", partitions=("train", "tiny"))]
    plan = decide(verdict(drain=("n1",)), fleet=fleet(nodes))
    assert waiting(plan) == "last-healthy" and "partition tiny" in plan_words(plan)


@pytest.mark.parametrize("state", ["down", "unknown"])
def test_last_usable_nodes_are_never_drained(state: str) -> None:
    nodes = [node("n1"), node("n2", state=state), node("n3", flags=("not_responding",))]
    plan = decide(verdict(drain=("n1",)), fleet=fleet(nodes))
    assert plan.refusal == "last-healthy" and plan.steps == ()


@pytest.mark.parametrize(("keep", "refusal"), [(3, ""), (4, "last-healthy")])
def test_so_many_healthy_nodes_stay(keep: int, refusal: str) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=fleet(4), limits=Limits(drain_fraction=1.0, keep_healthy=keep))
    assert waiting(plan) == refusal
