"""When a job's numbers went bad: its step lines are not kept, so that the step is written into the evidence as it comes in.

The restart must begin before it. What is told: the step of the line itself, else the first step whose loss was no number,
else the one after the last step that was printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sentinel.classify.recurrence import BAD_NUMBERS
from sentinel.daemon.live import Live
from sentinel.evidence.losses import Losses, Spike, observe
from sentinel.model import Evidence, Kind, Source, Where, stable_id

_MOST_ATTEMPTS = 4096  # followed before those that ended are forgotten


class Onsets:
    """Follows the losses of the attempts that run."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._losses: dict[tuple[int, int], Losses] = {}

    def told(self, items: Sequence[Evidence]) -> list[Evidence]:
        """``items`` as they are to be kept: bad numbers know their step, and spikes of the loss stand beside them."""
        made: list[Evidence] = []
        reached: dict[tuple[int, int], int] = {}  # steps of this batch, which the attempt does not know yet
        for item in items:
            made.append(item)
            attempt = self._attempt(item)
            if attempt is None:
                continue
            if item.kind == Kind.STEP and isinstance(step := item.data.get("step"), int):
                reached[attempt] = step
                made.extend(self._step(attempt, item, step))
            elif item.kind in BAD_NUMBERS and item.source in (Source.JOB_LOG, Source.ERROR_FILE):
                made[-1] = self._bad(attempt, item, reached.get(attempt, self._live.last_step(*attempt)))
        return made

    def _attempt(self, item: Evidence) -> tuple[int, int] | None:
        job = item.where.job
        if job is None:
            return None
        attempt = item.where.attempt if item.where.attempt is not None else self._live.newest_attempt(job)
        return (job, attempt) if attempt is not None else None

    def _step(self, attempt: tuple[int, int], item: Evidence, step: int) -> list[Evidence]:
        loss = item.data.get("loss")
        if not isinstance(loss, (int, float)):
            return []
        if attempt not in self._losses and len(self._losses) >= _MOST_ATTEMPTS:
            self._losses = {name: losses for name, losses in self._losses.items() if not self._live.ended(*name)}
        self._losses[attempt], spike = observe(self._losses.get(attempt, Losses()), step, float(loss))
        return [_spike(item, spike)] if spike is not None else []

    def _bad(self, attempt: tuple[int, int], item: Evidence, reached: int | None) -> Evidence:
        told, losses = item.data.get("step"), self._losses.get(attempt, Losses())
        steps = [step for step in (told, losses.began) if isinstance(step, int)]
        if not steps and reached is not None:
            steps = [reached + 1]
        if not steps or min(steps) == told:
            return item
        return dataclasses.replace(item, data={**item.data, "onset_step": min(steps)})


def _spike(item: Evidence, spike: Spike) -> Evidence:
    where = item.where
    return Evidence(
        id=stable_id("loss-spike", where.job, where.attempt, spike.onset_step),
        at=item.at,
        seen_at=item.seen_at,
        source=Source.JOB_LOG,
        kind="loss_spike",
        where=Where(job=where.job, attempt=where.attempt, path=where.path),
        text=f"loss {spike.loss:.4g} at step {spike.step}, {spike.usual:.4g} is usual; it rose at step {spike.onset_step}",
        data={"step": spike.step, "onset_step": spike.onset_step, "loss": spike.loss, "usual": spike.usual},
    )
