"""Stop a job and hold it; exclude nodes; release it; or leave it held with an explanation."""

from __future__ import annotations

import asyncio

from sentinel.actions.means import Means, Task, names
from sentinel.errors import Unavailable
from sentinel.model import OURS, JobView, Outcome, StepKind

_LOOK_S = 0.2  # between looks at a job that is ending


async def requeue_hold(task: Task, means: Means) -> Outcome:
    """The job is pending and held, all its processes gone.

    Slurm may requeue it at the same moment (NODE_FAIL): then it is pending already and only gets held.
    """
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    if job.restarts > task.attempt and job.state not in ("pending", "completing"):
        return means.failed(task, f"job {task.job} was restarted by somebody else meanwhile")
    if job.state == "cancelled":
        return means.failed(task, f"job {task.job} was cancelled")
    if not (_waits(job) and job.held):
        await means.writer.requeue_hold(task.job)
    await _until_pending(task, means)
    return means.done(task)


def _waits(job: JobView) -> bool:
    return job.state == "pending"


async def _until_pending(task: Task, means: Means) -> None:
    """Waits for the epilogs; a requeued job counts as pending only when it holds no node any more."""
    waited = 0.0
    while True:
        job = await means.reader.job(task.job)
        if job is None:
            raise Unavailable(f"job {task.job} is gone while it was being requeued")
        if _waits(job) and job.held and not job.nodes:
            return
        if _waits(job) and not job.held:
            await means.writer.requeue_hold(task.job)
        if waited >= means.pending_s:
            raise Unavailable(f"job {task.job} is still {job.state} after {means.pending_s:g} s; its epilogs may hang")
        await asyncio.sleep(_LOOK_S)
        waited += _LOOK_S


async def exclude(task: Task, means: Means) -> Outcome:
    """The nodes that hurt the job are excluded for its retry; it may start now instead of after Slurm's 121 s."""
    job = await means.reader.job(task.job)
    if job is None or not _waits(job):
        return means.failed(task, f"job {task.job} is not pending any more")
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    hosts = names(chosen.get("hosts")) if chosen.get("tier") == "local" else []
    union = sorted({*job.excluded, *names(task.step.data.get("nodes"))})
    ours = job.admin_comment.startswith(OURS) and "required=" in job.admin_comment
    comment = f"{task.reason} attempt={task.attempt + 1}" + (" required=local" if hosts else "")
    required = hosts or ([] if ours else None)
    await means.writer.update_job(task.job, excluded=union, required=required, admin_comment=comment, start_now=True)
    return means.done(task, data={"excluded": ",".join(union), "required": ",".join(hosts)})


async def release(task: Task, means: Means) -> Outcome:
    """Only what this incident held is released."""
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    if job.held and not job.admin_comment.startswith(f"{OURS}{task.incident.id}"):
        return means.failed(task, f"job {task.job} is held by somebody else: {job.reason}")
    if _waits(job) and job.held:
        await means.writer.release(task.job)
        job = await means.reader.job(task.job)
        if job is None or job.held:
            raise Unavailable(f"job {task.job} does not show as released yet")
    return means.done(task)


async def hold(task: Task, means: Means) -> Outcome:
    """The job keeps its id and waits for a person: held, with the answer in its admin comment."""
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    if job.state == "cancelled":
        return means.done(task, "was cancelled by its user")
    if not (_waits(job) and job.held):
        await means.writer.requeue_hold(task.job)
        await _until_pending(task, means)
    await means.writer.update_job(task.job, admin_comment=f"{task.reason} held")
    return means.done(task)
