"""Every limit on what may be done about a verdict, one test each."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from made_records import AT, ended, evidence, fleet, incident, job, node, verdict

from sentinel import policy
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.intent import Intent
from sentinel.model.records import Cause, Fleet, Incident, Kind, Plan, Restart, Scope, Source, StepKind, Unread, Verdict
from sentinel.policy import NodeHurt, PastRestart, Situation
from sentinel.policy.drains import switches
from sentinel.policy.exclusions import excluded

ACT = Modes(default=Mode(drain="act", restart="act"))
OUT = {"flags": frozenset({"drain"}), "reason": "sentinel: inc gpu_fallen_off_bus"}
WIDE = Limits(drain_fraction=1.0)
RESUMED_AT_250 = PastRestart(AT - timedelta(hours=1), Cause.USER_CODE, 100, 250)
RESTART = [
    StepKind.REQUEUE_HOLD,
    StepKind.CHOOSE_CHECKPOINT,
    StepKind.QUARANTINE,
    StepKind.WRITE_RESUME,
    StepKind.EXCLUDE,
    StepKind.RELEASE,
    StepKind.CONFIRM,
]


def situation(**how: Any) -> Situation:
    return Situation(**{"fleet": fleet(10), "intent": Intent(restart=True), "job": job(), "last_step": 250, **how})


def decide(
    judged: Verdict,
    happened: Incident | None = None,
    *,
    limits: Limits = WIDE,
    modes: Modes = ACT,
    **how: Any,
) -> Plan:
    plan = policy.decide(
        judged,
        happened or incident(ended()),
        situation(**how),
        limits=limits,
        modes=modes,
        act_confidence=0.6,
        now=AT,
    )
    assert not (plan.steps and plan.refusal)  # never both
    return plan


def kinds(plan: Plan) -> list[StepKind]:
    return [step.kind for step in plan.steps]


def waiting(plan: Plan) -> str:
    """What the drain waits for."""
    return next((wait.kind for wait in plan.waits if any(name.startswith("drain") for name in wait.what)), "")


def drained(plan: Plan) -> list[str | None]:
    return [step.node for step in plan.steps if step.kind in policy.NODE_STEPS]


def ours(*names: str) -> Fleet:
    """Ten nodes, of which these carry our drain."""
    return fleet(
        [
            node(f"n{i}", flags=("drain",), reason="sentinel:abc gpu_memory_ecc") if f"n{i}" in names else node(f"n{i}")
            for i in range(1, 11)
        ]
    )


# --- the ordinary way --------------------------------------------------------------------------------------------------


def test_bad_node_goes_out_before_the_job_is_touched_and_release_comes_last() -> None:
    plan = decide(verdict(drain=("n1",), suspect=("n2",), onset_step=90))
    assert kinds(plan) == [StepKind.DRAIN, *RESTART]
    by_kind = {step.kind: step for step in plan.steps}
    assert by_kind[StepKind.EXCLUDE].data["nodes"] == "n1,n2"
    assert by_kind[StepKind.CHOOSE_CHECKPOINT].data["onset_step"] == 90
    assert {step.attempt for step in plan.steps[1:]} == {0}
    assert not plan.observe_only


def test_lost_node_is_set_down() -> None:
    assert kinds(decide(verdict(Cause.NODE_FAILURE, drain=("n1",))))[0] is StepKind.DOWN


def test_drained_node_that_dies_under_its_last_job_is_given_up_whatever_the_budget() -> None:
    nodes = [
        node("n1", state="mixed", flags=("drain",), reason="person: bad fan"),
        *(node(f"n{i}") for i in range(2, 6)),
    ]
    lost = verdict(Cause.NODE_FAILURE, drain=("n1",))
    plan = decide(lost, fleet=fleet(nodes), limits=Limits(drain_count=0, drain_per_hour=0))
    assert (plan.steps[0].kind, plan.steps[0].node) == (StepKind.DOWN, "n1")
    unsure = verdict(Cause.NODE_FAILURE, drain=("n1",), confidence=0.3)
    assert drained(decide(unsure, fleet=fleet(nodes))) == []
    together = dataclasses.replace(unsure, drain_confidence=0.9)
    assert decide(together, fleet=fleet(nodes)).steps[0].kind is StepKind.DOWN, (
        "the cause is open, not whether it is gone"
    )


def test_a_drained_node_that_answers_is_not_given_up_with_one_that_is_gone() -> None:
    nodes = [
        node("n1", state="idle", flags=("not_responding",)),
        node("n2", state="idle", flags=("drain",), reason="cable swap"),
        *(node(f"n{i}") for i in range(3, 7)),
    ]
    gone = evidence(Kind.NODE_UNREACHABLE, source=Source.PROBE, node="n1")
    both = verdict(Cause.NODE_FAILURE, drain=("n1", "n2"))
    plan = decide(both, incident(ended(), gone), fleet=fleet(nodes))
    assert drained(plan) == ["n1"]


def test_same_incident_gives_the_same_plan() -> None:
    assert decide(verdict(drain=("n1",))) == decide(verdict(drain=("n1",)))


def test_suspect_is_excluded_and_never_drained() -> None:
    plan = decide(verdict(suspect=("n2",)))
    assert drained(plan) == []
    assert plan.steps[4].data["nodes"] == "n2"


def test_application_fault_holds_the_job_and_says_why() -> None:
    plan = decide(verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, advice="fix the index"))
    assert kinds(plan) == [StepKind.HOLD]
    assert plan.steps[0].data["reason"] == "fix the index"


def test_hold_without_advice_names_the_cause() -> None:
    plan = decide(verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD))
    assert plan.steps[0].data["reason"] == "user_code"


# --- breaker -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "refused"), [(3, ""), (4, "breaker")])
def test_breaker_counts_the_nodes_of_other_incidents(others: int, refused: str) -> None:
    failing = frozenset(f"n{i}" for i in range(2, 2 + others))
    plan = decide(verdict(drain=("n1",)), failing_nodes=failing, limits=Limits(drain_fraction=1.0, breaker_nodes=5))
    assert plan.refusal == refused
    assert bool(plan.steps) is not bool(refused)
    assert not refused or "5 nodes failed" in plan.explanation


def test_breaker_does_not_count_a_node_twice() -> None:
    failing = frozenset({"n1", "n2", "n3", "n4"})
    assert decide(verdict(drain=("n1",)), failing_nodes=failing, limits=WIDE).refusal == ""


# --- switches ---------------------------------------------------------------------------------------------------------


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
        assert (
            "3 nodes under switch leaf1 failed within 60 s" in plan.explanation
            and "sentinel resume" in plan.explanation
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
        assert "switch leaf1: 4 of its 12 nodes are drained by Sentinel; 4 are allowed" in plan.explanation
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
    assert "switch leaf1: 2 of its 3 nodes are drained by Sentinel; 2 are allowed" in plan.explanation
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


# --- what is drained and what is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("confidence", "steps"), [(0.6, ["n1"]), (0.59, [])])
def test_confidence(confidence: float, steps: list[str]) -> None:
    plan = decide(verdict(drain=("n1",), confidence=confidence))
    assert drained(plan) == steps
    assert kinds(plan)[-7:] == RESTART  # the job goes on without the node all the same
    assert plan.steps[-3].data["nodes"] == "n1"
    assert ("Not drained: 0.59 sure" in plan.explanation) is not bool(steps)


def test_node_that_slurm_does_not_know_is_named_and_left() -> None:
    plan = decide(verdict(drain=("ghost",)))
    assert drained(plan) == [] and "Slurm does not know ghost" in plan.explanation
    assert plan.steps[4].data["nodes"] == ""  # Slurm would refuse an exclusion of it


def test_stranger_is_named_when_the_verdict_is_too_unsure_as_well() -> None:
    plan = decide(verdict(drain=("n1", "ghost"), confidence=0.1))
    assert "ghost" in plan.explanation and "Not drained" in plan.explanation


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
    assert allowed or "2 drains in the last hour; 2 are allowed" in plan.explanation


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
    assert allowed or "partition train" in plan.explanation


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
    assert waiting(plan) == "last-healthy" and "partition tiny" in plan.explanation


@pytest.mark.parametrize("state", ["down", "unknown"])
def test_last_usable_nodes_are_never_drained(state: str) -> None:
    nodes = [node("n1"), node("n2", state=state), node("n3", flags=("not_responding",))]
    plan = decide(verdict(drain=("n1",)), fleet=fleet(nodes))
    assert plan.refusal == "last-healthy" and plan.steps == ()


@pytest.mark.parametrize(("keep", "refusal"), [(3, ""), (4, "last-healthy")])
def test_so_many_healthy_nodes_stay(keep: int, refusal: str) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=fleet(4), limits=Limits(drain_fraction=1.0, keep_healthy=keep))
    assert waiting(plan) == refusal


# --- modes -------------------------------------------------------------------------------------------------------------


def test_installed_it_observes() -> None:
    plan = decide(verdict(drain=("n1",)), modes=Modes())
    assert plan.observe_only and kinds(plan) == [StepKind.DRAIN, *RESTART]  # and says what it would have done
    assert "Observe mode" in plan.explanation


def test_acting_is_switched_on_for_each_step() -> None:
    plan = decide(verdict(drain=("n1",)), modes=Modes(default=Mode(drain="act", restart="observe")))
    assert kinds(plan) == [StepKind.DRAIN] and not plan.observe_only
    assert "Observed only: requeue_hold 101" in plan.explanation
    plan = decide(verdict(drain=("n1",)), modes=Modes(default=Mode(drain="observe", restart="act")))
    assert kinds(plan) == RESTART and "drain n1" in plan.explanation


def test_acting_is_switched_on_for_each_partition() -> None:
    modes = Modes(partitions={"train": Mode(drain="act", restart="act")})
    assert not decide(verdict(drain=("n1",)), modes=modes).observe_only
    nodes = [node(f"n{i}", partitions=("debug",) if i in (1, 2) else ("train",)) for i in range(1, 10)]
    plan = decide(verdict(drain=("n1",)), modes=modes, fleet=fleet(nodes))
    assert kinds(plan) == RESTART and "drain n1" in plan.explanation  # the job's partition acts, the node's observes
    assert decide(verdict(drain=("n1",)), modes=modes, fleet=fleet(nodes), job=job(partition="debug")).observe_only


def test_partition_that_observes_under_a_default_that_acts() -> None:
    modes = Modes(default=Mode("act", "act"), partitions={"train": Mode()})
    assert decide(verdict(drain=("n1",)), modes=modes).observe_only


def test_node_in_no_known_partition_follows_the_default() -> None:
    nodes = [node("n1", partitions=()), node("n2")]
    modes = Modes(default=Mode("act", "act"), partitions={"train": Mode()})
    assert drained(decide(verdict(drain=("n1",)), job=None, fleet=fleet(nodes), modes=modes)) == ["n1"]


def test_paused_does_nothing_and_says_what_it_would() -> None:
    plan = decide(verdict(drain=("n1",)), paused=True)
    assert plan.observe_only and kinds(plan) == [StepKind.DRAIN, *RESTART]
    assert plan.explanation.startswith("Paused")


# --- the job -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{"job": None}, {"happened": incident(ended(), job=None)}, {"judged": verdict(restart=Restart.NONE)}],
    ids=["job is gone", "no job in it", "nothing to restart"],
)
def test_no_job_to_restart(how: dict[str, Any]) -> None:
    judged = how.pop("judged", verdict(suspect=("n2",)))
    assert decide(judged, how.pop("happened", None), **how).steps == ()


def test_job_that_did_not_ask_is_left_alone_but_its_bad_node_goes() -> None:
    plan = decide(verdict(drain=("n1",)), intent=Intent())
    assert kinds(plan) == [StepKind.DRAIN] and "did not ask to be restarted" in plan.explanation


def test_interactive_job_is_left_alone_but_its_bad_node_goes() -> None:
    plan = decide(verdict(drain=("n1",)), job=dataclasses.replace(job(), batch=False))
    assert kinds(plan) == [StepKind.DRAIN] and "salloc or srun" in plan.explanation


def test_broken_comment_is_told() -> None:
    plan = decide(verdict(suspect=("n2",)), intent=Intent(problem="unknown key 'x'"))
    assert plan.steps == () and "unknown key 'x'" in plan.explanation


@pytest.mark.parametrize(("there", "nodes"), [(4, "n1,n2"), (3, "n1")])
def test_suspect_is_spared_where_the_job_could_not_run_without_it(there: int, nodes: str) -> None:
    plan = decide(verdict(drain=("n1", "ghost"), suspect=("n2",)), fleet=fleet(there))
    assert next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"] == nodes
    assert ("Not excluded, since job 101 needs 2 nodes and 1 would be left: n2." in plan.explanation) is (there == 3)


def test_what_the_user_excluded_counts_as_gone() -> None:
    asked = dataclasses.replace(job(), excluded=("n3",), node_count=2)
    plan = decide(verdict(suspect=("n2",)), fleet=fleet(3), job=asked)
    assert next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"] == ""


def test_a_drained_node_that_the_job_cannot_live_without_is_not_excluded_as_well() -> None:
    """It gets no job while it is drained; excluded, the job could not even start when it is back."""
    plan = decide(verdict(drain=("n1",)), fleet=fleet(2), job=job(nodes=("n1", "n2")))
    assert drained(plan) == ["n1"] and "it waits in the queue" in plan.explanation
    assert next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"] == ""


def test_nodes_that_have_not_registered_since_slurmctld_was_started_are_not_gone() -> None:
    """Its drain may be lost with the old slurmctld: the list of nodes is all that keeps the job from the bad one."""
    there = fleet([dataclasses.replace(node(f"n{number}"), state="unknown") for number in (1, 2, 3, 4)])
    plan = decide(verdict(drain=("n1",), suspect=("n2",)), fleet=there, job=job(nodes=("n1", "n2")))
    assert next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"] == "n1,n2"


def test_a_bad_node_that_may_not_be_drained_is_excluded_and_the_restart_goes_on() -> None:
    plan = decide(verdict(drain=("n1",)), limits=Limits(drain_count=0))
    assert kinds(plan) == RESTART and waiting(plan) == "drain-budget" and plan.refusal == ""
    assert next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"] == "n1"


def test_a_restart_that_could_only_get_the_bad_node_again_waits_for_another() -> None:
    plan = decide(verdict(drain=("n1",)), fleet=fleet(2), limits=Limits(drain_count=0))
    assert plan.steps == () and [wait.kind for wait in plan.waits] == ["drain-budget", "no-node"]


def elastic(**how: Any) -> Plan:
    """n1 is bad and may not be drained, two nodes are there, and the job can run on one."""
    asked = dataclasses.replace(job(), comment='{"sentinel": {"restart": true, "nodes": [1, 2]}}')
    return decide(verdict(drain=("n1",)), fleet=fleet(2), limits=Limits(drain_count=0), job=asked, **how)


def test_an_elastic_job_starts_smaller_where_that_loses_less_than_waiting() -> None:
    plan = elastic()
    assert "starts smaller" in plan.explanation and "4.0 node-hours" in plan.explanation
    assert [wait.kind for wait in plan.waits] == ["drain-budget"]
    waits = elastic(wait_s=60.0)
    assert [wait.kind for wait in waits.waits] == ["drain-budget", "no-node"]
    assert "Waiting it is" in waits.waits[1].explanation


def test_every_node_that_its_agent_calls_bad_is_excluded() -> None:
    plan = decide(verdict(suspect=("n2",)), bad_nodes=frozenset({"n5", "n4"}))
    assert plan.steps[4].data["nodes"] == "n4,n5,n2"


def test_an_exclusion_of_ours_ends_when_the_node_is_proven_good_or_the_job_could_not_live_with_it() -> None:
    asked = dataclasses.replace(job(), excluded=("n3", "n4", "n9"), node_count=2)
    added = {"added_by_us": frozenset({"n3", "n4"}), "excluded_by_us": ("n3", "n4"), "job": asked}
    assert decide(verdict(suspect=("n2",)), **added).steps[4].data["nodes"] == "n2,n3,n4"
    assert decide(verdict(suspect=("n2",)), good_nodes=frozenset({"n3"}), **added).steps[4].data["nodes"] == "n2,n4"
    assert decide(verdict(suspect=("n2",)), fleet=fleet(4), **added).steps[4].data["nodes"] == "n2,n3"


def test_nodes_on_which_a_job_fails_in_turn_are_not_spared_in_turn() -> None:
    """Three nodes, two of them suspects, a job of two: sparing the one that failed before lets the job fail there again."""
    before = NodeHurt(AT - timedelta(minutes=30), Cause.GPU_NVLINK, "n1", 0)
    turn = {"hurt": (before,), "excluded_by_us": ("n1",), "added_by_us": frozenset({"n1"}), "last_step": 250}
    out = dataclasses.replace(node("n4"), **OUT)
    there = fleet([node(f"n{number}") for number in (1, 2, 3)] + [out])

    def left_out(**how: Any) -> tuple[object, str]:
        asked = {
            "fleet": there,
            "restarts": (past(250),),
            "job": dataclasses.replace(job(), node_count=2),
            **turn,
            **how,
        }
        plan = decide(verdict(suspect=("n2",)), **asked)
        return next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data["nodes"], plan.explanation

    nodes, words = left_out()
    assert nodes == "n2,n1" and "waits in the queue for another node, or a passed test of n1, at most 4 h" in words
    assert left_out(last_step=260)[0] == "n2"  # the attempt gained steps: no turn
    assert left_out(wait_s=None)[0] == "n2"  # waited for long enough
    assert left_out(fleet=fleet(3))[0] == "n2"  # Slurm could never start it


def test_a_node_that_is_proven_good_again_is_not_drained() -> None:
    plan = decide(verdict(drain=("n1",)), good_nodes=frozenset({"n1"}), job=None)
    assert plan.steps == () and plan.waits == () and "Proven good again: n1." in plan.explanation


def test_no_requeue_is_respected_unless_the_job_itself_asks_and_then_said() -> None:
    fixed = dataclasses.replace(job(), requeue=False)
    plan = decide(verdict(), job=fixed, intent=Intent(), opt_in=False)
    assert plan.steps == () and "--no-requeue" in plan.explanation
    plan = decide(verdict(), job=fixed)
    assert kinds(plan) == RESTART and "made requeueable" in plan.explanation


def test_site_may_restart_jobs_that_did_not_ask() -> None:
    assert kinds(decide(verdict(), intent=Intent(), opt_in=False)) == RESTART


def test_job_that_was_restarted_meanwhile_is_left_alone() -> None:
    plan = decide(verdict(drain=("n1",)), job=job(restarts=1))
    assert kinds(plan) == [StepKind.DRAIN] and "requeued already (attempt 1)" in plan.explanation


def test_a_job_that_another_incident_restarts_is_left_to_it() -> None:
    plan = decide(verdict(drain=("n1",)), recovered_by="inc0")
    assert kinds(plan) == [StepKind.DRAIN] and "by incident inc0" in plan.explanation


def test_a_job_that_slurm_has_forgotten_is_told_of() -> None:
    plan = decide(verdict(suspect=("n2",)), job=None)
    assert plan.steps == () and "no longer knows job 101" in plan.explanation


def test_every_component_of_a_heterogeneous_job_gets_a_resume_point_before_any_of_them_is_let_go() -> None:
    parts = [dataclasses.replace(job(name), het=het) for name, het in ((101, 101), (102, 101), (103, None), (104, 104))]
    plan = decide(verdict(suspect=("n2",)), fleet=fleet(10, parts), job=parts[0])
    assert [step.job for step in plan.steps if step.kind is StepKind.WRITE_RESUME] == [101, 102]
    assert [step.job for step in plan.steps if step.kind is StepKind.CHOOSE_CHECKPOINT] == [101, 102]
    assert [step.kind for step in plan.steps if step.job == 101] == RESTART
    assert kinds(plan)[-3:] == RESTART[-3:] and kinds(plan)[0] is StepKind.REQUEUE_HOLD


def test_attempt_is_the_jobs_own_where_the_evidence_names_none() -> None:
    plan = decide(verdict(), incident(ended(attempt=3), attempt=None), job=job(restarts=3))
    assert {step.attempt for step in plan.steps} == {3}


def test_job_that_waits_held_by_its_user_is_never_released() -> None:
    plan = decide(verdict(drain=("n1",)), job=job(state="pending", nodes=(), held=True))
    assert kinds(plan) == [StepKind.DRAIN] and "held" in plan.explanation


@pytest.mark.parametrize(
    ("item", "steps"),
    [
        (evidence("python-error", source=Source.JOB_LOG, job=101, attempt=0), []),
        (evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0), [StepKind.HOLD]),
        (ended(), [StepKind.HOLD]),
    ],
    ids=["goes on", "hangs", "ended"],
)
def test_program_that_goes_on_after_an_error_is_not_stopped(item: Any, steps: list[StepKind]) -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD)
    plan = decide(judged, incident(item))
    assert kinds(plan) == steps
    assert ("still runs" in plan.explanation) is not bool(steps)


@pytest.mark.parametrize(
    ("least", "confidence", "stopped"), [(0.62, 0.62, True), (0.62, 0.61, False), (0.0, 0.59, False)]
)
def test_running_job_is_stopped_by_a_sure_verdict_only(least: float, confidence: float, stopped: bool) -> None:
    seen = incident(evidence("nccl-remote", source=Source.JOB_LOG, job=101, attempt=0))
    judged = verdict(Cause.NETWORK_FABRIC, scope=Scope.LINK, confidence=confidence)
    plan = decide(judged, seen, limits=dataclasses.replace(WIDE, stop_confidence=least))
    assert kinds(plan) == (RESTART if stopped else [])
    asked = f"Job 101 is not stopped: {confidence:.2f} sure, {max(least, 0.6):.2f} is asked for."
    assert (asked in plan.explanation) is not stopped


# --- the restart budget ------------------------------------------------------------------------------------------------


def past(step_before: int | None, cause: Cause = Cause.GPU_MEMORY_ECC, resumed: int | None = None) -> PastRestart:
    return PastRestart(AT - timedelta(hours=1), cause, step_before, resumed)


@pytest.mark.parametrize(
    ("restarts", "last_step", "held"),
    [
        ((), 250, False),
        ((past(250),), 250, False),
        ((past(250), past(250)), 250, True),  # a third time at the same step
        ((past(250), past(240)), 250, True),  # not further than the first
        ((past(250), past(240)), 251, False),
        ((past(250), past(None), past(40), past(None)), 40, True),  # in between it printed nothing
        ((past(250), past(250)), 251, False),
        ((past(250), past(250)), 249, True),  # going back is no gain
        ((past(100), past(200), past(250)), 300, False),
        ((past(250), past(250)), None, True),  # watched, and it printed no step
        ((past(None), past(None)), 250, False),
        ((past(250, Cause.NODE_FAILURE), past(250)), 250, False),  # another cause in between
        ((past(250), past(250, Cause.NODE_FAILURE)), 250, False),
        (
            (past(250), past(250, Cause.NODE_FAILURE)) * 2,
            250,
            True,
        ),  # different causes, and nothing gained in five attempts
        ((past(100), *(past(250), past(250, Cause.NODE_FAILURE)) * 2)[:4], 250, False),  # the first of them gained
    ],
)
def test_restart_budget_is_counted_in_steps_gained(
    restarts: tuple[PastRestart, ...], last_step: int | None, held: bool
) -> None:
    plan = decide(verdict(suspect=("n2",)), restarts=restarts, last_step=last_step)
    assert (kinds(plan) == [StepKind.HOLD]) is held
    assert held or kinds(plan) == RESTART
    assert ("without a step gained" in plan.explanation) is held


@pytest.mark.parametrize(("most", "retries", "held"), [(3, None, True), (4, None, False), (50, 3, True), (2, 9, True)])
def test_upper_bound_of_restarts_is_the_smaller_of_site_and_comment(most: int, retries: int | None, held: bool) -> None:
    restarts = tuple(past(step) for step in (100, 200, 300))
    plan = decide(
        verdict(suspect=("n2",)),
        restarts=restarts,
        last_step=400,
        intent=Intent(restart=True, retries=retries),
        limits=dataclasses.replace(WIDE, restarts_per_job=most),
    )
    assert (kinds(plan) == [StepKind.HOLD]) is held
    assert ("Restarted 3 times" in plan.explanation) is held


@pytest.mark.parametrize(
    ("how", "confidence", "held"),
    [
        ({"intent": Intent(restart=True, retry_errors=True)}, 0.95, False),
        ({}, 0.95, True),  # its user did not ask for it
        ({}, 0.6, True),
        ({}, 0.59, False),  # nobody is sure that it was the program
        ({"intent": Intent(restart=True, retry_errors=True), "last_step": None}, 0.95, True),  # it came at once
        ({"intent": Intent(restart=True, retry_errors=True), "restarts": (RESUMED_AT_250,)}, 0.95, True),
        ({"intent": Intent(restart=True, retry_errors=True), "observed": False}, 0.95, True),
        ({"last_step": None}, 0.3, True),
    ],
)
def test_an_error_of_the_program_is_retried_if_its_user_asks_or_nobody_is_sure(
    how: dict[str, Any], confidence: float, held: bool
) -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, confidence=confidence)
    assert kinds(decide(judged, **how)) == ([StepKind.HOLD] if held else RESTART)


def test_an_error_that_comes_back_without_a_step_gained_is_held() -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, confidence=0.95)
    past_errors = tuple(dataclasses.replace(past(250), cause=Cause.USER_CODE, resumed_step=200) for _ in range(2))
    plan = decide(judged, restarts=past_errors, intent=Intent(restart=True, retry_errors=True))
    assert kinds(plan) == [StepKind.HOLD]
    assert "without a step gained" in plan.explanation


def test_a_later_checkpoint_that_was_resumed_from_before_is_nothing_gained() -> None:
    """40 is complete and fails, 30 is taken, 40 is made again, and so on."""
    there_and_back = [past(40, cause=Cause.UNKNOWN, resumed=40 if number % 2 == 0 else 30) for number in range(4)]
    plan = decide(verdict(Cause.UNKNOWN), restarts=tuple(there_and_back), last_step=40)
    assert kinds(plan) == [StepKind.HOLD] and "without a step gained" in plan.explanation


def test_a_checkpoint_that_is_left_out_is_a_reason_to_try_once_more() -> None:
    tried = past(65, cause=Cause.UNKNOWN, resumed=60), past(None, cause=Cause.UNKNOWN, resumed=60)
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=tried, last_step=None)) == [StepKind.HOLD]
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=tried, last_step=None, steps_back=True)) == RESTART
    often = (*tried, past(None, cause=Cause.UNKNOWN, resumed=50), past(None, cause=Cause.UNKNOWN, resumed=50))
    assert kinds(decide(verdict(Cause.UNKNOWN), restarts=often, last_step=None, steps_back=True)) == [StepKind.HOLD]


def unseen(step_before: int | None, resumed: int | None = None) -> PastRestart:
    return dataclasses.replace(past(step_before, resumed=resumed), observed=False)


@pytest.mark.parametrize(
    ("restarts", "how"),
    [
        ((past(250), past(250)), {"last_step": None, "observed": False}),
        ((past(250), past(250)), {"last_step": 250, "observed": False}),  # the daemon was away: it may have got further
        ((past(250), unseen(250)), {"last_step": 250}),
        ((past(250, resumed=100), past(250, resumed=200)), {"last_step": 250}),  # it left a later checkpoint
    ],
)
def test_not_known_whether_it_gained_never_counts_against_a_job(
    restarts: tuple[PastRestart, ...], how: dict[str, Any]
) -> None:
    assert kinds(decide(verdict(suspect=("n2",)), restarts=restarts, **how)) == RESTART


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


def test_the_nodes_beside_two_that_fail_a_job_in_turn_under_one_switch_are_left_out_before_older_suspects() -> None:
    before = NodeHurt(AT - timedelta(minutes=30), Cause.NCCL_HANG_UNKNOWN, "n1", 0)
    there = fleet([node(f"n{number}", topology=f"leaf{(number - 1) // 4}") for number in range(1, 13)])

    def left_out(nodes: int, **how: Any) -> tuple[object, object, str]:
        asked = {
            "fleet": there,
            "restarts": (past(250),),
            "job": dataclasses.replace(job(), node_count=nodes),
            "hurt": (before,),
            "last_step": 250,
            "excluded_by_us": ("n1", "n9"),
            "added_by_us": frozenset({"n1", "n9"}),
            **how,
        }
        plan = decide(verdict(suspect=("n2",)), **asked)
        data = next(s for s in plan.steps if s.kind is StepKind.EXCLUDE).data
        return data["nodes"], data.get("beside"), plan.explanation

    nodes, beside, words = left_out(8)
    assert (nodes, beside) == ("n2,n1,n3,n4", "n3,n4") and "in turn on n2 and n1 under switch leaf0" in words
    assert left_out(9)[:2] == ("n2,n1,n3", "n3")  # as many as the job can do without
    assert left_out(8, last_step=260)[1] is None  # the attempt gained steps: no turn
    elsewhere = dataclasses.replace(before, node="n5")
    assert left_out(8, hurt=(elsewhere,))[1] is None  # under another switch


# --- nodes that the user's own list names ------------------------------------------------------------------------------


def test_a_job_whose_own_list_names_a_node_that_leaves_is_said_to_wait_for_it() -> None:
    plan = decide(verdict(drain=("n1",)), required=("n1", "n2"))
    assert kinds(plan) == [StepKind.DRAIN, *RESTART]
    assert plan.explanation.endswith(
        "Job 101's own --nodelist names n1, which is drained: it waits until that node is back, unless the list is changed "
        "(scontrol update JobId=101 ReqNodeList=n2)."
    )
    assert "--nodelist" not in decide(verdict(drain=("n1",)), required=("n2", "n3")).explanation


def test_a_job_that_slurm_ended_and_calls_failed_stays_over_and_says_how_it_comes_back() -> None:
    asked = verdict(Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, restart=Restart.NONE, drain=())
    over = dataclasses.replace(job(state="failed"), requeue=True, array=(101, 3))
    plan = decide(asked, job=over)
    assert plan.steps == () and plan.explanation.endswith("job 101 back by itself; scontrol requeue 101_3 does.")
    assert decide(asked, job=dataclasses.replace(over, requeue=False)).explanation.endswith("; submit it again.")
    for other in (job(state="timeout"), job(state="pending"), job(), None):
        assert decide(asked, job=other).explanation == ""
    assert decide(dataclasses.replace(asked, cause=Cause.UNKNOWN), job=over).explanation == ""


def test_the_list_of_one_task_of_an_array_is_changed_not_that_of_all() -> None:
    task = dataclasses.replace(job(101), array=(101, 3))
    there = fleet([node("n1", state="down"), node("n2")])
    assert "JobId=101_3 ReqNodeList=n2" in policy.waits_for_required(task, there, ("n1", "n2"))


def test_of_several_such_nodes_the_ones_that_are_out_of_service_are_named() -> None:
    there = fleet([node("n1", state="down"), node("n2", flags=("drain",)), *(node(f"n{i}") for i in range(3, 11))])
    words = decide(verdict(drain=()), fleet=there, required=("n1", "n2")).explanation
    assert "names n[1-2], which are drained or down: it waits until those nodes are back" in words
    assert "JobId=101 ReqNodeList=)" in words, "an empty list asks for any nodes"
    not_known = fleet([node("n1", state="unknown"), *(node(f"n{i}") for i in range(3, 11))])
    assert "--nodelist" not in decide(verdict(drain=()), fleet=not_known, required=("n1", "n2", "n3")).explanation


def test_a_suspect_that_the_jobs_own_list_names_is_not_excluded_and_said_so() -> None:
    """Slurm would never start the job, and forget its priority."""
    plan = decide(verdict(suspect=("n2", "n3")), required=("n2",))
    assert next(step for step in plan.steps if step.kind is StepKind.EXCLUDE).data["nodes"] == "n3"
    assert "Not excluded, since the job's own --nodelist names it: n2." in plan.explanation


def test_a_bad_node_of_the_jobs_own_list_that_stays_in_service_is_said_to_be_kept_from_it() -> None:
    modes = Modes(default=Mode(drain="suggest", restart="act"))
    plan = decide(verdict(drain=("n1",)), required=("n1", "n2"), modes=modes)
    assert plan.explanation.startswith(
        "Job 101's own --nodelist names n1, which it is kept from, as that node is bad and not drained: it waits until that "
        "node is proven good, unless the list is changed (scontrol update JobId=101 ReqNodeList=n2)."
    )
