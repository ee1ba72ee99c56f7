"""Requeues a job and defers its start, or leaves it held with an explanation.

While a restart is prepared the job is deferred to a time far in the future instead of held: Slurm ignores a hold on a job
that is held already, so that a hold by its user would go unnoticed and be released with ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime, timedelta

from sentinel.actions.comments import beside
from sentinel.actions.held_meanwhile import SUSPENDED, held_meanwhile
from sentinel.actions.left_alone import began_after_all, goes_on, runs_without_broken_nodes, was_done
from sentinel.actions.means import Means
from sentinel.errors import Refused, RefusedForNow, Unavailable
from sentinel.model.records import (
    OURS,
    REQUEUED_AT,
    STOPS,
    JobView,
    Outcome,
    Result,
    Scalar,
    Step,
    StepKind,
    Task,
)
from sentinel.model.vocabulary import ENDED_BY_SLURM

_LOOK_S = 0.2  # first pause between queries of a job that is ending
# Later pauses, as a share of the time waited: a hung epilog must not cost slurmctld 5 requests a second per job.
_LATER = 0.1
_MOST_LOOK_S = 2.0
_FAR = timedelta(days=1)  # a job eligible later than this counts as deferred by Sentinel, which defers by 30 days
_NOT_OVER = frozenset({"pending", "configuring", "running", "suspended"})
_MOST_COMPONENTS = 128  # of a heterogeneous job (MAX_HET_JOB_COMPS of Slurm)
CANCELLED: dict[str, Scalar] = {"cancelled": True}  # outcome data: cancelled by its user, no operator need act
# A job cancelled while it completes keeps the hold of our requeue in Slurm, even if somebody requeues it later.
LEFT_HOLD: dict[str, Scalar] = {**CANCELLED, "left_hold": True}
OVER: dict[str, Scalar] = {"over": True}  # outcome data: the job has ended, and Slurm requeues it no more
# ... as Slurm ended it on purpose: nothing has failed, and nobody need act
ON_PURPOSE: dict[str, Scalar] = {**OVER, "on_purpose": True}
GOES_ON: dict[str, Scalar] = {"goes_on": True}  # outcome data: the job runs again without our help
FORGOTTEN: dict[str, Scalar] = {"forgotten": True}  # outcome data: slurmctld forgot that the attempt had begun
DONE_BEFORE: dict[str, Scalar] = {"goes_on": True, "done_before": True}  # ... or had finished, and only its epilogs ran


async def requeue_hold(task: Task, means: Means) -> Outcome:
    """Stop the job: requeue it and defer its start; done when it is pending and all its processes are gone.

    Slurm may requeue it at the same moment (NODE_FAIL): then it is pending already and only gets deferred.
    """
    try:
        return await _requeue_hold(task, means)
    except Refused as no:
        return await _over_or_refused(task, means, no)


async def hold(task: Task, means: Means) -> Outcome:
    """Hold the job for a person, with the reason in its admin comment; it keeps its id."""
    try:
        return await _hold(task, means)
    except Refused as no:
        return await _over_or_refused(task, means, no)


async def _over_or_refused(task: Task, means: Means, no: Refused) -> Outcome:
    """The outcome where Slurm does not stop a job that has ended: nobody holds it, and nobody can release it.

    Raises:
        Refused: ``no``, of any other job.
    """
    job = await means.job(task) if not isinstance(no, RefusedForNow) else None
    if job is None or job.ended_at is None:
        raise no
    return means.failed(task, f"{no}", OVER)


async def _requeue_hold(task: Task, means: Means) -> Outcome:
    job = await _settled(task, means)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    before = means.ledger.outcome(task.incident.id, task.step)
    if job.state == "cancelled":
        return was_cancelled(task, means, job)
    if _left_hold(task, means):
        return await _without_our_hold(task, means, job)
    if (over := _not_ours_to_stop(task, means, job)) is not None:
        await _take_off_our_hold(task, means, job)
        return over
    if is_deferred(job, means.clock.now()):
        return means.done(task, data=_stopped(job))
    asked = before is not None and bool(before.data.get("asked"))
    if not asked and (words := await goes_on(task, means, job)):
        return means.failed(task, words, GOES_ON)
    if words := await began_after_all(task, means):
        return means.failed(task, words, GOES_ON)
    ours = asked or (waits(job) and _looks_like_ours(task, job))
    if waits(job) and job.held and not ours:
        return held_meanwhile(task, means, job)  # stopped and held by somebody else
    kept = _held_by_its_user(task, means, job)
    suspended: dict[str, Scalar] = {SUSPENDED: True} if kept and _was_suspended(job, before) else {}
    await means.ledger.progressed(task, {"asked": True, "user_hold": kept, **suspended})
    if not (waits(job) and job.held):
        ours = await _requeued_and_held(task, means, before) or ours
    pending = await _until_pending(task, means, ours=ours or kept)
    if isinstance(pending, Outcome):
        return pending
    if kept:
        who = "an operator had suspended it" if suspended else "its user had put a hold on it"
        return means.done(task, f"{who}: it stays held", {"user_hold": True, **suspended})
    try:
        await means.writer.defer(task.job)
    except Refused:
        job = await means.job(task)
        if job is None or job.state != "cancelled":
            raise
        return was_cancelled(task, means, job)
    return means.done(task, data=_stopped(pending))


async def _requeued_and_held(task: Task, means: Means, before: Outcome | None) -> bool:
    """Whether the hold on the job is ours. Where Slurm refuses, nothing was asked: a later hold is somebody else's.

    Args:
        before: how the step stood before this try.
    """
    try:
        return await means.writer.requeue_hold(task.job, task.attempt)
    except RefusedForNow:
        await means.ledger.progressed(task, before.data if before is not None else {})
        raise


def _stopped(job: JobView) -> dict[str, Scalar]:
    """Outcome data: the job is deferred, and when Slurm requeued it, from which Slurm counts its start delay."""
    return {"deferred": True} | ({REQUEUED_AT: job.submitted_at.isoformat()} if job.submitted_at is not None else {})


def _held_by_its_user(task: Task, means: Means, job: JobView) -> bool:
    """Whether somebody held the job while it ran. After our own request the hold may be ours, so the answer is no."""
    before = means.ledger.outcome(task.incident.id, task.step)
    known = before.data if before is not None else {}
    ours = known.get("asked") and job.state == "completing"
    if job.held and means.earlier(task, StepKind.HOLD).get("user_hold"):
        return True  # this incident held it first, and knows better by now
    return bool(known.get("user_hold")) or (job.hold_kept and not ours)


def _was_suspended(job: JobView, before: Outcome | None) -> bool:
    """Whether somebody had suspended the job: scontrol suspend takes its priority, as a hold does. Slurm's own does not."""
    return job.state == "suspended" or (before is not None and before.data.get(SUSPENDED) is True)


def _looks_like_ours(task: Task, job: JobView) -> bool:
    """Whether this incident held the job, and knows better by now, or Slurm's RequeueExitHold did."""
    return job.exit_held or job.admin_comment.startswith(f"{OURS}{task.incident.id} ")


def _is_anothers_hold(task: Task, means: Means, job: JobView) -> bool:
    """Whether somebody else holds the waiting job: Slurm had requeued it, or who holds it has, before our request."""
    steps = (task.step, *(Step(kind, job=task.job, attempt=task.attempt) for kind in STOPS))
    outcomes = [means.ledger.outcome(task.incident.id, step) for step in steps]
    asked = any(outcome is not None and outcome.data.get("asked") for outcome in outcomes)
    return waits(job) and job.held and not (asked or _looks_like_ours(task, job))


async def _take_off_our_hold(task: Task, means: Means, job: JobView) -> None:
    """Let a job go on of which our request has stopped a later attempt: Slurm began it between our look and our request.

    Raises:
        Unavailable: that attempt is still completing.
    """
    before = means.ledger.outcome(task.incident.id, task.step)
    if before is None or not before.data.get("asked") or before.data.get("user_hold"):
        return
    if job.state == "completing" and job.hold_kept:
        raise Unavailable(f"attempt {job.restarts} of job {task.job} is still completing, with our hold")
    if waits(job) and job.requeue_held:
        await means.writer.release(task.job)


def _not_ours_to_stop(task: Task, means: Means, job: JobView) -> Outcome | None:
    """The outcome if there is nothing to stop, as somebody restarted the job or it had finished; else None."""
    if words := _restarted_meanwhile(task, means, job):
        return means.failed(task, words, GOES_ON)
    if was_done(task, job):
        return means.failed(task, f"job {task.job} was done before this happened", DONE_BEFORE)
    if job.state in ENDED_BY_SLURM:
        return ended_on_purpose(task, means, job)
    if runs_without_broken_nodes(task, means, job):
        words = (
            f"attempt {task.attempt} of job {task.job}, which slurmctld had forgotten, began anew without these nodes"
        )
        return means.failed(task, words, GOES_ON)
    return None


def ended_on_purpose(task: Task, means: Means, job: JobView) -> Outcome:
    """The outcome for a job that Slurm ended by a limit, with its reservation or for other jobs."""
    return means.failed(task, f"job {task.job} {ENDED_BY_SLURM[job.state]}: Slurm ended it on purpose", ON_PURPOSE)


def _restarted_meanwhile(task: Task, means: Means, job: JobView) -> str:
    """Why a newer attempt than the failed one is left alone; empty if there is no newer attempt."""
    if job.restarts > task.attempt and job.state not in ("pending", "completing"):
        return f"job {task.job} was restarted by somebody else meanwhile"
    return overtaken(task, means, job)


def overtaken(task: Task, means: Means, job: JobView) -> str:
    """Why this restart leaves the job alone: the attempt that it prepares has begun and is over. Empty otherwise.

    The next incident's restart is not disturbed. slurmctld (22.05) may count one requeue twice, with one time, if the script
    is reported over late; a later requeue has that time, too, if the job waited for a lost node that was set down.
    """
    requeued_at = means.earlier(task, StepKind.REQUEUE_HOLD).get(REQUEUED_AT)
    same = waits(job) and requeued_at is not None and _stopped(job).get(REQUEUED_AT) == requeued_at
    same = same and not means.progress.has_run(task.job, task.attempt + 1)
    if same or job.restarts <= task.attempt + 1:
        return ""
    return f"job {task.job} has run since (attempt {task.attempt + 1}), and that attempt is over"


def waits(job: JobView) -> bool:
    return job.state == "pending"


def is_deferred(job: JobView, now: datetime) -> bool:
    return waits(job) and not job.held and is_far(job, now)


def is_far(job: JobView, now: datetime) -> bool:
    return job.eligible_at is not None and job.eligible_at - now > _FAR


def gone(task: Task, means: Means, job: JobView | None) -> Outcome | None:
    """How a step ends for a job that Slurm no longer knows or that was cancelled; None for any other."""
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job}")
    return means.failed(task, f"job {task.job} was cancelled", CANCELLED) if job.state == "cancelled" else None


def was_cancelled(task: Task, means: Means, job: JobView) -> Outcome:
    """The outcome for a job that its user cancelled; its data says whether this step left a hold on it."""
    before = means.ledger.outcome(task.incident.id, task.step)
    asked = before is not None and before.data.get("asked") and not before.data.get("user_hold")
    stopped = job.restarts > task.attempt  # our requeue was counted, so it came before the cancel
    return means.failed(task, f"job {task.job} was cancelled", LEFT_HOLD if asked and stopped else CANCELLED)


def _left_hold(task: Task, means: Means) -> bool:
    """Whether the step was tried before, and its job was cancelled with our hold on it."""
    before = means.last_try(task)
    return before is not None and before.data.get("left_hold") is True


async def _without_our_hold(task: Task, means: Means, job: JobView) -> Outcome:
    """Remove our hold from a cancelled job that somebody requeued since: nobody else holds it."""
    if waits(job) and job.held:
        await means.writer.release(task.job)
    words = f"job {task.job} was cancelled while it was stopped, and requeued by somebody since: Sentinel's hold is off"
    return means.failed(task, words, GOES_ON)


async def _settled(task: Task, means: Means) -> JobView | None:
    """Wait until the job is no longer "completing" and return it.

    Its final state is known only then: requeuing it earlier would restart a job that its user has cancelled.

    Raises:
        Unavailable: it is still completing, or slurmctld forgot that this attempt had begun. Then the one before is stopped
            by the incident that had stopped it, or found gone by Slurm.
    """
    began_s = means.seconds()
    while True:
        job = await means.job(task)
        if job is not None and job.state in _NOT_OVER and not job.held and job.restarts < task.attempt:
            await means.ledger.progressed(task, FORGOTTEN)
            raise Unavailable(f"slurmctld no longer knows attempt {task.attempt} of job {task.job}")
        if job is None or job.state != "completing" or job.restarts > task.attempt:
            return job
        if (waited_s := means.seconds() - began_s) >= means.pending_s:
            raise Unavailable(f"job {task.job} is still completing after {means.pending_s:g} s; its epilogs may hang")
        await _pause(waited_s)


async def _pause(waited_s: float) -> None:
    """Pause before the next query of a job that has been ending for ``waited_s``."""
    await asyncio.sleep(min(max(_LOOK_S, _LATER * waited_s), _MOST_LOOK_S))


async def _until_pending(task: Task, means: Means, *, ours: bool = True) -> JobView | Outcome:
    """Wait until the requeued job is pending; it is "completing" until its epilogs have ended.

    Nodes listed for a pending job are ignored: if nodes were set down before their epilogs ended, Slurm 22.05 goes on
    listing those of an attempt whose start failed.

    Args:
        ours: whether a hold on the job may be ours.

    Returns an outcome instead for a job that its user cancelled, or that somebody else requeued and holds.
    """
    began_s = means.seconds()
    while True:
        job = await means.job(task)
        if job is None:
            raise Unavailable(f"job {task.job} is gone while it was being requeued")
        if job.state == "cancelled":
            return was_cancelled(task, means, job)
        if job.state in ENDED_BY_SLURM:  # between our look and our request, which so did nothing
            return ended_on_purpose(task, means, job)
        if words := _restarted_meanwhile(task, means, job):
            raise Unavailable(words)  # a new attempt began: this step does not wait for its end
        if waits(job) and job.held and not ours and not job.exit_held:
            return held_meanwhile(task, means, job)
        if waits(job) and job.held and await _components_wait(job, means):
            return job
        # It ended by itself, or Slurm requeued it, before our request came.
        if job.ended_at is not None or (waits(job) and not job.held):
            ours = await means.writer.requeue_hold(task.job, task.attempt) or ours
        if (waited_s := means.seconds() - began_s) >= means.pending_s:
            raise Unavailable(f"job {task.job} is still {job.state} after {means.pending_s:g} s; its epilogs may hang")
        await _pause(waited_s)


async def _components_wait(job: JobView, means: Means) -> bool:
    """Whether all other components of a heterogeneous job are pending too.

    Slurm resets the start time of each component when its epilogs end: a deferral written earlier is lost.
    """
    if job.het is None:
        return True
    for number in range(job.het, job.het + _MOST_COMPONENTS):  # their ids follow the leader's
        part = job if number == job.id else await means.reader.job(number)
        if part is None or part.het != job.het:
            return True
        if part.state == "completing":
            return False
    return True


async def leave_held(task: Task, means: Means) -> None:
    """After a failed step, hold the job that we stopped, for a person to decide; once released it starts at once."""
    stop = next((step for step in task.plan.steps if step.kind is StepKind.REQUEUE_HOLD and step.job is not None), None)
    if task.step.job is None or stop is None or stop.job is None:
        return
    task = dataclasses.replace(task, step=stop)
    stopped = means.earlier(task, StepKind.REQUEUE_HOLD)
    if not (stopped.get("deferred") or stopped.get("user_hold")):
        return
    job = await means.job(task)
    if job is None or not waits(job) or job.restarts <= task.attempt or overtaken(task, means, job):
        return
    if not job.held:
        await means.writer.requeue_hold(stop.job, task.attempt)
    await means.writer.update_job(stop.job, start_now=True)


async def _stayed_as_it_was(task: Task, means: Means) -> bool:
    """Whether slurmctld lost nothing since this step was done before: it was not started since."""
    before = means.last_try(task)
    return before is not None and await means.slurmctld_started_since(before.at) is False


async def _hold(task: Task, means: Means) -> Outcome:
    before = means.ledger.outcome(task.incident.id, task.step)
    job = await _settled(task, means)
    if job is None:
        return means.failed(task, f"Slurm no longer knows job {task.job} (purged after MinJobAge)")
    if job.state == "cancelled":
        return dataclasses.replace(was_cancelled(task, means, job), result=Result.DONE)
    if _left_hold(task, means):
        return await _without_our_hold(task, means, job)
    if (over := _not_ours_to_stop(task, means, job)) is not None:
        await _take_off_our_hold(task, means, job)
        return over
    if words := await goes_on(task, means, job):
        return means.failed(task, words, GOES_ON)
    if waits(job) and job.held and await _stayed_as_it_was(task, means):
        return means.done(task, "its comment was changed by somebody: it stays so")
    kept = _held_by_its_user(task, means, job) or _is_anothers_hold(task, means, job)
    if not (waits(job) and job.held):
        await means.ledger.progressed(task, {"asked": True, "user_hold": kept})
        await _requeued_and_held(task, means, before)
        if isinstance(ended := await _until_pending(task, means), Outcome):
            return dataclasses.replace(ended, result=Result.DONE) if ended.data.get("cancelled") else ended
    elif kept:  # from the next request on the job carries our comment
        await means.ledger.progressed(task, {"user_hold": True})
    # Without start_now the job would start only 121 s after its release.
    words = beside(f"{task.reason} held", job.admin_comment)
    await means.writer.update_job(task.job, admin_comment=words, start_now=True)
    return means.done(task, data={"user_hold": True} if kept else None)
