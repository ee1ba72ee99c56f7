"""Promises about modes (observe, suggest, act) and about a pause."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.model.records import NODE_STEPS, StepKind
from sentinel.simulate.happened import Happened, MovedAside, ResumeWritten, SlurmWrite, StepBegan
from sentinel.simulate.observer import Observer

_NAMED = {  # as people are asked to approve it
    StepKind.REQUEUE_HOLD: "restart {}",
    StepKind.STOP_RUN: "restart {} in its allocation",
    StepKind.GIVE_BACK: "give back nodes of {}",
    StepKind.HOLD: "hold {}",
}


def _mode(seen: Observer, *, of_node: bool) -> str:
    setup = seen.world.history.setup
    return setup.mode if of_node else setup.restart_mode or setup.mode


def observe_changes_nothing(seen: Observer, what: Happened) -> Iterator[str]:
    """Where drains or restarts are only observed, nothing is changed for them."""
    if not isinstance(what, (SlurmWrite, ResumeWritten, MovedAside)):
        return
    if _mode(seen, of_node=isinstance(what, SlurmWrite) and what.job is None) == "observe":
        yield f"{type(what).__name__} in observe mode: {getattr(what, 'verb', '')} {getattr(what, 'target', '')}"


def nothing_unapproved(seen: Observer, what: Happened) -> Iterator[str]:
    """In mode suggest nothing is done that no person has approved, as it was shown."""
    if not isinstance(what, StepBegan):
        return
    step, incident = what.task.step, what.task.incident.id
    of_node = step.kind in NODE_STEPS
    if _mode(seen, of_node=of_node) != "suggest":
        return
    stops = [one for one in what.task.plan.steps if one.kind in _NAMED]
    names = {f"{step.kind} {step.node}"} if of_node else {_NAMED[one.kind].format(one.job) for one in stops}
    if not names or not names <= seen.approved[incident]:
        yield f"{', '.join(sorted(names)) or step.kind} of incident {incident} begins, and nobody approved it"


def pause_begins_nothing(seen: Observer, what: Happened) -> Iterator[str]:
    """While an operator has paused Sentinel, it begins no step."""
    if isinstance(what, StepBegan) and seen.world.paused:
        yield f"{what.task.step.kind} {what.task.step.node or what.task.step.job} begins while paused"
