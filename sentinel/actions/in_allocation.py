"""Restarts a job within its allocation: ends the launcher's step, releases bad nodes, and orders the next step.

The order is written as the job's resume point, which the launcher (``sentinel run`` in the batch script) reads.
"""

from __future__ import annotations

import asyncio

from sentinel.actions.left_alone import goes_on
from sentinel.actions.means import Means
from sentinel.actions.requeue import GOES_ON, gone
from sentinel.actions.resume_point import resume_values
from sentinel.errors import Refused
from sentinel.model.launching import NODES, RUN, run_of
from sentinel.model.records import JobView, Outcome, StepKind, Task
from sentinel.text import names

_ENDS_S = 5.0  # how long Slurm gets to show that a step has ended
_LOOK_S = 0.2  # between two queries of the job's steps
_TAKEN_S = 3.0  # after withdrawing an order: the launcher may have read it just before, and srun is creating the step
_MOST_STEPS = 64  # old steps of one job: one running step, and one per lost node that Slurm never removes from its list


async def stop_run(task: Task, means: Means) -> Outcome:
    """End the launcher's steps before the next run.

    Slurm lists an ended step for 0.1 s, but 22.05 may list a step that lost a node for ever. Two runs at once are still
    impossible: the launcher starts nothing before its srun has ended.
    """
    job = await means.job(task)
    over = _over(task, means, job)
    if job is None or over is not None:
        return over or means.failed(task, "")
    before = means.ledger.outcome(task.incident.id, task.step)
    if not (before is not None and before.data.get("asked")) and (words := await goes_on(task, means, job)):
        return means.failed(task, words, GOES_ON)
    steps = await means.reader.steps(task.job)
    if steps and all(run_of(name) is None for name in steps.values()):
        return means.failed(task, f"job {task.job} runs no step of sentinel run: its script starts it by itself")
    if (count := sum(_is_older(name, task) for name in steps.values())) > _MOST_STEPS:  # each costs two requests
        return means.failed(task, f"job {task.job} runs {count} steps that are named as those of sentinel run")
    await means.ledger.progressed(task, {"asked": True})
    asked_s: float | None = None
    said = ""
    while ours := [number for number, name in steps.items() if _is_older(name, task)]:
        if asked_s is None:
            try:
                for number in ours:
                    await means.writer.end_step(task.job, number)
            except Refused as error:  # the job is requeued instead
                return means.failed(task, error.message)
            asked_s = means.seconds()
        elif means.seconds() - asked_s >= _ENDS_S:
            said = f"Slurm still lists step {task.job}.{ours[0]}"
            break
        await asyncio.sleep(_LOOK_S)
        steps = await means.reader.steps(task.job)
    return means.done(task, "; ".join(filter(None, [said, await _given_back(task, means)])))


def _is_older(step_name: str, task: Task) -> bool:
    number = run_of(step_name)
    return number is not None and number < _run(task)


def _run(task: Task) -> int:
    number = task.step.data.get("run")
    return number if isinstance(number, int) else 0


async def _given_back(task: Task, means: Means) -> str:
    """Release the bad nodes for test and repair while the job runs. Returns why Slurm refused; empty if it did not."""
    job = await means.job(task)
    given_up = {*names(task.step.data.get("given_up"))}
    if job is None or not given_up & {*job.nodes}:
        return ""
    try:
        await means.writer.keep_nodes(task.job, [name for name in job.nodes if name not in given_up])
    except Refused as error:
        return f"{', '.join(sorted(given_up & {*job.nodes}))} stays with the job: {error.message}"
    return ""


async def give_back(task: Task, means: Means) -> Outcome:
    """Release spare nodes of the allocation on which no process of the job runs."""
    over = _over(task, means, await means.job(task))
    if over is not None:
        return means.done(task, over.reason)
    return means.done(task, await _given_back(task, means))


def _over(task: Task, means: Means, job: JobView | None) -> Outcome | None:
    """The outcome for a job whose allocation has ended; None while it has one."""
    if job is None or job.state == "cancelled":
        return gone(task, means, job)
    if job.state != "running" or job.restarts != task.attempt:
        return means.failed(task, f"job {task.job} is {job.state} by now: it has no allocation to be restarted in")
    return None


async def start_run(task: Task, means: Means) -> Outcome:
    """Order the launcher to start the next step; done when Slurm shows that step."""
    nodes, number = names(task.step.data.get("nodes")), _run(task)
    if not nodes:
        return means.failed(task, str(task.step.data.get("why") or "no good node is left in the allocation"))
    chosen = means.earlier(task, StepKind.CHOOSE_CHECKPOINT)
    said = await _given_back(task, means)  # nodes convicted since the last step was stopped
    given_s: float | None = None  # when the order was there to be read
    taken_back_s: float | None = None
    while True:
        job = await means.job(task)
        if (over := _over(task, means, job)) is not None:
            return over
        assert job is not None
        values = resume_values(task, job, chosen, task.attempt)
        if any(run_of(name) == number for name in (await means.reader.steps(task.job)).values()):
            return means.done(task, said, {"run": number, "nodes": ",".join(nodes)})
        if given_s is None:
            await means.resume.write(task.job, {**values, RUN: f"{number}", NODES: ",".join(nodes)})
            given_s = means.seconds()
        elif taken_back_s is None and means.seconds() - given_s >= means.launch_s:
            # A step that begins later would be killed by the requeue.
            await means.resume.write(task.job, values)
            taken_back_s = means.seconds()
        elif taken_back_s is not None and means.seconds() - taken_back_s >= _TAKEN_S:
            words = f"the launcher of job {task.job} started no step within {means.launch_s:g} s"
            return means.failed(task, words, {"run": number})
        await asyncio.sleep(_LOOK_S)
