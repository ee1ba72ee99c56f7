"""Carries out the steps of plans and returns an ``Outcome`` for each. Decides nothing.

Each step follows one pattern: read the ledger, read Slurm (is the effect already there?), record the intent, act, read
Slurm again, return the outcome. A plan interrupted at any point can therefore be carried out again from its start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sentinel.actions.drain import down, drain
from sentinel.actions.in_allocation import give_back, start_run, stop_run
from sentinel.actions.means import Means
from sentinel.actions.next_attempt import choose_checkpoint, exclude, quarantine, write_resume
from sentinel.actions.release import release
from sentinel.actions.requeue import hold, requeue_hold
from sentinel.model.records import Outcome, StepKind, Task

Action = Callable[[Task, Means], Awaitable[Outcome]]

# ``StepKind.CONFIRM`` has no action: the engine itself observes whether the restarted job makes steps again.
ACTIONS: Mapping[StepKind, Action] = {
    StepKind.DRAIN: drain,
    StepKind.DOWN: down,
    StepKind.REQUEUE_HOLD: requeue_hold,
    StepKind.CHOOSE_CHECKPOINT: choose_checkpoint,
    StepKind.QUARANTINE: quarantine,
    StepKind.WRITE_RESUME: write_resume,
    StepKind.EXCLUDE: exclude,
    StepKind.RELEASE: release,
    StepKind.HOLD: hold,
    StepKind.STOP_RUN: stop_run,
    StepKind.START_RUN: start_run,
    StepKind.GIVE_BACK: give_back,
}

__all__ = ["ACTIONS", "Action", "Means", "Task"]
