"""When a job's numbers went bad: its step lines are not kept, so that the step is written into the evidence as it comes in.

The restart must begin before it. What is told: the step of the line itself, else the first step whose loss was no number,
else the one after the last step that was printed. Numbers that stay bad in a job that goes on are evidence of their own. The
step at which they began is kept in the store: a daemon that starts later would take the next one for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sentinel.adapters.store import Store
from sentinel.classify.recurrence import BAD_NUMBERS
from sentinel.daemon.live import Live
from sentinel.evidence.bad_numbers import Run, printed, said, scaled, stays, values
from sentinel.evidence.losses import Losses, Spike, observe
from sentinel.model import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.settings import Judgement
from sentinel.wire import time_from, to_json

_MOST_ATTEMPTS = 4096  # followed before those that ended are forgotten
_MOST_KEPT = 256  # in the store, the newest
_STORED = "bad_numbers"  # in the store, by attempt
_SCALER = "loss-overflow"  # rule: a loss scaler skips a step
_LEAST_SCALE = "loss-scale"  # rule: it can go no lower

Attempt = tuple[int, int]


class Onsets:
    """Follows the losses of the attempts that run."""

    def __init__(self, live: Live, store: Store, limits: Judgement) -> None:
        self._live = live
        self._store = store
        self._limits = limits
        self._losses: dict[Attempt, Losses] = {}
        self._runs: dict[Attempt, Run] = {}
        self._kept: dict[str, Any] | None = None  # as the store has it
        self._keeping = asyncio.Lock()
        self._changed = False  # what the store must know
        self._again: set[Attempt] = set()  # told by a daemon that may have died before its evidence was stored

    async def told(self, items: Sequence[Evidence]) -> list[Evidence]:
        """``items`` as they are to be kept: bad numbers know their step; spikes of the loss and numbers that stay bad are
        added. What must survive is in the store when this returns."""
        await self._remember()
        made: list[Evidence] = []
        reached: dict[Attempt, int] = {}  # steps of this batch, which the attempt does not know yet
        for item in items:
            made.append(item)
            attempt = self._attempt(item)
            if attempt is None:
                continue
            last = reached.get(attempt, self._live.last_step(*attempt))
            step = item.data.get("step")
            if item.kind == Kind.STEP:
                if isinstance(step, int):
                    reached[attempt] = step
                elif last is not None and values(item.data):
                    step = last + 1  # the numbers of a step that another line counts
                if isinstance(step, int):
                    made.extend(self._step(attempt, item, step))
            elif item.kind in BAD_NUMBERS and item.source in (Source.JOB_LOG, Source.ERROR_FILE):
                made[-1] = self._bad(attempt, item, last)
            elif item.rule == _SCALER:
                self._set(attempt, scaled(self._runs.get(attempt, Run())))
            made.extend(self._stay(attempt, item))
        await self._keep()
        return made

    def began(self, job: int | None, attempt: int | None) -> int | None:
        """The step at which this attempt's numbers went bad, if they stay so."""
        run = self._run(job, attempt)
        return run.onset if run is not None and run.told else None

    def standing(self, job: int | None, attempt: int | None, now: datetime) -> list[Evidence]:
        """The evidence of it, as it was told."""
        run = self._run(job, attempt)
        if run is None or not run.told or job is None or attempt is None:
            return []
        return [_stays_bad((job, attempt), run, now, None)]

    def _run(self, job: int | None, attempt: int | None) -> Run | None:
        return self._runs.get((job, attempt)) if job is not None and attempt is not None else None

    def _attempt(self, item: Evidence) -> Attempt | None:
        job = item.where.job
        if job is None:
            return None
        attempt = item.where.attempt if item.where.attempt is not None else self._live.newest_attempt(job)
        return (job, attempt) if attempt is not None else None

    def _step(self, attempt: Attempt, item: Evidence, step: int) -> list[Evidence]:
        if attempt not in self._runs and len(self._runs) >= _MOST_ATTEMPTS:
            self._losses = {name: losses for name, losses in self._losses.items() if not self._live.ended(*name)}
            self._runs = {name: run for name, run in self._runs.items() if not self._live.ended(*name)}
        spike, loss = None, item.data.get("loss")
        if isinstance(loss, (int, float)):
            self._losses[attempt], spike = observe(self._losses.get(attempt, Losses()), step, float(loss))
        before = self._runs.get(attempt, Run())
        self._set(attempt, self._begun(attempt, before, printed(before, step, item.at, item.data)))
        return [_spike(item, spike)] if spike is not None else []

    def _bad(self, attempt: Attempt, item: Evidence, reached: int | None) -> Evidence:
        told, losses = item.data.get("step"), self._losses.get(attempt, Losses())
        before = self._runs.get(attempt, Run())
        step = told if isinstance(told, int) else (reached + 1 if reached is not None else None)
        if step is not None:
            run = said(before, step, item.at, item.text[:80], exhausted=item.rule == _LEAST_SCALE)
            self._set(attempt, self._begun(attempt, before, run))
        steps = [step for step in (told, losses.began) if isinstance(step, int)]
        if not steps and reached is not None:
            steps = [reached + 1]
        if not steps or min(steps) == told:
            return item
        return dataclasses.replace(item, data={**item.data, "onset_step": min(steps)})

    def _set(self, attempt: Attempt, run: Run) -> None:
        before = self._runs.get(attempt, Run())
        self._changed |= (before.onset, before.told) != (run.onset, run.told)
        self._runs[attempt] = run

    def _begun(self, attempt: Attempt, before: Run, run: Run) -> Run:
        """A run that begins with a spike of the loss begins where the spike did."""
        began = self._losses.get(attempt, Losses()).began
        if before.onset is None and run.onset is not None and began is not None:
            return dataclasses.replace(run, onset=min(run.onset, began))
        return run

    def _stay(self, attempt: Attempt, item: Evidence) -> list[Evidence]:
        run, limits = self._runs.get(attempt), self._limits
        if run is None or run.onset is None:
            return []
        again = run.told and attempt in self._again
        self._again.discard(attempt)
        if not again and (run.told or not stays(run, prints=limits.bad_prints, for_s=limits.bad_numbers_s)):
            return []
        run = dataclasses.replace(run, told=True)
        self._set(attempt, run)
        return [_stays_bad(attempt, run, item.seen_at, item.where.path)]

    # --- what survives ------------------------------------------------------------------------------------------------

    async def _remember(self) -> None:
        if self._kept is not None:
            return
        kept = await asyncio.to_thread(self._store.get, _STORED, {})
        if self._kept is None:
            self._kept = dict(kept)
            for name, value in self._kept.items():
                job, _, attempt = name.partition(".")
                run = _read(value)
                self._runs.setdefault((int(job), int(attempt)), run)
                if run.told:
                    self._again.add((int(job), int(attempt)))

    async def _keep(self) -> None:
        """Where a run began and whether it was told; how long it is by now is counted again."""
        if not self._changed:
            return
        async with self._keeping:
            self._changed = False
            begun = {
                f"{job}.{attempt}": _written(run) for (job, attempt), run in self._runs.items() if run.onset is not None
            }
            self._kept = dict(list(begun.items())[-_MOST_KEPT:])
            try:
                await asyncio.to_thread(self._store.put, _STORED, self._kept)
            except BaseException:
                self._changed = True  # nothing was acknowledged: the same lines come again
                raise


def _written(run: Run) -> dict[str, Any]:
    return {
        "onset": run.onset, "told": run.told, "last": run.last, "prints": run.prints, "what": run.what,
        "since": to_json(run.since), "newest": to_json(run.newest), "numbered": run.numbered,
    }  # fmt: skip


def _read(value: Mapping[str, Any]) -> Run:
    """A run that was told is as it was then; of another one only the beginning counts, and it is counted anew."""
    begun = Run(
        onset=value["onset"], told=value["told"], what=value["what"], numbered=value["numbered"],
        since=time_from(value["since"]), newest=time_from(value["newest"]),
    )  # fmt: skip
    return dataclasses.replace(begun, last=value["last"], prints=value["prints"]) if begun.told else begun


def _stays_bad(attempt: Attempt, run: Run, now: datetime, path: str | None) -> Evidence:
    since = run.since or now
    return Evidence(
        id=stable_id("numbers", *attempt, run.onset),
        at=since,
        seen_at=now,
        source=Source.PROGRESS,
        kind=Kind.NUMBERS,
        where=Where(job=attempt[0], attempt=attempt[1], path=path),
        text=f"{run.what} since step {run.onset}, in {run.prints} printed steps up to {run.last}; none was good again",
        data={"step": run.last, "onset_step": run.onset, "prints": run.prints},
        trust=Trust.USER,
    )


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
