"""Lets a prepared job start, unless somebody else holds it or slurmctld forgot what was prepared."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.actions.comments import BESIDE
from sentinel.actions.held_meanwhile import held_meanwhile
from sentinel.actions.means import Means
from sentinel.actions.next_attempt import exclude, hold_instead
from sentinel.actions.requeue import is_deferred, is_far, overtaken, waits, was_cancelled
from sentinel.actions.resume_point import write_again
from sentinel.errors import Unavailable
from sentinel.model.jobs.chains import CHAIN, begun_instead
from sentinel.model.jobs.put_off import OURS_FROM, put_off_at
from sentinel.model.records import OURS, REQUEUED_AT, JobView, Outcome, Result, StepKind, Task
from sentinel.model.vocabulary import NEVER_STARTS
from sentinel.text import names

_CLOCKS_DIFFER = timedelta(days=1)  # slurmctld's and this host's: what Sentinel put off it put off before now
# Where Slurm knows that one no more.
_HAD_BEGUN = "Job {} is held: the next one of its chain (--dependency=singleton) had begun."


async def release(task: Task, means: Means) -> Outcome:
    """Let the job start now, without Slurm's 121 s delay, if this incident stopped it and nobody else holds it."""
    job = await means.job(task)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    if job.state == "cancelled":
        return was_cancelled(task, means, job)
    if words := overtaken(task, means, job):
        return means.done(task, words)
    if job.held and job.reason == NEVER_STARTS:
        return await _release_never_starting(task, means, job)
    if job.held and _was_being_held(task, means):
        return await hold_instead(task, means, await _begun_instead(task, means, job) or _HAD_BEGUN.format(job.id))
    stopped = means.earlier(task, StepKind.REQUEUE_HOLD)
    if job.held and stopped.get("deferred") and await _deferral_was_lost(task, means, job):
        await means.writer.defer(task.job)
        job = await means.job(task)
        if job is None or job.held:
            raise Unavailable(f"job {task.job} does not show as deferred yet")
    if job.held and (stopped.get("deferred") or stopped.get("user_hold")):
        return held_meanwhile(task, means, job)
    if job.held and not job.admin_comment.startswith(f"{OURS}{task.incident.id}"):
        return means.failed(task, f"job {task.job} is held by somebody else: {job.reason}")
    if waits(job) and job.held:  # by us: an older version of Sentinel held jobs instead of deferring them
        await means.writer.release(task.job)
        job = await means.job(task)
        if job is None or job.held:
            raise Unavailable(f"job {task.job} does not show as released yet")
    elif waits(job):
        if words := await _begun_instead(task, means, job):
            return await hold_instead(task, means, words)
        if (over := await _excluded_again(task, means, job)) is not None:
            return over
        # Counted twice, or slurmctld forgot the attempt that had begun; done again, another incident's may be in its place.
        if job.restarts != task.attempt + 1 or task.step.tries:
            await write_again(task, means, job)
        if is_deferred(job, means.clock.now()):
            if words := _start_of_its_user(task, means, job):
                return means.done(task, words)
            return await _end_deferral(task, means)
    return means.done(task)


def _was_being_held(task: Task, means: Means) -> bool:
    """Whether this very step had asked for a hold, and was cut off before its end: then the hold is ours."""
    before = means.ledger.outcome(task.incident.id, task.step)
    return before is not None and before.data.get("asked") is True


async def _begun_instead(task: Task, means: Means, job: JobView) -> str:
    """Why the job is not let go: Slurm may have begun the next one of its chain before the job was requeued."""
    links = [await means.reader.job(int(link)) for link in names(task.step.data.get(CHAIN))]
    return begun_instead(job, (link for link in links if link is not None))


def _start_of_its_user(task: Task, means: Means, job: JobView) -> str:
    """When its user wants the stopped job to start, if somebody put that in the place of our deferral; empty if not."""
    requeued_at = means.earlier(task, StepKind.REQUEUE_HOLD).get(REQUEUED_AT)
    if not isinstance(requeued_at, str) or job.eligible_at is None:
        return ""
    put_off = put_off_at(job)
    ahead = put_off is not None and put_off - means.clock.now() > _CLOCKS_DIFFER
    if not ahead and job.eligible_at - datetime.fromisoformat(requeued_at) >= OURS_FROM:
        return ""
    return f"its user had it start at {job.eligible_at:%Y-%m-%d %H:%M} UTC: it waits for that"


async def _end_deferral(task: Task, means: Means) -> Outcome:
    await means.writer.update_job(task.job, start_now=True)
    after = await means.job(task)
    if after is not None and after.held and after.reason == NEVER_STARTS:
        return await _release_never_starting(task, means, after)
    if after is not None and after.held:
        return held_meanwhile(task, means, after)
    if after is None or is_deferred(after, means.clock.now()):
        raise Unavailable(f"job {task.job} does not show as released yet")
    return means.done(task)


async def _release_never_starting(task: Task, means: Means, job: JobView) -> Outcome:
    """Slurm says that the job can never start. With nodes of ours in its lists it is left to ``engine.reconcile.restarts``,
    which takes them out and has it released once more; without, it is its user's to change what it asks for."""
    written = means.earlier(task, StepKind.EXCLUDE)
    added, required = ({*names(written.get(key))} for key in ("added", "required"))
    if added & {*job.excluded} or (required and required == {*job.required}):
        return means.done(task)
    await means.writer.release(task.job)
    after = await means.job(task)
    return held_meanwhile(task, means, after) if after is not None and after.held else means.done(task)


async def _deferral_was_lost(task: Task, means: Means, job: JobView) -> bool:
    """Whether the hold is ours: slurmctld was killed after it saved our requeue and before it saved all of the deferral.

    A hold by somebody else is not that of the requeue: it leaves the deferral in place, or came after the release. Then
    Slurm empties the eligible time, while a hold of ours comes within 121 s of the requeue, before the job may start.
    """
    others = job.eligible_at is None or is_far(job, means.clock.now())
    if not waits(job) or (others and not job.requeue_held):
        return False
    stop = next(step for step in task.plan.steps if step.kind is StepKind.REQUEUE_HOLD and step.job == task.job)
    outcome = means.ledger.outcome(task.incident.id, stop)
    return outcome is not None and await means.slurmctld_started_since(outcome.at) is True


async def _excluded_again(task: Task, means: Means, job: JobView) -> Outcome | None:
    """Write the job's list of nodes once more if slurmctld was killed before it had saved that. Our comment came with it.

    Returns an outcome for a job that is not to be released after all.
    """
    step = next((step for step in task.plan.steps if step.kind is StepKind.EXCLUDE and step.job == task.job), None)
    before = means.ledger.outcome(task.incident.id, step) if step is not None else None
    if before is None or before.result is not Result.DONE or "excluded" not in before.data:
        return None
    ours = job.admin_comment.partition(BESIDE)[0]
    if ours.startswith(f"{OURS}{task.incident.id} ") and f"attempt={task.attempt + 1}" in ours.split():
        return None
    if await means.slurmctld_started_since(before.at) is not True:
        return None  # somebody wrote another comment
    again = await exclude(dataclasses.replace(task, step=before.step), means)
    return means.failed(task, again.reason, again.data) if again.result is Result.FAILED else None
