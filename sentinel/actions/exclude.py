"""Excludes nodes from a waiting job's next attempt, and lends it spare ones."""

from __future__ import annotations

from functools import partial

from sentinel.actions.means import Means
from sentinel.actions.requeue import BESIDE, CANCELLED, beside
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import OURS, JobView, Outcome, Scalar, StepKind, Task
from sentinel.text import names


async def exclude(task: Task, means: Means) -> Outcome:
    """Exclude the faulty nodes from the job's next attempt, and require the nodes of a node-local checkpoint.

    The step names the nodes to exclude now, and those that Sentinel excluded before: of these, others are removed.
    """
    job = await means.reader.job(task.job)
    if job is not None and job.state == "cancelled":
        return means.failed(task, f"job {task.job} was cancelled", CANCELLED)
    if job is not None and job.state != "pending" and job.restarts <= task.attempt:
        raise Unavailable(
            f"slurmctld no longer knows that job {task.job} was requeued"
        )  # it is compared with snapshots
    if job is not None and job.state != "pending" and task.step.tries:  # it started on the earlier list
        return means.done(task, f"job {task.job} is {job.state} by now: its list stays", {"added": ""})
    if job is None or job.state != "pending":
        return means.failed(task, f"job {task.job} is not pending any more")
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    hosts = names(chosen.get("hosts")) if chosen.get("tier") == "local" else []
    theirs = {*job.excluded} - {*names(task.step.data.get("ours"))}
    wanted = {*names(task.step.data.get("nodes"))}
    union = sorted(theirs | wanted)
    ours = job.admin_comment.startswith(OURS) and "required=" in job.admin_comment.partition(BESIDE)[0]
    comment = f"{task.reason} attempt={task.attempt + 1}" + (" required=local" if hosts else "")
    required = hosts or ([] if ours else None)
    comment = beside(comment, job.admin_comment)
    update = partial(
        means.writer.update_job, task.job, excluded=union, required=required, admin_comment=comment,
        size=_size(task.step.data.get("size")),
    )  # fmt: skip
    added = ",".join(sorted(wanted - theirs))
    data: dict[str, Scalar] = {"excluded": ",".join(union), "added": added, "required": ",".join(hosts)}
    reservation, said = await _accessible_spares(task, means, job)
    if reservation:
        try:
            await update(reservation=reservation)  # in one request: with the new node list alone it might start at once
            return means.done(task, data={**data, "spares": reservation})
        except Refused as no:
            said = f"no spare node is lent: {no.message}"
    await update()
    return means.done(task, said, data)


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
