"""A checkpoint is blamed only where its attempt may have read it."""

from __future__ import annotations

import pytest
from made_records import AT, ended, evidence, incident, job

from sentinel.detect.cluster_view import AttemptSeen, ClusterView
from sentinel.detect.failed_resume import failed_resume, started_before
from sentinel.model.records import Evidence, Kind, Source

CHOSEN = {0: {"path": "/g/step-10", "step": 10}}


NO_STEP = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"


def word(kind: str, text: str) -> Evidence:
    return evidence(kind, source=Source.JOB_LOG, job=7, attempt=1, text=text)


def test_an_attempt_that_ends_without_a_step_makes_its_checkpoint_suspect() -> None:
    (found,) = failed_resume(incident(ended(7, attempt=1), job=7, attempt=1), ClusterView(), CHOSEN, AT)
    assert found.kind == Kind.CHECKPOINT_INVALID and found.data["path"] == "/g/step-10"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("controller-gone", "srun: error: Unable to contact slurm controller (connect failure)"),
        ("step-contact", "srun: error: Task launch for StepId=7.0 failed on node n1: Communication connection failure"),
        ("step-setup", "srun: error: Could not open stdout file /gone: No such file or directory"),
        ("submit", NO_STEP),
    ],
)
def test_a_program_that_srun_could_not_start_read_nothing(kind: str, text: str) -> None:
    said = word(kind, text)
    assert failed_resume(incident(ended(7, attempt=1), said, job=7, attempt=1), ClusterView(), CHOSEN, AT) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("task-exit", "srun: error: n1: task 0: Exited with exit code 1"),
        (
            "checkpoint-torch",
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
    ],
)
def test_what_srun_says_after_a_program_that_ran_excuses_no_checkpoint(kind: str, text: str) -> None:
    """It waits for the other tasks of a step whose first one is gone, and loses nodes of steps that ran."""
    said = word(kind, text), word("step-contact", "srun: error: Timed out waiting for job step to complete")
    (found,) = failed_resume(incident(ended(7, attempt=1), *said, job=7, attempt=1), ClusterView(), CHOSEN, AT)
    assert found.kind == Kind.CHECKPOINT_INVALID


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
