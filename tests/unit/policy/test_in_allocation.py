"""When a job is restarted in its allocation, on which of its nodes, and when it is requeued instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from made_records import AT, ended, evidence, fleet, incident, job, node, verdict

from sentinel import policy
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.intent import Intent, intent_of
from sentinel.model.records import Incident, JobView, Kind, Plan, Restart, Source, StepKind, Verdict
from sentinel.policy import NextRun, Situation, next_run

SPARES = Intent(restart=True, in_allocation=3)
BROKEN = evidence(Kind.XID, source=Source.KERNEL, node="n2")


def spared(**how: Any) -> JobView:
    return dataclasses.replace(job(nodes=("n1", "n2", "n3", "n4")), batch_host="n1", **how)


def decide(judged: Verdict, about: Incident | None = None, **how: Any) -> Plan:
    seen = Situation(**{"fleet": fleet(10), "intent": SPARES, "job": spared(), "last_step": 250, **how})
    return policy.decide(
        judged,
        about or incident(BROKEN),
        seen,
        limits=Limits(drain_fraction=1.0),
        modes=Modes(default=Mode("act", "act")),
        act_confidence=0.6,
        now=AT,
    )


def kinds(plan: Plan) -> list[StepKind]:
    return [step.kind for step in plan.to_do]


def test_it_goes_on_on_the_good_nodes_that_it_holds() -> None:
    plan = decide(verdict(drain=("n2",)))
    assert kinds(plan) == ["drain", "stop_run", "choose_checkpoint", "quarantine", "start_run", "confirm"]
    assert "on n1,n3,n4: no requeue, no wait in the queue, 0 of its spare nodes are left. It gives n2 back" in (
        plan.explanation
    )


@pytest.mark.parametrize(
    ("nodes", "cost"),
    [(10, "for 4, with 9 usable."), (4, "for 4, with 3 usable: it would start with fewer spare nodes.")],
)
def test_what_a_requeue_would_cost_instead_is_said(nodes: int, cost: str) -> None:
    held = spared(comment='{"sentinel": {"restart": true, "in_allocation": 3}}')
    explained = decide(verdict(drain=("n2",)), fleet=fleet(nodes), job=held).explanation
    assert f"A requeue would give up 4 nodes and wait in the queue {cost}" in explained


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"intent": Intent(restart=True)}, ""),
        ({"intent": Intent(restart=True, in_allocation=4)}, "3 good nodes are left of the 4"),
        ({"intent": SPARES, "fleet": fleet([node("n1")])}, "1 good node is left of the 3"),
        ({"job": spared(state="completing")}, "its script is over"),
        ({"job": spared(hold_kept=True)}, "its user holds it"),
        ({"job": spared(het=101)}, "it is heterogeneous"),
        ({"allocation_failed": True}, "its launcher did not start there"),
    ],
)
def test_else_it_is_requeued_and_why_is_said(how: dict[str, Any], why: str) -> None:
    plan = decide(verdict(drain=("n2",)), **how)
    assert StepKind.REQUEUE_HOLD in kinds(plan) and StepKind.START_RUN not in kinds(plan)
    assert why in plan.explanation and (bool(why) == ("not restarted in its allocation" in plan.explanation))


def test_a_job_whose_script_ended_or_runs_on_the_bad_node_is_requeued() -> None:
    assert StepKind.REQUEUE_HOLD in kinds(decide(verdict(drain=("n2",)), incident(BROKEN, ended())))
    first = decide(verdict(drain=("n1",)), incident(evidence(Kind.XID, source=Source.KERNEL, node="n1")))
    assert StepKind.REQUEUE_HOLD in kinds(first) and "its script runs on n1" in first.explanation


def test_a_spare_node_that_breaks_is_given_back_and_the_training_goes_on() -> None:
    plan = decide(verdict(drain=("n4",)), run_nodes=("n1", "n2", "n3"))
    assert kinds(plan) == ["drain", "give_back"]
    assert plan.to_do[-1].data["given_up"] == "n4"
    stopped = incident(BROKEN, evidence(Kind.STALL, source=Source.PROGRESS, job=101))
    assert StepKind.STOP_RUN in kinds(decide(verdict(drain=("n4",)), stopped, run_nodes=("n1", "n2", "n3")))


def test_a_suspect_on_which_nothing_of_the_job_runs_does_not_stop_it() -> None:
    spare = decide(verdict(drain=(), suspect=("n4",)), run_nodes=("n1", "n2", "n3"))
    assert kinds(spare) == ["give_back"] and spare.to_do[-1].data["given_up"] == "n4"
    both = decide(verdict(drain=(), suspect=("n4", "n2")), run_nodes=("n1", "n2", "n3"))
    assert StepKind.STOP_RUN in kinds(both)


@pytest.mark.parametrize(
    ("judged", "how"),
    [
        (verdict(drain=("n4",)), {"intent": dataclasses.replace(SPARES, retries=0)}),
        (verdict(drain=("n4",), restart=Restart.HOLD), {}),
    ],
)
def test_no_budget_of_restarts_stops_a_job_that_only_loses_a_spare_node(judged: Verdict, how: dict[str, Any]) -> None:
    assert kinds(decide(judged, run_nodes=("n1", "n2", "n3"), **how)) == ["drain", "give_back"]


def test_suspects_are_left_out_while_there_are_others() -> None:
    everything = fleet(10)
    found = next_run(spared(), everything, 3, bad=(), suspect=("n3",))
    assert found == NextRun(("n1", "n2", "n4"), ("n3",), 0)
    found = next_run(spared(), everything, 3, bad=("n4",), suspect=("n3", "n2"))
    assert found == NextRun(("n1", "n2", "n3"), ("n4",), 0)
    assert next_run(spared(), everything, 2, bad=("n4",), suspect=("n3", "n2")) == NextRun(
        ("n1", "n2"), ("n3", "n4"), 0
    )  # of two suspects the likelier one goes first


def test_nodes_that_are_out_of_service_are_not_taken_and_not_given_back() -> None:
    nodes = [node("n1"), node("n2", flags={"drain"}), node("n3"), node("n4")]
    assert next_run(spared(), fleet(nodes), 3, bad=(), suspect=()) == NextRun(("n1", "n3", "n4"), (), 0)


@pytest.mark.parametrize("value", ["0", "true", '"3"', "65537", "[3]", "-1"])
def test_a_number_in_the_comment_that_is_none_is_said(value: str) -> None:
    found = intent_of(f'{{"sentinel": {{"in_allocation": {value}}}}}')
    assert found.problem.startswith('"in_allocation" in the comment') and found.in_allocation is None
