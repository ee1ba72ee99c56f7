"""A checkpoint is blamed only where its attempt may have read it."""

from __future__ import annotations

import pytest
from core_records import AT, ended, evidence, incident

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.failed_resume import failed_resume
from sentinel.model.records import Evidence, Kind, Source

CHOSEN = {0: {"path": "/g/step-10", "step": 10}}


def word(kind: str, text: str) -> Evidence:
    return evidence(kind, source=Source.JOB_LOG, job=7, attempt=1, text=text)


def test_an_attempt_that_ends_without_a_step_makes_its_checkpoint_suspect() -> None:
    (found,) = failed_resume(incident(ended(7, attempt=1), job=7, attempt=1), ClusterView(), CHOSEN, AT)
    assert found.kind == Kind.CHECKPOINT_INVALID and found.data["path"] == "/g/step-10"


@pytest.mark.parametrize("kind", ["controller-gone", "step-contact", "step-setup"])
def test_a_program_that_srun_could_not_start_read_nothing(kind: str) -> None:
    said = word(kind, "srun: error: Unable to create step for job 7: Unexpected missing socket error")
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
