"""Carrying out a plan. In: a plan and the means to act. Out: an ``Outcome`` for each step. Decides nothing.

Each step follows one pattern: look in the ledger, look at Slurm (is the effect there already?), write the intent, do it,
look again, write the outcome. So a plan that was cut at any point can be carried out again from its start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sentinel.actions.checkpoint import choose_checkpoint, quarantine, write_resume
from sentinel.actions.confirm import confirm
from sentinel.actions.drain import down, drain
from sentinel.actions.means import Means, Task
from sentinel.actions.requeue import exclude, hold, release, requeue_hold
from sentinel.model import Outcome, StepKind

Action = Callable[[Task, Means], Awaitable[Outcome]]

ACTIONS: Mapping[StepKind, Action] = {
    StepKind.DRAIN: drain,
    StepKind.DOWN: down,
    StepKind.REQUEUE_HOLD: requeue_hold,
    StepKind.CHOOSE_CHECKPOINT: choose_checkpoint,
    StepKind.QUARANTINE: quarantine,
    StepKind.WRITE_RESUME: write_resume,
    StepKind.EXCLUDE: exclude,
    StepKind.RELEASE: release,
    StepKind.CONFIRM: confirm,
    StepKind.HOLD: hold,
}

__all__ = ["ACTIONS", "Action", "Means", "Task"]
