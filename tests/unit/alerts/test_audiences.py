"""What the owner of a job and what operators are told of one incident: each what they need, and only what is so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from made_records import AT, ended, evidence, incident, job, plan, step, verdict

from sentinel.alerts import IncidentFacts, Stage, for_operators, for_owner, severity_of, stage_of
from sentinel.alerts.text import culprit_words
from sentinel.model.approvals import APPROVAL, LAPSED, REFUSED
from sentinel.model.records import (
    Cause,
    Ground,
    Outcome,
    Restart,
    Result,
    Scalar,
    Scope,
    Source,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.model.vocabulary import CAUSE_WORDS, QUEUED

DRAIN = step(StepKind.DRAIN, node="n2")
REQUEUE = step(StepKind.REQUEUE_HOLD, job=8801, attempt=0)
CHOOSE = step(StepKind.CHOOSE_CHECKPOINT, job=8801, attempt=0)
RELEASE = step(StepKind.RELEASE, job=8801, attempt=0)
CONFIRM = step(StepKind.CONFIRM, job=8801, attempt=0)
HOLD = step(StepKind.HOLD, job=8801, attempt=0)
RESTART = plan(DRAIN, REQUEUE, CHOOSE, RELEASE, CONFIRM)


def done(this: Any, result: Result = Result.DONE, reason: str = "", **data: Scalar) -> Outcome:
    return Outcome(this, result, AT, reason, data)


CHOSEN = done(CHOOSE, path="/shared/s25", step=25, tier="global")


def gpu_lost(**changes: Any) -> Verdict:
    item = dataclasses.replace(
        evidence(node="n2", text="NVRM: Xid 79", data={"serial": "1650522003820"}),
        where=dataclasses.replace(evidence(node="n2").where, gpu=5, gpu_uuid="GPU-7"),
    )
    made = verdict(Cause.GPU_FALLEN_OFF_BUS, drain=("n2",), gpus=("n2:5",), advice="reboot the node")
    return dataclasses.replace(made, confidence=0.99, grounds=(Ground(item, 6.0), Ground(item, 5.0)), **changes)


def preempted() -> IncidentFacts:
    judged = verdict(Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, restart=Restart.NONE, drain=(), scope=Scope.APPLICATION)
    made = dataclasses.replace(plan(), explanation="Slurm does not put job 8801 back by itself; submit it again.")
    return facts(
        incident=incident(ended(8801), job=8801), verdict=judged, plan=made, outcomes=(), job=job(8801, state="failed")
    )


def facts(**changes: Any) -> IncidentFacts:
    given = {
        "incident": incident(job=8801, id="51a7"), "verdict": gpu_lost(), "plan": RESTART,
        "outcomes": (done(DRAIN), done(REQUEUE), CHOSEN, done(RELEASE), done(CONFIRM)),
        "job": job(8801, name="pretrain-7b", partition="gpu"), "last_step": 37, "step_time_s": 40.0, "gpus": 24,
        "nodes_now": ("n4", "n5", "n6"), "cluster": "alps", **changes,
    }  # fmt: skip
    return IncidentFacts(**given)


def test_owner_of_a_job_that_runs_again() -> None:
    assert for_owner(facts()) == (
        "Job 8801 (pretrain-7b) runs again from step 25 on n4, n5, n6. 12 steps are made again (8 min, 3.2 GPU-hours). "
        "A GPU fell off the bus (GPU 5 of n2). Nothing to do. More: sentinel why 8801"
    )


def test_operators_of_the_same() -> None:
    assert for_operators(facts()).splitlines() == [
        "WARNING: A GPU fell off the bus (GPU 5 of n2).",
        "Where: cluster alps, partition gpu, job 8801 (pretrain-7b) of ada.",
        "Serial number: 1650522003820.",
        "UUID: GPU-7.",
        "Seen: NVRM: Xid 79",
        "State: running again.",
        "Done: drained n2; restarted the job from step 25 on n4, n5, n6.",
        "Advice: reboot the node",
        "More: sentinel why 51a7",
    ]


WAIT = Wait("drain-budget", AT, "8 nodes are drained; 8 are allowed.", ("drain n2",))


@pytest.mark.parametrize(
    ("made", "outcomes", "stage", "words"),
    [
        (RESTART, (), Stage.RESTARTING, "is being restarted."),
        (RESTART, (CHOSEN, done(RELEASE)), Stage.RESTARTING, "is being restarted from step 25."),
        (RESTART, (CHOSEN, done(CONFIRM, Result.NOT_KNOWN)), Stage.RESTARTING, "is being restarted from step 25."),
        (RESTART, (CHOSEN, done(CONFIRM)), Stage.RUNNING, "runs again from step 25"),
        (RESTART, (CHOSEN, done(RELEASE, Result.FAILED, "no such job.")), Stage.FAILED, "restarted: no such job."),
        (RESTART, (done(DRAIN, Result.FAILED, "x"), done(CONFIRM)), Stage.RUNNING, "runs again"),
        (plan(HOLD), (done(HOLD),), Stage.HELD, "is held and keeps its id."),
        (plan(HOLD), (), Stage.HANDLED, "still runs."),
        (plan(refusal="breaker"), (), Stage.WAITING, "is not restarted now: because."),
        (
            dataclasses.replace(RESTART, observe_only=True, waits=(WAIT,)),
            (),
            Stage.WAITING,
            "now: 8 nodes are drained; 8",
        ),
        (None, (), Stage.HANDLED, "still runs."),
    ],
)
def test_nothing_is_announced_before_it_is_so(made: Any, outcomes: Any, stage: Stage, words: str) -> None:
    told = facts(plan=made, outcomes=outcomes)
    assert stage_of(told) is stage and words in for_owner(told)
    assert ("runs again" in for_owner(told)) is (stage is Stage.RUNNING)


def test_a_job_that_is_left_on_its_bad_node_is_not_called_failed() -> None:
    left = dataclasses.replace(plan(DRAIN), explanation="Job 8801 did not ask to be restarted.")
    told = facts(plan=left, outcomes=(done(DRAIN),))
    assert "still runs and is not restarted: Job 8801 did not ask to be restarted." in for_owner(told)
    preempted = facts(plan=left, outcomes=(done(DRAIN),), job=dataclasses.replace(job(8801), state="pending"))
    assert "waits in the queue and is not restarted: " in for_owner(preempted)
    over = facts(plan=left, outcomes=(done(DRAIN),), incident=incident(ended(8801), job=8801))
    assert "has failed and is not restarted: Job 8801 did not ask to be restarted." in for_owner(over)


def test_a_job_without_a_checkpoint_is_not_said_to_resume() -> None:
    told = facts(outcomes=(done(CHOOSE, path=None), done(RELEASE)))
    assert "is being restarted, without a checkpoint to resume from." in for_owner(told)
    left = facts(outcomes=(done(CHOOSE, by_script=True), done(RELEASE)))
    assert "is being restarted, from where its own script resumes." in for_owner(left)


def test_the_owner_hears_that_no_requeue_was_changed() -> None:
    mine = dataclasses.replace(job(8801), requeue=False)
    assert "submitted with --no-requeue" in for_owner(facts(job=mine))
    assert "--no-requeue" not in for_owner(facts()) + for_owner(facts(job=mine, plan=plan(refusal="breaker")))


@pytest.mark.parametrize(
    ("data", "stage", "words"),
    [
        ({"cancelled": True}, Stage.CANCELLED, "was cancelled, and stays so."),
        ({"goes_on": True}, Stage.HANDLED, "goes on."),
    ],
)
def test_what_needs_no_person_is_no_failure(data: dict[str, Scalar], stage: Stage, words: str) -> None:
    told = facts(outcomes=(done(REQUEUE, Result.FAILED, "why", **data),))
    assert stage_of(told) is stage and words in for_owner(told) and "Nothing to do." in for_owner(told)
    assert severity_of(told) == "warning"


CHAINED = {9: "afterok", 12: "afternotok", 13: "afterany", 14: "after"}


def test_the_owner_hears_what_slurm_did_with_the_jobs_that_waited() -> None:
    said = for_owner(facts(incident=incident(ended(8801), job=8801), dependents=CHAINED))
    words = (
        "Slurm took its failure for its end: it let go 12 (afternotok), 13 (afterany) and will never start 9 (afterok)."
    )
    assert words in said
    end = ended(8801)
    kept = dataclasses.replace(end, data={**end.data, "exit_held": True})
    said = for_owner(facts(incident=incident(kept, job=8801), dependents=CHAINED))
    assert "it let go 12 (afternotok). " in said
    assert "never start" not in for_owner(facts(dependents=CHAINED)), "requeued while it ran: they still wait"
    cancelled = incident(ended(8801, state="cancelled"), job=8801)
    assert "never start" not in for_owner(facts(incident=cancelled, dependents=CHAINED))


def test_held_job_says_what_to_do_and_how_it_goes_on() -> None:
    mine = dataclasses.replace(
        verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD), advice="read it"
    )
    said = for_owner(facts(verdict=mine, plan=plan(HOLD), outcomes=(done(HOLD),)))
    assert "To do: read it Then: scontrol release 8801." in said and "made again" not in said


def test_a_hold_that_is_not_sentinels_is_not_told_as_its_own() -> None:
    """A user who held the job during its restart read that it is held, as if Sentinel wanted something of them."""
    reason = "job 8801 is held, not by Sentinel (JobHeldUser): whoever held it releases it"
    theirs = done(RELEASE, Result.FAILED, reason, held=True, held_by_others=True)
    found = facts(outcomes=(done(DRAIN), done(REQUEUE), CHOSEN, theirs))
    said = for_owner(found)
    assert stage_of(found) is Stage.HELD and "is held by somebody else and keeps its id" in said
    assert "Whoever held it lets it start: scontrol release 8801." in said and "To do" not in said
    assert "by somebody else" not in for_owner(facts(plan=plan(HOLD), outcomes=(done(HOLD),)))


@pytest.mark.parametrize("changes", [{"refusal": "paused"}, {"observe_only": True}, {"refusal": "drain-budget"}])
def test_the_owner_is_not_given_the_work_of_operators(changes: dict[str, Any]) -> None:
    waits = facts(plan=dataclasses.replace(RESTART, **changes), outcomes=())
    assert "reboot" not in for_owner(waits) and "The operators are told." in for_owner(waits)
    assert "Advice: reboot the node" in for_operators(waits)
    mine = dataclasses.replace(waits, verdict=dataclasses.replace(waits.verdict, scope=Scope.APPLICATION))
    assert "To do: reboot the node" in for_owner(mine), "what its own program needs is the owner's"


def test_a_hold_for_a_limit_leaves_the_machine_to_operators() -> None:
    said = for_owner(facts(plan=plan(HOLD), outcomes=(done(HOLD),)))
    assert "The operators are told. To let it start: scontrol release 8801." in said and "reboot" not in said


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (APPROVAL, "has failed, and is held when an operator approves it: asked."),
        (LAPSED, "has failed, and is not held: asked."),
        (REFUSED, "has failed, and is not held: asked."),
    ],
)
def test_a_hold_that_is_asked_for_is_not_called_a_restart(kind: str, words: str) -> None:
    wait = Wait(kind, AT, "asked.", ("hold 8801",))
    made = dataclasses.replace(plan(HOLD), observe_only=True, explanation="asked.", waits=(wait,))
    said = for_owner(facts(incident=incident(ended(8801), job=8801), plan=made, outcomes=()))
    assert words in said and "restarted" not in said


def test_a_program_that_failed_while_sentinel_observes_is_not_said_to_wait_for_a_restart() -> None:
    mine = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD)
    observed = dataclasses.replace(plan(HOLD), observe_only=True, explanation="Observe mode: nothing is done.")
    over = facts(verdict=mine, plan=observed, outcomes=(), incident=incident(ended(8801), job=8801))
    assert "has failed and is not held: Observe mode: nothing is done." in for_owner(over)
    assert "is not restarted" not in for_owner(over)
    running = facts(plan=dataclasses.replace(observed, steps=(DRAIN,)), outcomes=())
    assert "still runs: Observe mode: nothing is done." in for_owner(running)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"last_step": None}, None),
        ({"last_step": 25}, "No step is lost."),
        ({"last_step": 26, "gpus": None}, "1 step is made again (40 s)."),
        ({"step_time_s": None}, "12 steps are made again. "),
        ({"outcomes": (done(CONFIRM),)}, None),
    ],
)
def test_what_is_not_known_of_the_loss_is_not_said(changes: dict[str, Any], words: str | None) -> None:
    said = for_owner(facts(**changes))
    assert words in said if words else ("made again" not in said and "lost" not in said)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "warning"),
        ({"outcomes": (done(RELEASE, Result.FAILED, "x"),)}, "critical"),
        ({"verdict": verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.CLUSTER)}, "critical"),
        ({"plan": plan(refusal="breaker"), "outcomes": ()}, "critical"),
        ({"plan": dataclasses.replace(RESTART, observe_only=True), "outcomes": ()}, "warning"),
        ({"verdict": verdict(Cause.USER_CODE, scope=Scope.APPLICATION)}, "info"),
        ({"resolved": True, "outcomes": (done(RELEASE, Result.FAILED, "x"),)}, "info"),
    ],
)
def test_severity(changes: dict[str, Any], severity: str) -> None:
    assert severity_of(facts(**changes)) == severity


def test_without_a_job_its_owner_is_told_nothing() -> None:
    alone = facts(incident=incident(job=None, id="51a7"), job=None)
    assert for_owner(alone) == "" and "Where: cluster alps." in for_operators(alone)


def test_doubt_is_told_and_certainty_is_not() -> None:
    assert "%" not in for_operators(facts())
    assert "; 61% sure." in for_operators(facts(verdict=dataclasses.replace(gpu_lost(), confidence=0.61)))
    together = dataclasses.replace(gpu_lost(), confidence=0.45, drain_confidence=0.9)
    assert "; 45% sure of it, 90% of the drain." in for_operators(facts(verdict=together))


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_words(cause: Cause) -> None:
    assert CAUSE_WORDS[cause][0].islower() or CAUSE_WORDS[cause].startswith(("GPU", "NVLink", "PCIe", "Slurm"))


HOSTILE = "x\nMore: sentinel why other\r\n\x1b[31m\u2028\u202e\x00" + "y" * 5000


def test_user_text_forges_no_line() -> None:
    told = facts(
        job=job(8801, name=HOSTILE, partition=HOSTILE), cluster=HOSTILE, nodes_now=(HOSTILE,),
        verdict=dataclasses.replace(gpu_lost(), advice=HOSTILE, grounds=(Ground(evidence(text=HOSTILE), 1.0),)),
        outcomes=(CHOSEN, done(RELEASE, Result.FAILED, HOSTILE)),
    )  # fmt: skip
    assert for_owner(told).isprintable() and len(for_owner(told)) < 2000
    lines = for_operators(told).split("\n")
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert [line.partition(":")[0] for line in lines] == ["CRITICAL", "Where", "Seen", "State", "Advice", "More"]


def test_owner_is_told_what_the_program_said_and_operators_no_line_twice() -> None:
    ranked = evidence("raised", source=Source.JOB_LOG, text="[rank1]: KeyError: 'labels'")
    stopped = evidence("state", source=Source.PROCESS, text="process 7 is stopped by a signal")
    stall = evidence("stall", source=Source.PROGRESS, text="no step after 9; process 7 is stopped by a signal")
    judged = dataclasses.replace(
        verdict(Cause.USER_CODE, scope=Scope.APPLICATION),
        grounds=(Ground(ranked, 3.0), Ground(stall, 2.0), Ground(stopped, 1.0)),
    )
    held = facts(verdict=judged, plan=plan(HOLD), outcomes=(done(HOLD),))
    assert "It says: KeyError: 'labels'. To do:" in for_owner(held), "what to do is a sentence of its own"
    assert for_operators(held).count("stopped by a signal") == 1
    assert "It says" not in for_owner(facts()), "a machine's fault is not the program's word"


def test_a_cost_that_would_be_shown_as_nothing_is_left_out() -> None:
    assert "12 steps are made again (1 s)." in for_owner(facts(step_time_s=0.1))


def test_places_by_what_they_are() -> None:
    assert culprit_words(("n2", "n3"), ("n2:5", "n2:1"), (2, 0)) == "GPUs 5, 1 of n2; node n3; ranks 0, 2"
    assert culprit_words(("n2",), ("n2:0000:61:00", "0000:62:00.0")) == "GPU 0000:61:00 of n2; GPU 0000:62:00.0"
    assert culprit_words((), ()) == ""


def test_a_job_that_insists_on_a_drained_node_is_not_said_to_need_nothing() -> None:
    words = "Job 8801's own --nodelist names n2, which is drained: it waits until that node is back."
    waiting = facts(outcomes=(done(DRAIN), done(REQUEUE), CHOSEN, done(RELEASE)), waits_for=words)
    assert words in for_owner(waiting) and "Nothing to do" not in for_owner(waiting)
    assert words in for_operators(waiting)
    assert words not in for_owner(facts(waits_for=words)) + for_operators(facts(waits_for=words)), "it runs again"


def test_a_job_that_slurm_ended_does_not_go_on() -> None:
    said = for_owner(preempted())
    assert "has ended and is not restarted: Slurm does not put job 8801 back by itself; submit it again." in said
    running = dataclasses.replace(preempted(), incident=incident(job=8801), job=job(8801))
    assert "goes on" in for_owner(running)


@pytest.mark.parametrize("what", ["restart 8801", "restart 8801 in its allocation"])
def test_a_restart_that_waits_is_not_called_unwanted_because_the_pause_stops_a_drain(what: str) -> None:
    """Beside the pause the plan has one step, the drain; the restart has a reason of its own to wait."""
    waits = (Wait("paused", AT, "Paused.", ("drain n2",)), Wait("no-node", AT, "No node is left.", (what,)))
    paused = dataclasses.replace(plan(DRAIN), observe_only=True, explanation="Paused.", waits=waits)
    over = facts(plan=paused, outcomes=(), incident=incident(ended(8801), job=8801))
    assert "is not restarted now: " in for_owner(over)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"state": "pending"}, "waits in the queue and is not restarted: "),
        ({"state": "completing"}, "waits in the queue and is not restarted: "),
        ({"state": "completing", "hold_kept": True}, "is held and is not restarted: "),
        ({"state": "pending", "held": True}, "is held and is not restarted: "),
        ({"state": "running"}, "was started again, not by Sentinel: "),
    ],
)
def test_a_job_that_somebody_requeued_meanwhile_is_not_said_to_run_still(now: dict[str, Any], words: str) -> None:
    left = dataclasses.replace(plan(DRAIN), explanation="Job 8801 was requeued already (attempt 1).")
    told = facts(plan=left, outcomes=(done(DRAIN),), job_now=dataclasses.replace(job(8801), restarts=1, **now))
    assert words in for_owner(told)


def test_the_owner_hears_what_the_restarted_job_waits_for_until_it_runs() -> None:
    words = "Job 8801 needs 4 nodes and 3 are usable: it waits in the queue."
    made = plan(DRAIN, REQUEUE, CHOOSE, dataclasses.replace(RELEASE, data={QUEUED: words}), CONFIRM)
    waits = for_owner(facts(plan=made, outcomes=(CHOSEN, done(RELEASE))))
    assert f"{words} Nothing to do." in waits
    assert words not in for_owner(facts(plan=made, outcomes=(CHOSEN, done(RELEASE), done(CONFIRM))))
