"""Finds the step at which a job's numbers went bad and writes it into the evidence as that comes in.

Step lines are not stored, so that this cannot be done later; a restart must resume from before the onset. The onset is
the step of the line itself, else the first step whose loss was not finite, else the one after the last printed step.
Numbers that stay bad in a running job are evidence of their own. The onset is kept in the store: a restarted daemon
would otherwise take the next bad step for it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sentinel.config.settings import Judgement
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers import NO_RUN, Run, after_message, after_print, after_scaler_skip, persists
from sentinel.detect.numbers.loss_spikes import NO_LOSSES, Losses, Spike, observe
from sentinel.evidence.logs.step_numbers import values
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.model.vocabulary import BAD_NUMBER_KINDS
from sentinel.wire import time_from, to_json

_MOST_ATTEMPTS = 4096  # attempts tracked before those of jobs that are gone are dropped
_MOST_KEPT = 256  # newest attempts kept in the store
BAD_NUMBERS_KEPT = "bad_numbers"  # stored setting, by attempt
_SCALER = "loss-overflow"  # rule: a loss scaler skips a step
_LEAST_SCALE = "loss-scale"  # rule: it can go no lower

Attempt = tuple[int, int]


class OnsetTracker:
    """Tracks the losses of running attempts.

    Args:
        kept: what ``unsaved`` returned to an earlier daemon.
    """

    def __init__(self, cluster: ClusterView, limits: Judgement, kept: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._limits = limits
        self._losses: dict[Attempt, Losses] = {}
        self._runs: dict[Attempt, Run] = {}
        self._of_job: defaultdict[int, set[int]] = defaultdict(set)  # the attempts in ``_runs``
        self._changed = False  # what must survive a restart
        for name, value in (kept or {}).items():
            job, _, attempt = name.partition(".")
            self._keep((int(job), int(attempt)), _read(value))

    def with_findings(self, items: Sequence[Evidence]) -> list[Evidence]:
        """``items`` with the onset step added to bad-number evidence, and with findings of loss spikes and of numbers that
        stay bad. What must survive a restart is then returned by ``unsaved``."""
        made: list[Evidence] = []
        reached: dict[Attempt, int] = {}  # last steps in this batch, not noted in the cluster view yet
        for item in items:
            made.append(item)
            attempt = self._attempt(item)
            if attempt is None:
                continue
            last = reached.get(attempt, self._cluster.last_step(*attempt))
            step = item.data.get("step")
            if item.kind == Kind.STEP:
                if isinstance(step, int):
                    reached[attempt] = step
                elif last is not None and values(item.data):
                    step = last + 1  # the numbers of a step that another line counts
                if isinstance(step, int):
                    made.extend(self._step(attempt, item, step))
            elif item.kind in BAD_NUMBER_KINDS and item.source in (Source.JOB_LOG, Source.ERROR_FILE):
                made[-1] = self._bad(attempt, item, last)
            elif item.rule == _SCALER:
                self._set(attempt, after_scaler_skip(self._begins(*attempt)))
            made.extend(self._stay(attempt, item))
        return made

    def unsaved(self) -> dict[str, Any] | None:
        """The state to store, if it changed since the last call: each bad run, and whether it was reported.

        The steps of a reported run are not counted on: it changes no more until the numbers are good again.
        """
        if not self._changed:
            return None
        self._changed = False
        kept = {
            f"{job}.{attempt}": _written(run)
            for (job, attempt), run in self._runs.items()
            if run.since is not None or (run.onset is None and self._onset_left(job, attempt) is not None)
        }
        return dict(list(kept.items())[-_MOST_KEPT:])

    def jobs(self) -> dict[int, datetime]:
        """By job: since when its numbers went bad, as far as that is known."""
        found: dict[int, datetime] = {}
        for (job, _), run in self._runs.items():
            if run.since is not None:
                found[job] = min(found.get(job, run.since), run.since)
        return found

    def leave(self, job: int) -> None:
        """The job is gone, and Slurm has given its id to another one: these numbers were not that one's."""
        for attempt in self._of_job.pop(job, set()):
            self._changed |= self._runs.pop((job, attempt)) != NO_RUN
        self._losses = {name: losses for name, losses in self._losses.items() if name[0] != job}

    def onset_step(self, job: int | None, attempt: int | None) -> int | None:
        """The step at which this attempt's numbers went bad, if it was reported that they stay bad, or at which those of an
        earlier attempt did, until this one has shown good ones: it may have started from what that one saved."""
        if job is None or attempt is None:
            return None
        run = self._begins(job, attempt)
        if run.since is None or run.onset is None:
            return run.onset
        if run.told:
            first = self._cluster.first_step(job, attempt)
            began_bad = first is not None and run.onset <= first
            left = self._onset_before(job, attempt) if began_bad else None
            return min(run.onset, left) if left is not None else run.onset
        left = self._onset_left(job, attempt)  # a run that began after good numbers has a later onset
        return run.onset if left is not None and run.onset <= left else None

    def newest_run(self, job: int | None) -> int | None:
        """The newest attempt of the job that has shown its numbers, also one that slurmctld forgot since."""
        return max((attempt for known, attempt in self._runs if known == job), default=None)

    def _begins(self, job: int, attempt: int) -> Run:
        """The attempt's run; before it has shown anything, the bad one that an earlier attempt left."""
        if (run := self._runs.get((job, attempt))) is not None:
            return run
        left = self._onset_left(job, attempt)
        return Run(onset=left) if left is not None else NO_RUN

    def _onset_left(self, job: int, attempt: int) -> int | None:
        """The step from which on checkpoints of earlier attempts hold bad numbers, by the newest that has shown either."""
        for earlier in self._earlier(job, attempt):
            run = self._runs[job, earlier]
            if run.told or run.onset is None:
                return run.onset
        return None

    def _onset_before(self, job: int, attempt: int) -> int | None:
        """The step at which the attempt before this one went bad, also if it ended before it was known that it stays so: an
        attempt whose numbers are bad from its first step on, and stay so, began with them."""
        for earlier in self._earlier(job, attempt):
            run = self._runs[job, earlier]
            return self.onset_step(job, earlier) if run.told else run.onset
        return None

    def _earlier(self, job: int, attempt: int) -> list[int]:
        """The known attempts before this one, the newest first."""
        return sorted((known for known in self._of_job.get(job, ()) if known < attempt), reverse=True)

    def findings(self, job: int | None, attempt: int | None, now: datetime) -> list[Evidence]:
        """The evidence that this attempt's numbers stay bad; empty if that was not reported."""
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
        attempt = item.where.attempt if item.where.attempt is not None else self._cluster.newest_attempt(job)
        return (job, attempt) if attempt is not None else None

    def _step(self, attempt: Attempt, item: Evidence, step: int) -> list[Evidence]:
        if attempt not in self._runs and len(self._runs) >= _MOST_ATTEMPTS:
            self._forget()
        spike, loss = None, item.data.get("loss")
        if isinstance(loss, (int, float)):
            self._losses[attempt], spike = observe(self._losses.get(attempt, NO_LOSSES), step, float(loss))
        before = self._begins(*attempt)
        self._set(attempt, self._begun(attempt, before, after_print(before, step, item.at, item.data)))
        return [_spike(item, spike)] if spike is not None else []

    def _forget(self) -> None:
        """Drop the attempts of jobs that have ended for long: neither Slurm nor the view has them any more. A job that may
        go on begins with what its earlier attempts left."""
        fleet, seen = self._cluster.fleet, {job for job, _ in self._cluster.attempts}
        if fleet is None:
            return
        jobs = {job for job, _ in self._runs}
        kept = {job for job in jobs if job in seen or fleet.may_have_job(job)}
        self._losses = {name: losses for name, losses in self._losses.items() if name[0] in kept}
        self._runs = {name: run for name, run in self._runs.items() if name[0] in kept}
        for job in jobs - kept:
            del self._of_job[job]

    def _bad(self, attempt: Attempt, item: Evidence, reached: int | None) -> Evidence:
        told, losses = item.data.get("step"), self._losses.get(attempt, NO_LOSSES)
        before = self._begins(*attempt)
        step = told if isinstance(told, int) else (reached + 1 if reached is not None else None)
        if step is not None:
            run = after_message(before, step, item.at, item.text[:80], exhausted=item.rule == _LEAST_SCALE)
            self._set(attempt, self._begun(attempt, before, run))
        known = self._begins(*attempt).onset  # also where an earlier daemon saw the losses
        steps = [step for step in (known, losses.began) if step is not None]
        if not steps or min(steps) == told:
            return item
        return dataclasses.replace(item, data={**item.data, "onset_step": min(steps)})

    def _set(self, attempt: Attempt, run: Run) -> None:
        before = self._begins(*attempt)
        if run == before:
            return
        self._changed |= (before.onset, before.told) != (run.onset, run.told)
        self._changed |= not run.told and before.prints != run.prints and run.onset is not None
        self._keep(attempt, run)

    def _keep(self, attempt: Attempt, run: Run) -> None:
        self._runs[attempt] = run
        self._of_job[attempt[0]].add(attempt[1])

    def _begun(self, attempt: Attempt, before: Run, run: Run) -> Run:
        """The bad run with its onset moved to the beginning of a loss spike that led to it."""
        began = self._losses.get(attempt, NO_LOSSES).began
        if before.onset is None and run.onset is not None and began is not None:
            return dataclasses.replace(run, onset=min(run.onset, began))
        return run

    def _stay(self, attempt: Attempt, item: Evidence) -> list[Evidence]:
        run, limits = self._runs.get(attempt), self._limits
        if run is None or run.told or not persists(run, prints=limits.bad_prints, for_s=limits.bad_numbers_s):
            return []
        run = dataclasses.replace(run, told=True)
        self._set(attempt, run)
        return [_stays_bad(attempt, run, item.seen_at, item.where.path)]


def _written(run: Run) -> dict[str, Any]:
    return {
        "onset": run.onset, "told": run.told, "last": run.last, "prints": run.prints, "what": run.what,
        "since": to_json(run.since), "newest": to_json(run.newest), "numbered": run.numbered,
        "scaling": run.scaling, "exhausted": run.exhausted, "steps": sorted(run.steps),
    }  # fmt: skip


def _read(value: Mapping[str, Any]) -> Run:
    return Run(
        onset=value["onset"], told=value["told"], what=value["what"], numbered=value["numbered"],
        since=_time(value["since"]), newest=_time(value["newest"]), last=value["last"], prints=value["prints"],
        scaling=value.get("scaling", False), exhausted=value.get("exhausted", False),
        steps=frozenset(value.get("steps", ())),
    )  # fmt: skip


def _time(value: object) -> datetime | None:
    return time_from(value) if value is not None else None


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
