"""Which jobs are restarted, without which nodes, and which are left alone."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from made_records import AT, ended, evidence, fleet, incident, job, node, verdict
from made_situations import RESTART, WIDE, decide, drained, kinds, past, waiting

from sentinel.config.settings import Limits
from sentinel.model.intent import Intent
from sentinel.model.records import Cause, Kind, Plan, Restart, Scope, Source, StepKind
from sentinel.model.vocabulary import QUEUED
from sentinel.policy import NodeHurt

OUT = {"flags": frozenset({"drain"}), "reason": "sentinel: inc gpu_fallen_off_bus"}


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
    release = next(s for s in plan.steps if s.kind is StepKind.RELEASE)
    assert release.data[QUEUED] == "Job 101 needs 2 nodes and 1 are usable: it waits in the queue."
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


@pytest.mark.parametrize("state", ["node_fail", "failed"])
@pytest.mark.parametrize("restart", [Restart.RESUME, Restart.HOLD])
def test_a_job_that_has_ended_with_requeue_0_is_neither_held_nor_restarted(state: str, restart: Restart) -> None:
    """In a finished job nothing can be changed: Slurm requeues it no more."""
    ended = dataclasses.replace(job(state=state), requeue=False, ended_at=AT)
    plan = decide(dataclasses.replace(verdict(drain=("n1",)), restart=restart), job=ended)
    assert kinds(plan) == [StepKind.DRAIN] and "made requeueable" not in plan.explanation
    assert "has ended with Requeue=0" in plan.explanation and "submit it again" in plan.explanation
    ended = dataclasses.replace(ended, requeue=True)
    assert StepKind.DRAIN in kinds(plan := decide(verdict(drain=("n1",)), job=ended)) and len(plan.steps) > 1


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("timeout", "scontrol requeue 101 gives it its time limit once more"),
        ("deadline", "reached its deadline: Slurm ended it on purpose, and it is not restarted; submit it again"),
    ],
)
@pytest.mark.parametrize("restart", [Restart.RESUME, Restart.RESUME_EXCLUDING, Restart.HOLD])
@pytest.mark.parametrize("opt_in", [True, False])
def test_a_job_that_slurm_ended_by_a_limit_is_neither_held_nor_restarted(
    state: str, words: str, restart: Restart, opt_in: bool
) -> None:
    over = dataclasses.replace(job(state=state), requeue=True, ended_at=AT)
    judged = dataclasses.replace(verdict(drain=("n1",)), restart=restart)
    plan = decide(judged, incident(ended(), evidence()), job=over, opt_in=opt_in)
    assert kinds(plan) == [StepKind.DRAIN] and words in plan.explanation and not plan.waits


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


@pytest.mark.parametrize(("least", "confidence", "sure"), [(0.62, 0.62, True), (0.62, 0.61, False), (0.0, 0.59, False)])
def test_running_job_is_stopped_by_no_suspicion_however_sure(least: float, confidence: float, sure: bool) -> None:
    """It may pass; what stops the job itself is its end or its silence."""
    said = evidence("nccl-remote", source=Source.JOB_LOG, job=101, attempt=0)
    judged = verdict(Cause.NETWORK_FABRIC, scope=Scope.LINK, confidence=confidence, suspect=("n1",))
    limits = dataclasses.replace(WIDE, stop_confidence=least)
    plan = decide(judged, incident(said), limits=limits)
    assert kinds(plan) == []
    why = "what its nodes say may pass" if sure else f"{confidence:.2f} sure, {max(least, 0.6):.2f} is asked for"
    assert f"Job 101 is not stopped: {why}." in plan.explanation
    silent = evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0, data={"step": 250})
    for sign in (ended(), silent):
        assert kinds(decide(judged, incident(said, sign), limits=limits)) == RESTART
    assert kinds(decide(judged, incident(said, silent), limits=limits, last_step=251)) == []


@pytest.mark.parametrize(("confidence", "stopped"), [(0.6, True), (0.59, False)])
def test_running_job_is_not_stopped_for_a_node_that_is_not_surely_enough_convicted(
    confidence: float, stopped: bool
) -> None:
    """Its node stays in service, too."""
    plan = decide(verdict(drain=("n1",), confidence=confidence), incident(evidence(Kind.XID, node="n1")))
    assert kinds(plan) == ([StepKind.DRAIN, *RESTART] if stopped else [])


def test_a_drivers_error_that_ends_what_uses_the_gpu_stops_its_job_though_no_sign_convicts_alone() -> None:
    passing = dataclasses.replace(verdict(drain=("n1",), cause=Cause.GPU_NVLINK), may_pass=("n1",))
    assert kinds(decide(passing, incident(evidence(Kind.XID, node="n1")))) == [StepKind.DRAIN, *RESTART]
    assert kinds(decide(passing, incident(evidence("nvlink-counters", node="n1")))) == [StepKind.DRAIN]
    done = decide(verdict(suspect=("n1",)), incident(evidence(Kind.XID, node="n1")), job=job(state="completed"))
    assert kinds(done) == [] and "Job 101 is done" in done.explanation


@pytest.mark.parametrize(
    ("asked", "steps"), [("restart", RESTART), ("hold", [StepKind.HOLD]), ("tell", [])], ids=["restart", "hold", "tell"]
)
@pytest.mark.parametrize("convicted", ["by signs that may pass", "not surely enough"])
def test_bad_numbers_stop_a_job_also_beside_what_stops_none(asked: Any, steps: list[StepKind], convicted: str) -> None:
    passing = convicted == "by signs that may pass"
    judged = dataclasses.replace(
        verdict(drain=("n1",), confidence=0.9 if passing else 0.59), may_pass=("n1",) if passing else ()
    )
    numbers = evidence(Kind.NUMBERS, source=Source.JOB_LOG, job=101, attempt=0, data={"step": 250})
    plan = decide(
        judged, incident(evidence(Kind.XID, node="n1"), numbers), intent=Intent(restart=True, bad_numbers=asked)
    )
    assert kinds(plan) == [*([StepKind.DRAIN] if passing else []), *steps], plan.explanation


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


@pytest.mark.parametrize("at_work", [True, False])
def test_a_job_whose_deadline_lets_no_restart_fit_is_left_alone(at_work: bool) -> None:
    """Slurm would end it unstarted, and with it what it can do until then."""
    there = dataclasses.replace(job(state="running" if at_work else "failed"), start_by=AT + timedelta(seconds=20))
    plan = decide(verdict(drain=("n1",)), job=there)
    assert kinds(plan) == [StepKind.DRAIN] and plan.waits == ()
    said = f"is not {'stopped' if at_work else 'restarted'}: its deadline is too near for a restart"
    assert said in plan.explanation and "2026-03-01 12:00 UTC" in plan.explanation
    later = dataclasses.replace(there, start_by=AT + timedelta(minutes=5))
    assert StepKind.REQUEUE_HOLD in kinds(decide(verdict(drain=("n1",)), job=later))
    assert StepKind.REQUEUE_HOLD in kinds(decide(verdict(drain=("n1",)), job=there, restart_takes_s=20.0))


def test_a_job_that_waits_as_our_forgotten_stop_left_it_is_restarted() -> None:
    left = dataclasses.replace(job(state="pending", restarts=1), nodes=())
    of_first = incident(ended())
    assert kinds(decide(verdict(suspect=("n2",)), of_first, job=left, left_stopped=True)) == RESTART
    held = dataclasses.replace(left, held=True, requeue_held=True)
    assert kinds(decide(verdict(suspect=("n2",)), of_first, job=held, left_stopped=True)) == RESTART
    later_one = dataclasses.replace(left, restarts=2)  # the attempt between has begun
    assert "requeued already" in decide(verdict(), of_first, job=later_one, left_stopped=True).explanation
