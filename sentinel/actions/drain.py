"""Take a node out: drained when it answers, down when it is gone."""

from __future__ import annotations

from sentinel.actions.means import Means, Task
from sentinel.errors import Refused, Unavailable
from sentinel.model import OURS, Outcome


async def drain(task: Task, means: Means) -> Outcome:
    """No new work for the node. Somebody else's drain is left as it is and counts as done."""
    assert task.step.node is not None
    node = await means.reader.node(task.step.node)
    if node is None:
        return means.failed(task, f"Slurm does not know node {task.step.node}")
    if node.drained:
        return means.done(task, "" if node.reason.startswith(OURS) else "was drained by somebody else already")
    try:
        await means.writer.drain(node.name, task.reason)
    except Refused as error:
        return means.done(task, error.message)
    after = await means.reader.node(node.name)
    if after is None or not after.drained:
        raise Unavailable(f"node {node.name} does not show as drained yet")
    return means.done(task)


async def down(task: Task, means: Means) -> Outcome:
    """Slurm gives the node up at once, so that its jobs end and need not wait for it."""
    assert task.step.node is not None
    node = await means.reader.node(task.step.node)
    if node is None:
        return means.failed(task, f"Slurm does not know node {task.step.node}")
    if not (node.state == "down" and node.drained and node.reason.startswith(OURS)):
        await means.writer.down(node.name, task.reason)
        node = await means.reader.node(node.name)
    if node is None or node.state != "down":
        raise Unavailable(f"node {task.step.node} does not show as down yet")
    return means.done(task)
