"""Stop a job and keep it waiting; exclude nodes; let it start; or leave it held with an explanation.

While a restart is prepared the job is not held but waits for a time far off: Slurm ignores a hold on a job that is held
already, so that its user's hold would leave no trace, and would be released with ours.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from sentinel.actions.means import Means, Task, names
from sentinel.errors import Unavailable
from sentinel.model import OURS, JobView, Outcome, Result, Scalar, StepKind

_LOOK_S = 0.2  # between looks at a job that is ending
_FAR = timedelta(days=1)  # nobody but us lets a job wait for longer without saying so: the writer's wait is 30 days
_BESIDE = " || "  # what somebody else wrote into the admin comment stands behind it
_COMMENT = 1024  # characters that Slurm keeps
CANCELLED: dict[str, Scalar] = {"cancelled": True}  # data of an outcome: its user has ended the job, nobody need wait


async def requeue_hold(task: Task, means: Means) -> Outcome:
    """The job is pending and does not start by itself, all its processes gone.

    Slurm may requeue it at the same moment (NODE_FAIL): then it is pending already and only gets deferred.
    """
    job = await _settled(task, means)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    if job.restarts > task.attempt and job.state not in ("pending", "completing"):
        return means.failed(task, f"job {task.job} was restarted by somebody else meanwhile")
    if job.state == "cancelled":
        return _cancelled(task, means)
    if _deferred(job, means.clock.now()):
        return means.done(task, data={"deferred": True})
    before = means.ledger.outcome(task.incident.id, task.step)
    if _waits(job) and job.held and not (before is not None and before.data.get("asked")):
        return _held_meanwhile(task, means, job)  # whoever stopped it and holds it: not we
    asked = Outcome(task.step, Result.NOT_KNOWN, means.clock.now(), "", {"asked": True})
    means.ledger.record(task.plan, asked)
    if not (_waits(job) and job.held):
        await means.writer.requeue_hold(task.job)
    if not await _until_pending(task, means):
        return _cancelled(task, means)
    await means.writer.defer(task.job)
    return means.done(task, data={"deferred": True})


def _waits(job: JobView) -> bool:
    return job.state == "pending"


def _deferred(job: JobView, now: datetime) -> bool:
    return _waits(job) and not job.held and job.eligible_at is not None and job.eligible_at - now > _FAR


def _cancelled(task: Task, means: Means) -> Outcome:
    return means.failed(task, f"job {task.job} was cancelled", CANCELLED)


async def _settled(task: Task, means: Means) -> JobView | None:
    """The job once Slurm says how it ended. While its processes end it is "completing", whoever ended it: requeued now, a
    job that its user has cancelled would come back."""
    waited = 0.0
    while True:
        job = await means.reader.job(task.job)
        if job is None or job.state != "completing" or job.restarts > task.attempt:
            return job
        if waited >= means.pending_s:
            raise Unavailable(f"job {task.job} is still completing after {means.pending_s:g} s; its epilogs may hang")
        await asyncio.sleep(_LOOK_S)
        waited += _LOOK_S


async def _until_pending(task: Task, means: Means) -> bool:
    """Waits for the epilogs; a requeued job counts as pending only when it holds no node any more. False: its user has
    cancelled it meanwhile."""
    waited = 0.0
    while True:
        job = await means.reader.job(task.job)
        if job is None:
            raise Unavailable(f"job {task.job} is gone while it was being requeued")
        if job.state == "cancelled":
            return False
        if _waits(job) and job.held and not job.nodes:
            return True
        if _waits(job) and not job.held:
            await means.writer.requeue_hold(task.job)
        if waited >= means.pending_s:
            raise Unavailable(f"job {task.job} is still {job.state} after {means.pending_s:g} s; its epilogs may hang")
        await asyncio.sleep(_LOOK_S)
        waited += _LOOK_S


async def exclude(task: Task, means: Means) -> Outcome:
    """The nodes that hurt the job are excluded for its retry."""
    job = await means.reader.job(task.job)
    if job is not None and job.state == "cancelled":
        return _cancelled(task, means)
    if job is None or not _waits(job):
        return means.failed(task, f"job {task.job} is not pending any more")
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    hosts = names(chosen.get("hosts")) if chosen.get("tier") == "local" else []
    union = sorted({*job.excluded, *names(task.step.data.get("nodes"))})
    ours = job.admin_comment.startswith(OURS) and "required=" in job.admin_comment.partition(_BESIDE)[0]
    comment = f"{task.reason} attempt={task.attempt + 1}" + (" required=local" if hosts else "")
    required = hosts or ([] if ours else None)
    comment = beside(comment, job.admin_comment)
    await means.writer.update_job(task.job, excluded=union, required=required, admin_comment=comment)
    return means.done(task, data={"excluded": ",".join(union), "required": ",".join(hosts)})


def beside(ours: str, before: str) -> str:
    """Our words for the admin comment, followed by what somebody else had written there."""
    theirs = before.partition(_BESIDE)[2] if before.startswith(OURS) else before
    text = f"{ours}{_BESIDE}{theirs}" if theirs else ours
    return text if len(text) <= _COMMENT else f"{text[: _COMMENT - 1]}…"


async def release(task: Task, means: Means) -> Outcome:
    """Only what this incident stopped may start, and only if nobody holds it; now instead of after Slurm's 121 s."""
    job = await means.reader.job(task.job)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    if job.state == "cancelled":
        return _cancelled(task, means)
    if job.held and means.earlier(task, StepKind.REQUEUE_HOLD).get("deferred"):
        return _held_meanwhile(task, means, job)
    if job.held and not job.admin_comment.startswith(f"{OURS}{task.incident.id}"):
        return means.failed(task, f"job {task.job} is held by somebody else: {job.reason}")
    if _waits(job) and job.held:  # by us: stopped by a release of Sentinel that held jobs
        await means.writer.release(task.job)
        job = await means.reader.job(task.job)
        if job is None or job.held:
            raise Unavailable(f"job {task.job} does not show as released yet")
    elif _deferred(job, means.clock.now()):
        await means.writer.update_job(task.job, start_now=True)
        job = await means.reader.job(task.job)
        if job is not None and job.held:
            return _held_meanwhile(task, means, job)
        if job is None or _deferred(job, means.clock.now()):
            raise Unavailable(f"job {task.job} does not show as released yet")
    return means.done(task)


def _held_meanwhile(task: Task, means: Means, job: JobView) -> Outcome:
    words = f"job {task.job} was held meanwhile, not by Sentinel ({job.reason}): whoever held it releases it"
    return means.failed(task, words)


async def leave_held(task: Task, means: Means) -> None:
    """After a step that failed: the job that we stopped waits for a person, held, and starts when it is released."""
    if task.step.job is None or not means.earlier(task, StepKind.REQUEUE_HOLD).get("deferred"):
        return
    job = await means.reader.job(task.job)
    if job is None or not _waits(job) or job.restarts != task.attempt + 1:
        return
    if not job.held:
        await means.writer.requeue_hold(task.job)
    await means.writer.update_job(task.job, start_now=True)


async def hold(task: Task, means: Means) -> Outcome:
    """The job keeps its id and waits for a person: held, with the answer in its admin comment."""
    job = await _settled(task, means)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    if job.state == "cancelled":
        return means.done(task, "was cancelled by its user", CANCELLED)
    if not (_waits(job) and job.held):
        await means.writer.requeue_hold(task.job)
        if not await _until_pending(task, means):
            return means.done(task, "was cancelled by its user", CANCELLED)
    # Whoever releases it waits no 121 s for it.
    words = beside(f"{task.reason} held", job.admin_comment)
    await means.writer.update_job(task.job, admin_comment=words, start_now=True)
    return means.done(task)
