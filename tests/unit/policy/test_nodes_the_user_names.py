"""Nodes that the user's own list names, and jobs that Slurm itself ended."""

from __future__ import annotations

import dataclasses

import pytest
from made_records import fleet, job, node, verdict
from made_situations import RESTART, decide, kinds

from sentinel import policy
from sentinel.config.settings import Mode, Modes
from sentinel.model.records import Cause, Restart, StepKind


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
    assert plan.steps == () and plan.explanation.endswith(
        "Slurm ended job 101 on purpose (preemption, a limit, a request): neither Slurm nor Sentinel puts it back by "
        "itself; scontrol requeue 101_3 does."
    )
    assert decide(asked, job=dataclasses.replace(over, requeue=False)).explanation.endswith("; submit it again.")
    for other in (job(state="timeout"), job(state="pending"), job(), None):
        assert decide(asked, job=other).explanation == ""
    assert decide(dataclasses.replace(asked, cause=Cause.UNKNOWN), job=over).explanation == ""


@pytest.mark.parametrize("cause", [Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Cause.USER_CODE])
def test_a_job_that_slurm_calls_preempted_stays_over_whatever_was_wrong_before(cause: Cause) -> None:
    asked = cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    judged = verdict(cause, restart=Restart.NONE if asked else Restart.HOLD, drain=())
    over = dataclasses.replace(job(state="preempted"), requeue=True)
    plan = decide(judged, job=over, last_save=250)
    assert plan.steps == () and plan.explanation.endswith(
        "Slurm preempted job 101 by the site's rules and did not requeue it: no node is to blame. To go on, scontrol "
        "requeue 101 puts it back; its script resumes from its newest checkpoint by itself; the newest save that was seen "
        "is of step 250."
    )
    again = decide(judged, job=dataclasses.replace(over, requeue=False)).explanation
    assert again.endswith("To go on, submit it again; its script resumes from its newest checkpoint by itself.")


def test_a_preempted_job_whose_node_is_drained_is_not_told_that_no_node_is_to_blame() -> None:
    over = dataclasses.replace(job(state="preempted"), requeue=True)
    said = decide(verdict(Cause.GPU_FALLEN_OFF_BUS, drain=("n1",)), job=over).explanation
    assert "Slurm preempted job 101" in said and "blame" not in said and "did not requeue it. To go on" in said


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
