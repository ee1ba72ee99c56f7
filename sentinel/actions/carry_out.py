"""Carries out one step of a plan, and leaves its job held if the step fails. The engine decides when to begin a step."""

from __future__ import annotations

from sentinel.actions import ACTIONS, Means
from sentinel.actions.requeue import leave_held
from sentinel.errors import Refused, SentinelError, Unavailable
from sentinel.model.records import OPTIONAL_STEPS, Outcome, Result, Task


async def carry_out(task: Task, means: Means) -> Outcome:
    """Run the step's action. Outcome ``NOT_KNOWN``: it may have happened; the action reads Slurm first when it is retried.

    Every error other than a missing answer is a failure, after which the job is left to a person.
    """
    try:
        return await _outcome(task, means)
    except Unavailable as error:
        return Outcome(task.step, Result.NOT_KNOWN, means.clock.now(), error.message)


async def _outcome(task: Task, means: Means) -> Outcome:
    """The outcome of the action; after a failure the job is left held.

    Raises:
        Unavailable: it is not known whether the action happened.
    """
    try:
        outcome = await ACTIONS[task.step.kind](task, means)
    except Unavailable:
        raise
    except SentinelError as error:
        outcome = means.failed(task, error.message)
    if outcome.result is Result.FAILED and task.step.kind not in OPTIONAL_STEPS:
        try:
            await leave_held(task, means)
        except Refused as error:
            return means.failed(task, f"{outcome.reason}; {error.message}", outcome.data)
    return outcome
