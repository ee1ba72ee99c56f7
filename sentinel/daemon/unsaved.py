"""Transitions that wait to be saved, and who waits for them."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass

from sentinel.engine import Transition
from sentinel.model.changes import Batch, Change

_MOST_CHANGES = 2000  # per transaction: writing them takes a fraction of a second


@dataclass(frozen=True, slots=True, eq=False)
class Unsaved:
    """
    Attributes:
        saved: done when the transition is saved.
        patient: whether who waits for it waits on while the store does not answer and it is tried again.
    """

    transition: Transition
    saved: asyncio.Future[None]
    patient: bool = False

    def not_saved(self, error: BaseException, *, again: bool) -> None:
        """Tell who waits. ``again``: it will be tried again."""
        if not self.saved.done() and not (again and self.patient):
            self.saved.set_exception(error)
            self.saved.exception()  # mark as retrieved: there may be no waiter


def next_batch(waiting: deque[Unsaved]) -> list[Unsaved]:
    """Takes those that one transaction writes, at least one."""
    batch: list[Unsaved] = []
    count = 0
    while waiting and (not batch or count + len(waiting[0].transition.changes) <= _MOST_CHANGES):
        batch.append(waiting.popleft())
        count += len(batch[-1].transition.changes)
    return batch


def changes_of(batch: list[Unsaved]) -> Batch:
    return named(*(change for one in batch for change in one.transition.changes))


def named(*changes: Change) -> Batch:
    return Batch(changes, uuid.uuid4().hex)


def taken(saving: asyncio.Task[None]) -> None:
    """Take the error of what ended: those who wait for its transitions have it, and asyncio logs one that nobody takes."""
    if not saving.cancelled():
        saving.exception()
