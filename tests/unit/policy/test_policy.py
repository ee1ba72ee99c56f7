"""The ordinary plans: what goes out first, what holds a job, and modes that observe or act."""

from __future__ import annotations

import dataclasses

from made_records import ended, evidence, fleet, incident, job, node, verdict
from made_situations import RESTART, decide, drained, kinds

from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.records import Cause, Kind, Restart, Scope, Source, StepKind


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


def test_installed_it_observes() -> None:
    plan = decide(verdict(drain=("n1",)), modes=Modes())
    assert plan.observe_only and kinds(plan) == [StepKind.DRAIN, *RESTART]  # and says what it would have done
    assert "Observe mode" in plan.explanation


def test_acting_is_switched_on_for_each_step() -> None:
    plan = decide(verdict(drain=("n1",)), modes=Modes(default=Mode(drain="act", restart="observe")))
    assert kinds(plan) == [StepKind.DRAIN] and not plan.observe_only
    assert plan.waits[0].explanation == "Observed only: restart 101."
    plan = decide(verdict(drain=("n1",)), modes=Modes(default=Mode(drain="observe", restart="act")))
    assert kinds(plan) == RESTART and plan.waits[0].explanation == "Observed only: drain n1."


def test_acting_is_switched_on_for_each_partition() -> None:
    modes = Modes(partitions={"train": Mode(drain="act", restart="act")})
    assert not decide(verdict(drain=("n1",)), modes=modes).observe_only
    nodes = [node(f"n{i}", partitions=("debug",) if i in (1, 2) else ("train",)) for i in range(1, 10)]
    plan = decide(verdict(drain=("n1",)), modes=modes, fleet=fleet(nodes))
    # The job's partition acts, the node's observes.
    assert kinds(plan) == RESTART and plan.waits[0].explanation == "Observed only: drain n1."
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
