"""The line in a restarted job's log says what happened, and is read as nothing by those who watch that log."""

from __future__ import annotations

import dataclasses
import re

import pytest
from made_records import AT, incident, job, plan, step, verdict
from shipped import shipped_signatures

from sentinel.alerts import IncidentFacts, appended, for_log
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Outcome, Result, Scope, Step, StepKind, Where

CHOOSE = step(StepKind.CHOOSE_CHECKPOINT, job=8801, attempt=0)
CHOSEN = Outcome(CHOOSE, Result.DONE, AT, "", {"path": "/shared/run/iter_0000025", "step": 25, "tier": "global"})
KEPT_OUT = Step(StepKind.EXCLUDE, job=8801, attempt=0, data={"nodes": "n2"})
SIGNATURES = shipped_signatures()


def facts(cause: Cause = Cause.GPU_FALLEN_OFF_BUS, *outcomes: Outcome, **how: object) -> IncidentFacts:
    scope = Scope.APPLICATION if cause is Cause.USER_CODE else Scope.GPU
    judged = verdict(cause, scope=scope, drain=("n2",), gpus=("n2:5",))
    return IncidentFacts(incident(job=8801, id="51a7"), judged, plan(CHOOSE, KEPT_OUT), outcomes, job(8801), 37, **how)  # type: ignore[arg-type]


def test_it_says_what_happened_and_from_where_it_goes_on() -> None:
    assert for_log(facts(Cause.GPU_FALLEN_OFF_BUS, CHOSEN)) == (
        "sentinel: attempt 0 was ended: a GPU fell off the bus (GPU 5 of n2); it goes on from checkpoint 25 (global); "
        "n2 left out; nothing to do. Why: sentinel why 8801"
    )
    assert "the script resumes by its own rule" in for_log(facts())


def test_only_what_the_job_is_kept_off_is_left_out() -> None:
    """A node at fault without which the job cannot run is spared."""
    spared = dataclasses.replace(facts(), plan=plan(CHOOSE, dataclasses.replace(KEPT_OUT, data={"nodes": ""})))
    assert "left out" not in for_log(spared)
    many = dataclasses.replace(KEPT_OUT, data={"nodes": ",".join(f"n{n}" for n in range(20))})
    assert re.search(
        r"; n0, n1, [^;]{1,60} and \d+ more left out;", for_log(dataclasses.replace(facts(), plan=plan(many)))
    )


HELD = Outcome(step(StepKind.HOLD, job=8801, attempt=0), Result.DONE, AT)
NOT_RELEASED = Outcome(step(StepKind.RELEASE, job=8801, attempt=0), Result.FAILED, AT, "no such job")


def test_the_time_of_lost_work_is_said() -> None:
    assert "; 4 min of work lost;" in for_log(facts(Cause.PCIE, CHOSEN, step_time_s=20.0))
    assert "; 24 s of work lost;" in for_log(facts(Cause.PCIE, CHOSEN, step_time_s=2.0))


def test_a_hold_says_what_to_do() -> None:
    assert appended(facts(Cause.USER_CODE, HELD)) == (
        "sentinel: attempt 0: the program failed by itself (GPU 5 of n2); the job is held and keeps its id; "
        "mend what is wrong, then: scontrol release 8801. Why: sentinel why 8801"
    )


def test_a_hold_for_a_limit_asks_the_owner_to_mend_no_machine() -> None:
    said = appended(facts(Cause.PCIE, HELD))
    assert (
        "keeps its id; the operators are told; to let it start: scontrol release 8801. " in said and "mend" not in said
    )


def test_a_hold_of_somebody_else_is_told_as_such() -> None:
    theirs = dataclasses.replace(NOT_RELEASED, data={"held": True, "held_by_others": True})
    assert "somebody holds the job, not Sentinel; whoever held it lets it start: scontrol release 8801" in appended(
        facts(Cause.PCIE, theirs)
    )


def test_a_task_of_an_array_is_named_so_that_the_others_stay_held() -> None:
    """The id of the last task is also the id of the whole array."""
    task = dataclasses.replace(job(8801), array=(8801, 3))
    held = dataclasses.replace(facts(Cause.USER_CODE, HELD), job=task)
    assert "scontrol release 8801_3. Why: sentinel why 8801" in appended(held)


def test_a_failed_restart_and_a_refusal_are_said() -> None:
    assert "could not be put back to work" in appended(facts(Cause.PCIE, NOT_RELEASED))
    waits = dataclasses.replace(facts(), plan=dataclasses.replace(plan(CHOOSE), refusal="breaker"))
    assert "; the restart waits (breaker); nothing to do" in appended(waits)


def test_nothing_is_appended_where_an_attempt_prints_it_or_sentinel_only_observes() -> None:
    assert appended(facts(Cause.PCIE, CHOSEN)) == ""
    observed = dataclasses.replace(
        facts(), plan=dataclasses.replace(plan(CHOOSE), refusal="breaker", observe_only=True)
    )
    assert appended(observed) == ""


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("outcomes", [(), (CHOSEN,), (HELD,), (NOT_RELEASED,)])
def test_nothing_in_it_is_taken_for_a_failure_or_for_progress(cause: Cause, outcomes: tuple[Outcome, ...]) -> None:
    reader = LogReader(SIGNATURES, where=Where(job=8801, attempt=1))
    found = reader.feed((for_log(facts(cause, *outcomes, step_time_s=20.0)) + "\n").encode(), AT) + reader.finish(AT)
    assert [item.kind for item in found] == []


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "InvalidAccount"])
def test_a_limit_by_which_the_job_waits_is_said_and_taken_for_no_failure(reason: str) -> None:
    words = f"Slurm does not start it, and that does not end by itself; its reason is {reason}. Ask the operators"
    line = appended(facts(Cause.GPU_FALLEN_OFF_BUS, CHOSEN, limited=words))
    assert f"it waits in the queue; {words}. Why: sentinel why 8801" in line
    reader = LogReader(SIGNATURES, where=Where(job=8801, attempt=1))
    assert [*reader.feed(f"{line}\n".encode(), AT), *reader.finish(AT)] == []


def test_names_of_nodes_stay_one_printable_line() -> None:
    judged = verdict(Cause.PCIE, drain=("n\n\x1b[2J\u202e" + "x" * 9999,))
    line = for_log(dataclasses.replace(facts(), verdict=judged))
    assert line.isprintable() and len(line) <= 400


def test_without_a_job_there_is_none() -> None:
    assert for_log(dataclasses.replace(facts(), incident=incident(job=None))) == ""
