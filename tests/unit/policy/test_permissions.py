"""What the modes allow, what they ask for, and for how long an answer holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from made_records import AT, ended, fleet, incident, job, node, verdict

from sentinel import policy
from sentinel.config.modes import CauseMode
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.approvals import Answer
from sentinel.model.intent import Intent
from sentinel.model.records import Cause, Plan, Restart, StepKind, Verdict, Wait
from sentinel.policy import Situation

SUGGEST = Modes(default=Mode("suggest", "suggest"), approval_s=600.0)
CAUSE = verdict().cause


def decide(judged: Verdict, modes: Modes = SUGGEST, **how: Any) -> Plan:
    seen = Situation(**{"fleet": fleet(10), "intent": Intent(restart=True), "job": job(), "last_step": 250, **how})
    limits = Limits(drain_fraction=1.0)
    return policy.decide(judged, incident(ended()), seen, limits=limits, modes=modes, act_confidence=0.6, now=AT)


def yes(*what: str, ago_s: float = 1.0, cause: Cause = CAUSE, approved: bool = True) -> Answer:
    return Answer(AT - timedelta(seconds=ago_s), "olga", approved, what, cause)


def drained(plan: Plan) -> list[str | None]:
    return [step.node for step in plan.to_do if step.kind is StepKind.DRAIN]


def the_waits(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(wait.kind, wait.what) for wait in plan.waits]


def test_nothing_is_allowed_and_all_of_it_is_asked_for_at_once() -> None:
    plan = decide(verdict(drain=("n1",)))
    assert plan.to_do == () and the_waits(plan) == [("approval", ("drain n1", "restart 101"))]
    assert plan.waits[0].until == AT + timedelta(seconds=600)


def test_an_approval_allows_what_it_names_and_the_rest_is_asked_for() -> None:
    plan = decide(verdict(drain=("n1", "n2")), answers=(yes("drain n1"),))
    assert drained(plan) == ["n1"] and len(plan.to_do) == 1
    assert the_waits(plan) == [("approval", ("drain n2", "restart 101"))]


def test_an_approval_of_a_restart_is_none_of_a_hold() -> None:
    hold = verdict(Cause.USER_CODE, restart=Restart.HOLD)
    plan = decide(hold, answers=(yes("restart 101", cause=Cause.USER_CODE),))
    assert plan.to_do == () and the_waits(plan) == [("approval", ("hold 101",))]


def test_an_approval_is_for_its_cause_and_holds_no_longer_than_a_request() -> None:
    judged = verdict(drain=("n1",))
    other = next(cause for cause in Cause if cause is not CAUSE)
    for answer in (yes("drain n1", "restart 101", cause=other), yes("drain n1", "restart 101", ago_s=601.0)):
        assert decide(judged, answers=(answer,)).to_do == ()
    assert decide(judged, answers=(yes("drain n1", "restart 101", ago_s=599.0),)).waits == ()


def test_the_newest_answer_counts() -> None:
    no = yes("drain n1", "restart 101", ago_s=0.5, approved=False)
    plan = decide(verdict(drain=("n1",)), answers=(yes("drain n1", "restart 101"), no))
    assert plan.to_do == () and the_waits(plan) == [("refused", ("drain n1", "restart 101"))]
    assert "refused by olga" in plan.explanation


def test_a_refusal_outlives_the_change_to_act_until_a_person_says_yes() -> None:
    no = yes("drain n1", ago_s=30.0, approved=False)
    act = Modes(default=Mode("act", "act"), approval_s=600.0)
    plan = decide(verdict(drain=("n1", "n2")), act, answers=(no,))
    assert drained(plan) == ["n2"] and the_waits(plan) == [("refused", ("drain n1",))]
    assert next(step.data["nodes"] for step in plan.to_do if step.kind is StepKind.EXCLUDE) == "n1,n2"
    assert drained(decide(verdict(drain=("n1", "n2")), act, answers=(no, yes("drain n1")))) == ["n1", "n2"]
    other = next(cause for cause in Cause if cause is not CAUSE)
    assert drained(decide(verdict(drain=("n1",)), act, answers=(replace(no, cause=other),))) == ["n1"]


def test_a_refused_restart_is_not_done_in_act() -> None:
    plan = decide(verdict(), Modes(default=Mode("act", "act")), answers=(yes("restart 101", approved=False),))
    assert plan.to_do == () and the_waits(plan) == [("refused", ("restart 101",))]


def test_a_request_keeps_its_time_while_it_does_not_grow() -> None:
    began = AT - timedelta(seconds=300)
    request = Wait("approval", began, "", ("drain n1", "restart 101"), began + timedelta(seconds=600))
    same = decide(verdict(drain=("n1",)), request=request, request_cause=CAUSE)
    assert (same.waits[0].since, same.waits[0].until) == (began, request.until)
    for judged, cause in ((verdict(drain=("n1", "n2")), CAUSE), (verdict(drain=("n1",)), Cause.DISK_FULL)):
        assert decide(judged, request=request, request_cause=cause).waits[0].since == AT


def test_a_request_that_nobody_answers_lapses_and_one_that_grew_is_asked_anew() -> None:
    began = AT - timedelta(seconds=700)
    request = Wait("approval", began, "", ("drain n1", "restart 101"), began + timedelta(seconds=600))
    lapsed = decide(verdict(drain=("n1",)), request=request, request_cause=CAUSE)
    assert [wait.kind for wait in lapsed.waits] == ["approval-lapsed"] and lapsed.to_do == ()
    again = decide(verdict(drain=("n1",)), request=lapsed.waits[0], request_cause=CAUSE)
    assert again.waits == lapsed.waits
    assert decide(verdict(drain=("n1", "n2")), request=lapsed.waits[0], request_cause=CAUSE).waits[0].kind == "approval"


def test_observe_suggest_and_act_side_by_side() -> None:
    modes = Modes(
        default=Mode("act", "suggest", {"disk_full": CauseMode(drain="observe")}), partitions={"short": Mode()}
    )
    nodes = [*(node(f"n{i}") for i in range(1, 9)), *(node(f"n{i}", partitions=("short",)) for i in (9, 10, 11))]
    plan = decide(verdict(drain=("n1", "n9")), modes, fleet=fleet(nodes))
    assert drained(plan) == ["n1"]
    assert the_waits(plan) == [("approval", ("restart 101",)), ("observe", ("drain n9",))]
    other = decide(verdict(Cause.DISK_FULL, drain=("n1",)), modes, fleet=fleet(nodes))
    assert other.to_do == () and the_waits(other) == [("approval", ("restart 101",)), ("observe", ("drain n1",))]


def test_of_several_named_partitions_the_most_cautious_counts() -> None:
    modes = Modes(default=Mode("act", "act"), partitions={"a": Mode("act", "suggest"), "b": Mode("suggest", "act")})
    assert modes.of(("a", "b")) == Mode("suggest", "suggest") == modes.of(("c", "b", "a"))
    assert modes.of(("c",)) == Mode("act", "act") == modes.of(())
    waiting = decide(verdict(drain=("n1",)), modes, job=job(state="pending", partition="a,c"))
    assert ("approval", ("restart 101",)) in the_waits(waiting)


def test_a_node_in_a_maintenance_reservation_is_not_drained_before_it_ends() -> None:
    act = Modes(default=Mode("act", "act"))
    nodes = [node("n1", flags=frozenset({"maintenance"})), *(node(f"n{i}") for i in range(2, 9))]
    plan = decide(verdict(drain=("n1",)), act, fleet=fleet(nodes))
    assert drained(plan) == [] and ("maintenance", ("drain n1",)) in the_waits(plan)
    assert any(step.kind is StepKind.REQUEUE_HOLD for step in plan.to_do)  # the job leaves it
    anyway = Modes(default=Mode("act", "act"), respect_maintenance=False)
    assert drained(decide(verdict(drain=("n1",)), anyway, fleet=fleet(nodes))) == ["n1"]


def test_a_job_is_kept_off_a_convicted_node_in_maintenance_for_when_that_ends() -> None:
    act = Modes(default=Mode("act", "act"))
    n1 = node("n1", flags=frozenset({"maintenance"}))
    others = [node("n2"), node("n3", state="down"), node("n4", state="down")]
    plan = decide(verdict(drain=("n1",)), act, fleet=fleet([n1, *others]))
    assert [step.data["nodes"] for step in plan.to_do if step.kind is StepKind.EXCLUDE] == ["n1"], (
        "too few are left by now"
    )
    all_it_has = decide(verdict(drain=("n1",)), act, fleet=fleet([n1, node("n2")]))
    assert not all_it_has.to_do and ("no-node", ("restart 101",)) in the_waits(all_it_has)


def test_a_job_that_may_start_in_another_partition_has_the_most_cautious_mode_and_all_their_nodes() -> None:
    """Slurm shows of a running job the one in which it began."""
    small = [node(f"n{i}", partitions=("small",)) for i in (1, 2)]
    gpu = [node(f"n{i}", partitions=("gpu",)) for i in (3, 4)]
    there = replace(job(partition="small"), partitions=("small", "gpu"))
    act = Mode("act", "act")
    modes = Modes(default=act, partitions={"gpu": Mode("act", "observe")})
    plan = decide(verdict(suspect=("n1",)), modes, fleet=fleet([*small, *gpu]), job=there)
    assert plan.observe_only and the_waits(plan) == [("observe", ("restart 101",))]
    plan = decide(verdict(suspect=("n1",)), Modes(default=act), fleet=fleet([*small, *gpu]), job=there)
    assert [step.data["nodes"] for step in plan.to_do if step.kind is StepKind.EXCLUDE] == ["n1"]
    assert "Not excluded" not in plan.explanation
