"""Prepares the resume: chooses a checkpoint, quarantines bad ones, writes the resume point that TaskProlog reads."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.actions.means import Means
from sentinel.actions.requeue import hold
from sentinel.errors import Refused
from sentinel.model.records import Outcome, Result, Scalar, StepKind, Task


async def choose_checkpoint(task: Task, means: Means) -> Outcome:
    """Choose the nearest valid checkpoint.

    The step also succeeds if there is no valid checkpoint: the job then resumes as its script does by default.
    """
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    try:
        chosen = await means.checkpoints.choose(task, job)
    except Refused as error:
        return await _hold(task, means, error)
    return means.done(task, str(chosen.get("explanation", "")), chosen)


async def _hold(task: Task, means: Means, error: Refused) -> Outcome:
    """Hold the job for a person: all checkpoints contain bad numbers. Once released it starts at once."""
    held = await hold(task, means)
    if held.result is not Result.DONE or held.data.get("cancelled"):
        return held
    await means.writer.update_job(task.job, start_now=True)  # ends our deferral; only the hold remains
    return means.failed(task, error.message, {"held": True})


async def quarantine(task: Task, means: Means) -> Outcome:
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    moved = await means.checkpoints.quarantine(task, job, means.earlier(task, StepKind.CHOOSE_CHECKPOINT))
    return means.done(task, str(moved.get("explanation", "")), moved)


async def write_resume(task: Task, means: Means) -> Outcome:
    """Write the resume point, before the release: a released job may start even while the daemon is down."""
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    await means.resume.write(task.job, resume_values(task, chosen, task.attempt + 1))
    return means.done(task)


def resume_values(task: Task, chosen: Mapping[str, Scalar], attempt: int) -> dict[str, str]:
    """The resume point for this attempt, with the checkpoint that was chosen."""
    values = {
        "SENTINEL_JOB": str(task.job),
        "SENTINEL_ATTEMPT": str(attempt),
        "SENTINEL_INCIDENT": task.incident.id,
    }
    if chosen.get("path"):
        values["SENTINEL_RESUME_PATH"] = str(chosen["path"])
        if chosen.get("step") is not None:  # a checkpoint whose name only counts saves has no step
            values["SENTINEL_RESUME_STEP"] = str(chosen["step"])
        values["SENTINEL_RESUME_TIER"] = str(chosen["tier"])
    if task.step.data.get("message"):
        values["SENTINEL_MESSAGE"] = str(task.step.data["message"])  # TaskProlog prints it into the job's log
    return values
