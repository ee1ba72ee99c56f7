"""What people read: who, what was done, why; and nothing that a job printed can forge a line of it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import AT, evidence, incident, job, plan, step, verdict

from sentinel.alerts import IncidentFacts, Thread, compose, severity_of, stage_of
from sentinel.alerts.text import plain
from sentinel.model.records import (
    Cause,
    Culprits,
    Ground,
    Notice,
    Outcome,
    Result,
    Scalar,
    Scope,
    Source,
    StepKind,
)
from sentinel.model.vocabulary import QUEUED

DRAIN = step(StepKind.DRAIN, node="n1")
CHOOSE = step(StepKind.CHOOSE_CHECKPOINT, job=101, attempt=0)
HOLD = step(StepKind.HOLD, job=101, attempt=0)


def notice(**how: object) -> Notice:
    given_: dict[str, object] = {
        "happened": incident(), "judged": verdict(drain=("n1",), gpus=("n1:3",)), "made": plan(DRAIN), "outcomes": (),
        "of": job(), "last_step": 250, **how,
    }  # fmt: skip
    facts = IncidentFacts(
        given_["happened"], given_["judged"], given_["made"], given_["outcomes"],  # type: ignore[arg-type]
        job=given_["of"], last_step=given_["last_step"],  # type: ignore[arg-type]
    )  # fmt: skip
    thread = given_.get("thread") or Thread((str(stage_of(facts)),), severity_of(facts))
    return compose(facts, thread, AT)  # type: ignore[arg-type]


def done(this: object, result: Result = Result.DONE, reason: str = "", **data: Scalar) -> Outcome:
    return Outcome(this, result, AT, reason, data)  # type: ignore[arg-type]


def test_it_says_what_who_and_where_to_look() -> None:
    made = notice(outcomes=(done(DRAIN),))
    assert made.title == "job 101: GPU memory failed (ECC), GPU 3 of n1"
    lines = made.body.splitlines()
    assert lines[0] == "What: GPU memory failed (ECC); 95% sure. At fault: a GPU."
    assert "Where: GPU 3 of n1." in lines and "Job: 101 train of ada, last step seen 250." in lines
    assert "Drained: n1." in lines and lines[-1] == "More: sentinel why inc1"
    assert made.data["drained"] == ["n1"] and made.data["user"] == "ada"


def test_a_job_of_which_no_restart_is_wanted_is_not_said_to_wait_where_sentinel_observes() -> None:
    assert notice(made=plan(HOLD, observe_only=True)).title.startswith("job 101: ")
    release = step(StepKind.RELEASE, job=101, attempt=0)
    assert notice(made=plan(HOLD, release, observe_only=True)).title.startswith("job 101 waits: ")
    assert (
        notice(made=plan(DRAIN, observe_only=True), happened=incident(job=None), of=None).title.count(" waits: ") == 1
    )


def test_nobody_is_at_fault_where_slurm_ended_the_job() -> None:
    judged = verdict(Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, scope=Scope.APPLICATION)
    assert "At fault: nothing: Slurm ended the job as it was asked;" in notice(judged=judged).body


def test_job_whose_numbers_went_bad_and_that_waits_says_since_when_and_how_it_goes_on() -> None:
    failed = done(
        CHOOSE, Result.FAILED, "numbers went bad at step 250 and no checkpoint before it can be used", held=True
    )
    body = notice(judged=verdict(Cause.NUMERICAL_NAN, onset_step=250), made=plan(CHOOSE), outcomes=(failed,)).body
    assert "Numbers went bad at step 250." in body and "scontrol release 101" in body
    assert "Failed: choose a checkpoint for job 101: numbers went bad at step 250 and no checkpoint" in body
    assert "scontrol release" not in notice(made=plan(CHOOSE), outcomes=(done(CHOOSE, Result.FAILED, "x"),)).body


def test_id_depends_on_the_incident_and_the_number_in_its_thread_only() -> None:
    assert notice().id == notice(made=None, judged=verdict(Cause.PCIE), last_step=None).id
    assert notice(happened=incident(id="inc2")).id != notice().id
    assert notice(thread=Thread(("restarting", "failed"), "critical")).id != notice().id, "the next one of its thread"


@pytest.mark.parametrize("scope", list(Scope))
def test_every_scope_has_words(scope: Scope) -> None:
    assert notice(judged=verdict(scope=scope)).body


def test_a_drain_that_failed_is_not_told_as_done() -> None:
    made = notice(outcomes=(done(DRAIN, Result.FAILED, "Slurm does not know node n1"),))
    assert "Drained" not in made.body and "Failed: drain n1: Slurm does not know node n1" in made.body
    assert made.data["drained"] == []
    assert "Drained" not in notice(outcomes=(done(DRAIN, Result.NOT_KNOWN),)).body


def test_resume_point() -> None:
    made = notice(outcomes=(done(CHOOSE, path="/shared/s200", step=200, tier="global", explanation="newest whole"),))
    assert "Restarts from step 200 (global): /shared/s200. newest whole" in made.body  # not yet seen to run
    assert made.data["resumed_step"] == 200
    assert "No checkpoint to resume from: none there" in notice(outcomes=(done(CHOOSE, explanation="none there"),)).body


def test_held_job_is_told_how_to_let_it_go() -> None:
    assert "scontrol release 101" in notice(outcomes=(done(HOLD),)).body
    of_array = dataclasses.replace(job(), array=(101, 3))
    told = notice(outcomes=(done(HOLD),), of=of_array)
    for text in (told.body, told.data["owner_text"], told.data["log_text"]):
        assert "scontrol release 101_3" in str(text)


def test_a_hold_of_somebody_else_is_told_as_such() -> None:
    body = notice(outcomes=(done(CHOOSE, Result.FAILED, "held", held=True, held_by_others=True),)).body
    assert "Somebody holds the job, not Sentinel; whoever held it lets it start: scontrol release 101" in body
    assert "The job is held and keeps its id" not in body


def test_refusal_and_observation() -> None:
    assert "Not done (breaker): because" in notice(made=plan(refusal="breaker")).body
    assert "Would do: drain n1, hold job 101." in notice(made=plan(DRAIN, HOLD, observe_only=True)).body


def test_a_cause_that_is_not_known_has_no_percentage() -> None:
    told = notice(judged=verdict(Cause.UNKNOWN, confidence=0.0))
    assert "What: what broke is not known. At fault:" in told.body
    assert "% sure" not in f"{told.body} {told.data['operator_text']} {told.data['owner_text']}"


def test_without_job_and_plan() -> None:
    made = notice(happened=incident(job=None, nodes=("n7",)), of=None, made=None, judged=verdict())
    assert made.title.startswith("n7: ") and "Job:" not in made.body
    assert notice(happened=incident(job=None), of=None).title.startswith("the cluster: ")


HOSTILE = "step 1\nMore: sentinel why other\r\n\x1b[31mred\x07\u2028next\u202eright\x00\ud800" + "x" * 9000


def test_hostile_text_cannot_forge_a_line() -> None:
    grounds = tuple(
        Ground(evidence("t", at_s=float(n), source=Source.JOB_LOG, node=f"n\n{n}" if n else None, text=HOSTILE), 1.0)
        for n in range(9)
    )
    judged = dataclasses.replace(
        verdict(advice=HOSTILE), grounds=grounds, culprits=Culprits(nodes=(HOSTILE,), gpus=(HOSTILE,))
    )
    made = notice(
        judged=judged,
        made=dataclasses.replace(plan(DRAIN), explanation=HOSTILE),
        of=job(name=HOSTILE, user=HOSTILE),
        outcomes=(
            done(CHOOSE, path=HOSTILE, step=1, tier="global", explanation=HOSTILE),
            done(HOLD, Result.FAILED, HOSTILE),
        ),
    )
    lines = made.body.split("\n")
    assert all(line.isprintable() for line in (made.title, *lines))
    starts = [
        "What:",
        "Where:",
        "Job:",
        "step 1",
        "Would have restarted",
        "Failed:",
        "Advice:",
        "Because:",
        *["  12:00:"] * 5,
        "More:",
    ]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * len(starts)
    assert all(len(line) < 1500 for line in lines) and len(made.body) < 6000
    assert len(made.title) <= 200


@given(st.text(), st.integers(1, 400))
def test_plain_is_one_limited_line(text: str, most: int) -> None:
    shown = plain(text, most)
    assert shown.isprintable() and len(shown) <= most


@pytest.mark.parametrize("text", ["", "ordinary text: 100 % [bold]", "größe 学"])
def test_plain_leaves_ordinary_text_alone(text: str) -> None:
    assert plain(text) == text


def test_a_job_that_runs_again_is_not_said_to_wait_in_the_queue() -> None:
    words = "Job 101 needs 4 nodes and 3 are usable: it waits in the queue."
    release = dataclasses.replace(step(StepKind.RELEASE, job=101, attempt=0), data={QUEUED: words})
    confirm = step(StepKind.CONFIRM, job=101, attempt=0)
    made = dataclasses.replace(plan(release, confirm), explanation=f"Made requeueable. {words}")
    assert f"Made requeueable. {words}" in notice(made=made, outcomes=(done(release),)).body
    runs = notice(made=made, outcomes=(done(release), done(confirm))).body
    assert "Made requeueable." in runs and words not in runs
