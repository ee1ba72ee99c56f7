"""Tells who holds a job that Sentinel stopped, or let go, and that is held by another hold than ours."""

from __future__ import annotations

from sentinel.actions.means import Means
from sentinel.model.records import JobView, Outcome, StepKind, Task
from sentinel.model.vocabulary import HELD_BY_OTHERS, HELD_BY_SLURM, NEVER_STARTS

SUSPENDED = "suspended"  # key of outcome data: somebody had suspended the job that is held since
# Slurm's reasons of a job that it holds by itself, and that anybody may release who may release the job.
_BY_SLURM = {
    "ReservationDeleted": "its reservation is over, and released it runs outside of it",
    "JobHoldMaxRequeue": "its start failed too often (max_batch_requeue)",
}


def held_meanwhile(task: Task, means: Means, job: JobView) -> Outcome:
    """The outcome for a job that another hold than ours keeps from starting: a person's, or Slurm's own."""
    if job.reason == NEVER_STARTS:
        words = (
            f"Slurm holds job {task.job}: no nodes that it may get can ever run it as it is asked for ({NEVER_STARTS})"
        )
        return means.failed(task, words, {"held": True, HELD_BY_SLURM: True})
    if means.earlier(task, StepKind.REQUEUE_HOLD).get(SUSPENDED):
        words = f"an operator had suspended job {task.job}: it stays held; scontrol release {job.spec} starts it"
        return means.failed(task, words, {"held": True})
    if (why := _BY_SLURM.get(job.reason)) is not None:
        words = f"Slurm holds job {task.job}: {why} ({job.reason}); scontrol release {job.spec} starts it"
        return means.failed(task, words, {"held": True})
    if job.requeue_held and not means.earlier(task, StepKind.REQUEUE_HOLD):
        words = f"job {task.job} is held by a requeue of which Sentinel knows nothing: scontrol release {job.spec} starts it"
        return means.failed(task, words, {"held": True, HELD_BY_OTHERS: True})
    words = f"job {task.job} is held, not by Sentinel ({job.reason}): whoever held it releases it"
    return means.failed(task, words, {"held": True, HELD_BY_OTHERS: True})
