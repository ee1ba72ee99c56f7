"""Prepares a stopped job's next attempt: its checkpoint, its resume point, and which nodes it may get.

The resume point is what TaskProlog reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

from sentinel.actions import resume_point
from sentinel.actions.comments import BESIDE, beside
from sentinel.actions.means import Means
from sentinel.actions.requeue import gone, hold, overtaken
from sentinel.errors import Refused, Unavailable
from sentinel.model.hostlist import fold
from sentinel.model.records import LOST_WITHIN, OURS, JobView, Outcome, Result, Scalar, StepKind, Task
from sentinel.model.vocabulary import ASKED, BY_SCRIPT, FOR_ATTEMPT, GOES_ON, NOT_IN_SLURM
from sentinel.text import names

_LIST_STAYS: tuple[str, dict[str, Scalar]] = ("its list stays", {"added": ""})  # of a job that runs by now


async def choose_checkpoint(task: Task, means: Means) -> Outcome:
    """Choose the nearest valid checkpoint.

    The step also succeeds if there is no valid checkpoint: the job then resumes as its script does by default.
    """
    job = await means.job(task)
    if (over := await _if_not_waiting(task, means, job, "its checkpoints stay")) is not None:
        return over
    assert job is not None
    if other := task.step.data.get(GOES_ON):
        words = f"job {other} goes on in its folder while it waits; it resumes as its script does"
        return means.done(task, words, {"explanation": words, BY_SCRIPT: True})
    try:
        chosen = await means.checkpoints.choose(task, job)
    except Refused as error:
        return await hold_instead(task, means, error.message)
    return means.done(task, str(chosen.get("explanation", "")), chosen)


async def hold_instead(task: Task, means: Means, why: str) -> Outcome:
    """Hold the job for a person, as all checkpoints contain bad numbers, for one. Once released it starts at once."""
    held = await hold(task, means)
    if held.result is not Result.DONE or held.data.get("cancelled"):
        return held
    await means.writer.update_job(task.job, start_now=True)  # ends our deferral; only the hold remains
    return means.failed(task, why, {"held": True})


async def quarantine(task: Task, means: Means) -> Outcome:
    job = await means.job(task)
    if (over := await _if_not_waiting(task, means, job, "its checkpoints stay")) is not None:
        return over
    assert job is not None
    moved = await means.checkpoints.quarantine(task, job, means.earlier(task, StepKind.CHOOSE_CHECKPOINT))
    return means.done(task, str(moved.get("explanation", "")), moved)


async def write_resume(task: Task, means: Means) -> Outcome:
    """Write the resume point, before the release: a released job may start even while the daemon is down."""
    job = await means.job(task)
    if (over := await _if_not_waiting(task, means, job, "its resume point stays")) is not None:
        return over
    assert job is not None
    leader = await _leader(means, job)
    if leader is None:
        raise Unavailable(f"Slurm does not show job {job.het}, whose component job {task.job} is")
    await resume_point.write(task, means, leader, leader.restarts)
    return means.done(task, data={FOR_ATTEMPT: leader.restarts})


async def exclude(task: Task, means: Means) -> Outcome:
    """Exclude the faulty nodes from the job's next attempt, and require the nodes of a node-local checkpoint.

    The step names the nodes to exclude now, and those that Sentinel excluded before: of these, others are removed. It names
    the nodes that its user requires, too, where an earlier step wrote others in their place; and nodes of its lists that are
    gone from slurm.conf: Slurm keeps such a name for a job that has it, and takes no list that names it.
    """
    job = await means.job(task)
    if (over := _waits_no_more(task, means, job, *_LIST_STAYS)) is not None:
        return over
    assert job is not None
    ours = job.admin_comment.startswith(OURS)
    if _is_anothers(task, job) and (words := overtaken(task, means, job)):
        return means.done(task, f"{words}: another incident wrote its list", {"added": ""})
    if (kept := await _kept(task, means, job)) is not None:
        return means.done(task, "somebody else changed its list: it stays", kept)
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    hosts = names(chosen.get("hosts")) if chosen.get("tier") == "local" else []
    if hosts and "required" in job.unread_lists:
        fix = f"scontrol update JobId={job.spec} ReqNodeList=... with a list that can be read"
        raise Refused(
            f"the node list with which job {task.job} was submitted cannot be read, and would be lost", fix=fix
        )
    listed = "excluded" not in job.unread_lists
    not_there = names(task.step.data.get(NOT_IN_SLURM))
    theirs = {*job.excluded} - {*names(task.step.data.get("ours"))} - {*not_there}
    wanted = {*names(task.step.data.get("nodes"))}
    union = sorted(theirs | wanted)
    required_by_us = ours and "required=" in job.admin_comment.partition(BESIDE)[0]
    comment = f"{task.reason} attempt={task.attempt + 1}" + (" required=local" if hosts else "")
    asked = names(task.step.data.get(ASKED)) if required_by_us else [*job.required]
    required = hosts or (asked if required_by_us else None)
    comment = beside(comment, job.admin_comment)
    update = partial(
        means.writer.update_job, task.job, excluded=union if listed else None, required=required, admin_comment=comment,
        size=_size(task.step.data.get("size")), gone=not_there,
    )  # fmt: skip
    data: dict[str, Scalar] = {
        "added": ",".join(sorted(wanted - theirs)) if listed else "",
        "required": ",".join(hosts),
    }
    data |= {"excluded": ",".join(union)} if listed else {}
    data |= {ASKED: ",".join(asked)} if hosts or asked else {}
    reservation, said = await _accessible_spares(task, means, job)
    if reservation:
        try:
            await update(reservation=reservation)  # in one request: with the new node list alone it might start at once
            return means.done(task, data={**data, "spares": reservation})
        except Refused as no:
            said = f"no spare node is lent: {no.message}"
    said = "; ".join(filter(None, (*_of_own_list(job, listed, not_there), said)))
    try:
        await update()
    except Refused:  # perhaps since it started between our look and our request
        if (over := _waits_no_more(task, means, await means.job(task), *_LIST_STAYS)) is not None:
            return over
        raise
    return means.done(task, said, data)


def _of_own_list(job: JobView, listed: bool, not_there: Sequence[str]) -> list[str]:
    """What is said of the list with which the job was submitted."""
    if not listed:
        return ["the job's own list of excluded nodes cannot be read: it stays"]
    dropped = fold(name for name in job.excluded if name in not_there)
    return [f"left out of the job's own list, as Slurm has no node {dropped}"] if dropped else []


async def _kept(task: Task, means: Means, job: JobView) -> dict[str, Scalar] | None:
    """What holds of the last such step where a person changed the job's list back to an earlier one of ours; else None.

    If slurmctld was restarted since the last step, and that is not long ago, it may have lost that.
    """
    if not task.step.tries:
        return None
    steps = (dataclasses.replace(task.step, tries=number) for number in range(task.step.tries))
    *earlier, last = (means.ledger.outcome(task.incident.id, step) for step in steps)
    if last is None or "excluded" not in last.data or {*job.excluded} == {*names(last.data["excluded"])}:
        return None
    lists = [{*names(one.data["excluded"])} for one in earlier if one is not None and "excluded" in one.data]
    if {*job.excluded} not in lists:
        return None
    if means.clock.now() - last.at <= LOST_WITHIN and await means.slurmctld_started_since(last.at) is True:
        return None
    return {"added": "", **{key: last.data[key] for key in ("required", "spares") if key in last.data}}


async def _if_not_waiting(task: Task, means: Means, job: JobView | None, stays: str) -> Outcome | None:
    """How a step that prepares the next start ends for a job that does not wait for it any more; None: it does.

    What lies in the job's folders is then its next attempt's, or another job's that its user submitted in its place. Of the
    components of a heterogeneous job the leader is asked: it was requeued, and Slurm counts its restarts.

    Args:
        stays: what the step leaves as it is.
    """
    if any(step.kind is StepKind.START_RUN for step in task.plan.steps):  # in its allocation, which it goes on holding
        if job is None or job.state == "cancelled":
            return gone(task, means, job)
        if job.state == "running" and job.restarts == task.attempt:
            return None
        # The start of the run fails then, and the job is requeued.
        return means.done(task, f"attempt {task.attempt} of job {task.job} is over: {stays}", {BY_SCRIPT: True})
    asked = task
    if job is not None and job.het is not None:
        asked = dataclasses.replace(task, step=dataclasses.replace(task.step, job=job.het))
        job = await _leader(means, job)
    over = _waits_no_more(asked, means, job, stays, {BY_SCRIPT: True})
    words = overtaken(asked, means, job) if over is None and job is not None else ""
    if words and job is not None and (not _was_released(task, means) or _is_anothers(task, job)):
        over = means.done(task, f"{words}: {stays}", {BY_SCRIPT: True})
    return dataclasses.replace(over, step=task.step) if over is not None else None


def _was_released(task: Task, means: Means) -> bool:
    """Whether this plan has let the job start before: Slurm requeued it then before it made a step, and it is prepared once
    more. Checkpoints are moved aside before the release only."""
    if task.step.kind is StepKind.QUARANTINE:
        return False
    step = next((step for step in task.plan.steps if step.kind is StepKind.RELEASE), None)
    outcome = means.ledger.outcome(task.incident.id, step) if step is not None else None
    return outcome is not None and outcome.result is Result.DONE


def _is_anothers(task: Task, job: JobView) -> bool:
    """Whether another incident has written the job's comment."""
    return job.admin_comment.startswith(OURS) and not job.admin_comment.startswith(f"{OURS}{task.incident.id} ")


async def _leader(means: Means, job: JobView) -> JobView | None:
    """The leader of the heterogeneous job of which this is a component; of any other job itself."""
    return job if job.het in (None, job.id) else await means.reader.job(job.het)


def _waits_no_more(
    task: Task, means: Means, job: JobView | None, stays: str, data: Mapping[str, Scalar]
) -> Outcome | None:
    """How the step ends for a job that does not wait to be restarted any more; None: it is pending.

    Args:
        stays: what the step leaves as it is where the job runs by now, which is done, with this data.

    Raises:
        Unavailable: Slurm forgot the requeue, or has it complete once more, as slurmctld was started again.
    """
    if job is not None and job.state == "pending":
        return None
    if job is None or job.state == "cancelled":
        return gone(task, means, job)
    if job.restarts <= task.attempt:
        raise Unavailable(
            f"slurmctld no longer knows that job {task.job} was requeued"
        )  # it is compared with snapshots
    if job.state == "completing":
        raise Unavailable(f"job {task.job} is completing again")
    # It started as it was: any user may set StartTime=now.
    return means.done(task, f"job {task.job} is {job.state} by now: {stays}", data)


async def _accessible_spares(task: Task, means: Means, job: JobView) -> tuple[str, str]:
    """(reservation of spare nodes that the job may use by now, ""), or ("", why not); both empty if none is wanted."""
    reservation = str(task.step.data.get("spares") or "")
    if not reservation or job.reservation not in ("", reservation):
        return "", ""
    if not job.reservation:  # else it has the reservation already and may start any moment
        try:
            await means.writer.give_access(reservation, job.user)
        except Refused as no:
            return "", f"no spare node is lent: {no.message}"
    return reservation, ""


def _size(given: Scalar) -> tuple[int, int, int] | None:
    """(fewest nodes, most nodes, tasks) as the engine wrote them into the step; None if it wrote none."""
    parts = names(given)
    return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) == 3 else None
