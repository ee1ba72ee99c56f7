"""Carry out the plan of one incident, step by step, as often as it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sentinel.actions import ACTIONS, Means, Task
from sentinel.actions.requeue import leave_held
from sentinel.errors import Refused, SentinelError, Unavailable
from sentinel.model import Outcome, Plan, Result, Step, StepKind

# A failed step ends the plan, except for these: the rest is still worth doing.
_OPTIONAL = frozenset({StepKind.DRAIN, StepKind.DOWN, StepKind.QUARANTINE})
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # between looks when the outside does not answer; the last one repeats


async def carry_out(
    current: Callable[[], Task | None],
    means: Means,
    report: Callable[[Plan, Outcome, SentinelError | None], None],
) -> Outcome | None:
    """Do the next undone step until none is left.

    Args:
        current: the task with the next undone step of the newest plan (plans grow while evidence comes in); None when
            there is nothing left to do.
        report: is told of every outcome, also of *not known* ones that will be tried again.

    Returns:
        The outcome that ended the plan: the last step's, or the failure that stopped it.
    """
    last: Outcome | None = None
    failures = 0
    while (task := current()) is not None:
        if not means.ledger.intend(task.plan, task.step, means.clock.now()):
            continue
        try:
            outcome = await _outcome(task, means)
        except Unavailable as error:
            # Not known whether it happened: the action looks at Slurm first when it is tried again.
            before = means.ledger.outcome(task.incident.id, task.step)  # what it had asked for already, it keeps
            kept = before.data if before is not None else {}
            not_known = Outcome(task.step, Result.NOT_KNOWN, means.clock.now(), error.message, kept)
            means.ledger.record(task.plan, not_known)
            report(task.plan, not_known, error)
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1
            continue
        failures = 0
        means.ledger.record(task.plan, outcome)
        report(task.plan, outcome, None)
        last = outcome
        if outcome.result is Result.FAILED and task.step.kind not in _OPTIONAL:
            return outcome
    return last


async def _outcome(task: Task, means: Means) -> Outcome:
    """Raises Unavailable (not known); every other error is a failure, after which the job is left to its people."""
    try:
        outcome = await ACTIONS[task.step.kind](task, means)
    except Unavailable:
        raise
    except SentinelError as error:
        outcome = means.failed(task, error.message)
    if outcome.result is Result.FAILED and task.step.kind not in _OPTIONAL and task.step.kind is not StepKind.CONFIRM:
        try:
            await leave_held(task, means)
        except Refused as error:
            return means.failed(task, f"{outcome.reason}; {error.message}", outcome.data)
    return outcome


def next_step(plan: Plan, ledger_outcome: Callable[[Step], Outcome | None]) -> Step | None:
    """First step without a final outcome; None when all are done or one that matters failed."""
    for step in plan.steps:
        outcome = ledger_outcome(step)
        if outcome is None or outcome.result is Result.NOT_KNOWN:
            return step
        if outcome.result is Result.FAILED and step.kind not in _OPTIONAL:
            return None
    return None
