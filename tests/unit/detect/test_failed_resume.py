"""A checkpoint is blamed only where its attempt may have read it."""

from __future__ import annotations

from typing import Any

import pytest
from made_records import AT, ended, evidence, incident, job

from sentinel.correlate.incidents import opens
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.failed_resume import Resume, failed_resume, is_left_out, started_before
from sentinel.detect.seen import AttemptSeen
from sentinel.model.records import Cause, Evidence, Kind, Source
from sentinel.model.vocabulary import RUN_START

NO_STEP = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"


def word(kind: str, text: str) -> Evidence:
    return evidence(kind, source=Source.JOB_LOG, job=7, attempt=1, text=text)


RAN = word(RUN_START, "sentinel: job 7 attempt 1 begins")  # by it the log was read


def tried(
    *said: Evidence,
    step: int | None = 10,
    before: str = "",
    cause: Cause = Cause.UNKNOWN,
    reached: int | None = 15,
    observed: bool = True,
    view: ClusterView | None = None,
) -> list[Evidence]:
    """What is known of /g/step-10 after attempt 1, which was to resume from it, ended."""
    resume = Resume(0, "/g/step-10", step, "checksum", before)
    happened = incident(ended(7, attempt=1), *said, job=7, attempt=1)
    return failed_resume(
        happened, view or ClusterView(), resume, lambda: cause, reached=reached, observed=observed, now=AT
    )


def test_one_attempt_that_ends_without_a_step_leaves_the_checkpoint_in_its_place() -> None:
    (found,) = tried(RAN)
    assert found.kind == Kind.NOT_RESUMED and not is_left_out(found) and not opens(found)


def test_two_attempts_in_a_row_that_end_without_a_step_leave_it_out() -> None:
    (found,) = tried(RAN, before="/g/step-10@10")
    assert is_left_out(found) and "attempts 0 and 1" in found.text and "found valid (level checksum)" in found.text
    (other,) = tried(RAN, before="/g/step-12@12")
    assert not is_left_out(other), "the attempt before began from another one"


@pytest.mark.parametrize(
    "known",
    [
        {"reached": None},  # its log is /dev/null, or it writes one of its own: no attempt ever showed a step
        {"observed": False},  # the daemon was not there when it began
        {"reached": 11},  # it may have nothing left to train, and fail at what follows the training
        {"step": None},
        {"cause": Cause.GPU_MEMORY_ECC},
    ],
)
def test_what_is_not_known_never_counts_against_a_checkpoint(known: dict[str, Any]) -> None:
    assert tried(RAN, before="/g/step-10@10", **known) == []


def test_of_a_log_that_nobody_read_nothing_is_known() -> None:
    assert tried(before="/g/step-10@10") == []


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.CHECKPOINT_SAVED])
def test_an_attempt_that_made_steps_or_saves_resumed(kind: str) -> None:
    view = ClusterView()
    view.note(evidence(kind, source=Source.CHECKPOINT if kind != Kind.STEP else Source.PROGRESS, job=7, attempt=1,
                       data={"step": 12}))  # fmt: skip
    assert tried(RAN, before="/g/step-10@10", view=view) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("controller-gone", "srun: error: Unable to contact slurm controller (connect failure)"),
        ("step-contact", "srun: error: Task launch for StepId=7.0 failed on node n1: Communication connection failure"),
        ("step-setup", "srun: error: Could not open stdout file /gone: No such file or directory"),
        ("submit", NO_STEP),
        ("resumed", "Restored all states from the checkpoint at /g/step-10"),
        ("cuda", "CUDA error: no CUDA-capable device is detected"),
        ("unread_error", "seat error: 12"),
        ("checkpoint-torch", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding"),
    ],
)
def test_what_the_log_says_is_what_it_was(kind: str, text: str) -> None:
    assert tried(RAN, word(kind, text), before="/g/step-10@10") == []


def test_what_srun_says_after_a_program_that_ran_says_nothing_of_why() -> None:
    """It waits for the other tasks of a step whose first one is gone, and loses nodes of steps that ran."""
    said = (
        word("task-exit", "srun: error: n1: task 0: Exited with exit code 1"),
        word("step-contact", "srun: error: Timed out waiting for job step to complete"),
    )
    assert len(tried(*said)) == 1


@pytest.mark.parametrize(
    ("first_step", "attempt", "text", "told"),
    [
        (1, 1, NO_STEP, True),
        (1, 2, NO_STEP, True),  # the one between made none either
        (None, 1, NO_STEP, False),
        (1, 1, "srun: error: n1: task 0: Exited with exit code 1", False),
    ],
)
def test_what_slurm_did_not_start_ran_before(first_step: int | None, attempt: int, text: str, told: bool) -> None:
    view = ClusterView()
    view.attempts[7, 0] = AttemptSeen(job(7), first_step=first_step)
    said = evidence("submit", source=Source.JOB_LOG, job=7, attempt=attempt, text=text)
    found = started_before(incident(ended(7, attempt=attempt), said, job=7, attempt=attempt), view, AT)
    assert [item.kind for item in found] == [Kind.STARTED_BEFORE] * told
