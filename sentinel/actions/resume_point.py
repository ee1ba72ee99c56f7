"""What a resume point says, and for which attempt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sentinel.actions.means import Means
from sentinel.model.launching import UID
from sentinel.model.records import JobView, Scalar, StepKind, Task


def resume_values(task: Task, job: JobView, chosen: Mapping[str, Scalar], attempt: int) -> dict[str, str]:
    """The resume point for this attempt, with the checkpoint that was chosen.

    Args:
        job: the step's job, or the leader of which it is a component: its user's it is.
    """
    values = {
        "SENTINEL_JOB": str(task.job),
        "SENTINEL_ATTEMPT": str(attempt),
        "SENTINEL_INCIDENT": task.incident.id,
    }
    if job.uid is not None:  # a job of another user that gets this id takes nothing of it
        values[UID] = str(job.uid)
    if chosen.get("path"):
        values["SENTINEL_RESUME_PATH"] = str(chosen["path"])
        if chosen.get("step") is not None:  # a checkpoint whose name only counts saves has no step
            values["SENTINEL_RESUME_STEP"] = str(chosen["step"])
        values["SENTINEL_RESUME_TIER"] = str(chosen["tier"])
    if task.step.data.get("message"):
        values["SENTINEL_MESSAGE"] = str(task.step.data["message"])  # TaskProlog prints it into the job's log
    return values


async def write(task: Task, means: Means, job: JobView, attempt: int) -> None:
    """Write the resume point of the step's job for this attempt."""
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    await means.resume.write(task.job, resume_values(task, job, chosen, attempt))


async def write_again(task: Task, means: Means, job: JobView) -> None:
    """Write this plan's resume points, of each component of a heterogeneous job, for another attempt than was foreseen."""
    for step in task.plan.steps:
        if step.kind is StepKind.WRITE_RESUME and step.job is not None:
            await write(dataclasses.replace(task, step=step), means, job, job.restarts)
