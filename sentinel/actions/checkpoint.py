"""Prepare the resume: choose a checkpoint, move away what must not be picked, write what TaskProlog hands to the job."""

from __future__ import annotations

from sentinel.actions.means import Means, Task
from sentinel.actions.requeue import hold
from sentinel.errors import Refused
from sentinel.model import Outcome, Result, StepKind


async def choose_checkpoint(task: Task, means: Means) -> Outcome:
    """The nearest valid one; none is an answer too (the job starts as its script does without help)."""
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    try:
        chosen = await means.checkpoints.choose(task, job)
    except Refused as error:
        return await _hold(task, means, error)
    return means.done(task, str(chosen.get("explanation", "")), chosen)


async def _hold(task: Task, means: Means, error: Refused) -> Outcome:
    """No restart is better than one from bad numbers: the job waits for a person, and starts at once when released."""
    held = await hold(task, means)
    if held.result is not Result.DONE or held.data.get("cancelled"):
        return held
    await means.writer.update_job(task.job, start_now=True)  # until now it waited for a time far off
    return means.failed(task, error.message, {"held": True})


async def quarantine(task: Task, means: Means) -> Outcome:
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    moved = await means.checkpoints.quarantine(task, job, means.earlier(task, StepKind.CHOOSE_CHECKPOINT))
    return means.done(task, str(moved.get("explanation", "")), moved)


async def write_resume(task: Task, means: Means) -> Outcome:
    """Written before the release: the job may start the moment it is released, with or without the daemon."""
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    values = {
        "SENTINEL_JOB": str(task.job),
        "SENTINEL_ATTEMPT": str(task.attempt + 1),
        "SENTINEL_INCIDENT": task.incident.id,
    }
    if chosen.get("path"):
        values["SENTINEL_RESUME_PATH"] = str(chosen["path"])
        values["SENTINEL_RESUME_STEP"] = str(chosen["step"])
        values["SENTINEL_RESUME_TIER"] = str(chosen["tier"])
    await means.resume.write(task.job, values)
    return means.done(task)
