"""One incident is one thread of messages: says which message comes next, and whether it is the last. Pure.

A stage is told once it is reached and never before: *restarting*, then *running again* or *failed*; what waited for a
person or failed is *resolved* when its incident closes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.alerts.audiences import Stage, Story, stage_of
from sentinel.model.records import IncidentState

MOST_MESSAGES = 12  # of one incident: one that goes back and forth has said by then what it is


@dataclass(frozen=True, slots=True)
class Thread:
    """What people were told of an incident so far."""

    stages: tuple[str, ...]  # that were told, in order; never empty
    worst: str = ""  # severity so far
    final: bool = False  # nothing more is expected
    joined: str = ""  # the incident whose thread tells of it; empty: this one has its own


def next_stage(thread: Thread | None, story: Story) -> Stage | None:
    """The stage that people are to be told of now; None: they know.

    An incident whose last message was final is told of again only when it goes on (late evidence, a step done again).
    """
    stage, closed = stage_of(story), story.incident.state is IncidentState.CLOSED
    if thread is None:
        return stage
    if len(thread.stages) >= MOST_MESSAGES:
        return None
    if stage != thread.stages[-1] and thread.stages[-1] != Stage.RESOLVED:
        return stage
    return Stage.RESOLVED if closed and not thread.final else None
