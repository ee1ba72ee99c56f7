"""Takes a node out of service: drains it if it answers, sets it down if it is gone."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.actions.means import WHOLE_SECONDS, Means
from sentinel.errors import Refused, RefusedForNow, Unavailable
from sentinel.model.records import (
    ANSWERS_AGAIN,
    LEFT_IN_SERVICE,
    OURS,
    NodeView,
    Outcome,
    Scalar,
    Task,
)
from sentinel.model.vocabulary import (
    ABSENCE,
    LOST_BEFORE,
    REBOOT_ASKED,
    REBOOTS,
    SEEN_DRAINED,
    WAS_OUT,
    only_for_reboot,
    switched_by_slurm,
)

_OTHERS = "was drained by somebody else already"
_RETURNED = "was returned to service by somebody else: left there"
_LEFT: dict[str, Scalar] = {LEFT_IN_SERVICE: True}  # outcome data
_STALE = timedelta(seconds=10)  # what says that a node is gone is asked again when older: slurmd may run again by then


async def drain(task: Task, means: Means) -> Outcome:
    """Drain the node. An existing drain by somebody else is left as it is and counts as done."""
    assert task.step.node is not None
    node = await means.reader.node(task.step.node)
    if node is None:
        return means.failed(task, f"Slurm does not know node {task.step.node}")
    if node.drained and not only_for_reboot(node.reason, node.flags):
        return means.done(task, _others(node), {**_out_before(node, task), **_reboot_asked(node)})
    if task.step.tries and not await _was_lost(task, means):
        return means.done(task, _RETURNED, _LEFT)
    asked_at, data = means.clock.now(), _reboot_asked(node)
    try:
        await means.writer.drain(node.name, task.reason)
    except Refused as error:
        after = await means.reader.node(node.name)
        if after is not None and after.drained:
            return means.done(task, error.message)
        if isinstance(error, RefusedForNow) and after is not None:
            return _refused(task, error, means)
        return means.failed(task, error.message)
    answered_at = means.clock.now()  # what slurmctld has not saved by now it may lose while we wait for its next answer
    try:
        after = await means.reader.node(node.name)
    except Unavailable:  # if a person returns the node before the next look, that stays so
        return dataclasses.replace(means.done(task, data=data), at=answered_at)
    if await _returned_since(after, asked_at, means):
        return means.done(task, _RETURNED, _LEFT)
    if after is None or not after.drained:
        raise Unavailable(f"node {node.name} does not show as drained yet")
    return means.done(task, data=data)


def _refused(task: Task, error: RefusedForNow, means: Means) -> Outcome:
    """The outcome of a refused drain. One that slurmctld had lost is asked for again by the same plan."""
    if task.step.tries:
        raise error
    return means.refused_drain(task, error.message)


def _others(node: NodeView) -> str:
    """What is said of a node that was out already and stays somebody else's: that costs no budget, and proves nothing."""
    return _OTHERS if node.drained and not node.reason.startswith(OURS) else ""


def _out_before(node: NodeView, task: Task) -> dict[str, Scalar]:
    """Data of the outcome where the node was out already, for another incident of ours."""
    ours = node.drained and node.reason.startswith(OURS)
    return {WAS_OUT: True} if ours and not node.reason.startswith(f"{OURS}{task.incident.id} ") else {}


def _reboot_asked(node: NodeView) -> dict[str, Scalar]:
    """Data of the outcome where somebody has asked Slurm to reboot the node: with ``nextstate=RESUME`` that ends the drain,
    and nobody has decided so who knew of the fault."""
    return {REBOOT_ASKED: True} if not node.flags.isdisjoint(REBOOTS) else {}


async def _returned_since(node: NodeView | None, asked_at: datetime, means: Means) -> bool:
    """Whether somebody returned the node to service after our drain.

    slurmctld drains before it answers and keeps the drain unless it is restarted. A node that is in service although
    slurmctld did not restart was therefore returned by a person.
    """
    if node is None or node.drained:
        return False
    return await means.slurmctld_started_since(asked_at) is False


async def _was_lost(task: Task, means: Means) -> bool:
    """Whether slurmctld was restarted after the earlier drain and may have lost it."""
    before = means.last_try(task)
    if before is None:
        return False
    seen = task.step.data.get(SEEN_DRAINED)  # the drain was still there after a restart
    since = max(before.at, datetime.fromisoformat(seen)) if isinstance(seen, str) else before.at
    until = task.step.data.get(LOST_BEFORE)
    # Known is the newest start alone. Where slurmctld was also started before that time, that is not known: the node stays
    # in service, since a person's return is by far the likelier.
    if isinstance(until, str) and await means.slurmctld_started_since(datetime.fromisoformat(until) + WHOLE_SECONDS):
        return False
    return await means.slurmctld_started_since(since) is True


async def down(task: Task, means: Means) -> Outcome:
    """Set the node down, so that Slurm ends its jobs at once instead of waiting for the node.

    Not one that answers again by now: Slurm may have begun a job there, which this would end. It is drained if more than
    its absence convicts it.
    """
    assert task.step.node is not None
    node = await means.reader.node(task.step.node)
    if node is None:
        return means.failed(task, f"Slurm does not know node {task.step.node}")
    if task.step.tries and not node.drained and not await _was_lost(task, means):
        return means.done(task, _RETURNED, _LEFT)
    switched = switched_by_slurm(node.state, node.flags)
    if node.state != "down" and (switched or await answers_again(node, task, means)):
        if node.name in task.verdict.broken:
            return await drain(task, means)
        if switched:
            return means.failed(task, f"{node.name} is being switched off or on, or rebooted, by Slurm: it is not gone")
        return means.done(task, "answers again: left in service", {**_LEFT, ANSWERS_AGAIN: True})
    words, before = _others(node), {**_out_before(node, task), **_reboot_asked(node)}
    if not (node.state == "down" and node.drained and node.reason.startswith(OURS)):
        asked_at = means.clock.now()
        try:
            await means.writer.down(node.name, task.reason)
        except RefusedForNow as error:
            after = await means.reader.node(node.name)
            if after is not None and not after.drained:
                return _refused(task, error, means)
            raise  # it takes no new work, and its job waits for it to be set down
        answered_at = means.clock.now()
        try:
            node = await means.reader.node(node.name)
        except Unavailable:
            return dataclasses.replace(means.done(task, words, before), at=answered_at)  # see drain
        if await _returned_since(node, asked_at, means):
            return means.done(task, _RETURNED, _LEFT)
    if node is None or node.state != "down":
        raise Unavailable(f"node {task.step.node} does not show as down yet")
    return means.done(task, words, before)


async def answers_again(node: NodeView, task: Task, means: Means) -> bool:
    """Whether a node that was gone answers now. Asked when nobody has looked for a while: the daemon was away, or paused."""
    own = [item for item in task.incident.evidence if item.where.node == node.name]
    gone = [item for item in own if item.kind in ABSENCE] or own  # what else is said of it may be of after its return
    looked = max((item.at for item in gone), default=None)
    if looked is None:
        return False
    # A time in the future is of a clock that was set since: how old the news is is not known.
    fresh = timedelta(0) <= means.clock.now() - looked <= _STALE
    return not fresh and await means.answers(node)
