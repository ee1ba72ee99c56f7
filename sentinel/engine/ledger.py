"""In-memory ledger of plan steps: which were intended and with what outcome, by incident and by job.

Mirrors the store's table ``step``: loaded from it at start, then changed only together with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.model.records import INTERRUPTIONS, NODE_STEPS, STOPS, Outcome, Plan, Result, Step, StepKind


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One step of one incident. ``outcome`` None: intended, no outcome yet."""

    incident: str
    step: Step
    intended_at: datetime
    outcome: Outcome | None = None
    gone: bool = False  # its job is gone, and the id is another job's by now

    @property
    def settled(self) -> bool:
        return self.outcome is not None and self.outcome.result is not Result.NOT_KNOWN

    @property
    def last_at(self) -> datetime:
        """When its outcome was recorded, which may be long after it was intended; before that, when it was intended."""
        return max(self.intended_at, self.outcome.at) if self.outcome is not None else self.intended_at


class Ledger:
    """Rows by the step's key; see ``Step.key``."""

    def __init__(self, rows: Iterable[LedgerRow] = ()) -> None:
        self._rows: dict[str, LedgerRow] = {}
        self._of_job: dict[tuple[int, StepKind], dict[str, None]] = {}
        self._of_nodes: dict[str, None] = {}
        self._stops: dict[str, None] = {}
        self._loans: dict[str, None] = {}
        self._done_of_job: dict[
            tuple[int, StepKind], tuple[LedgerRow, ...]
        ] = {}  # answers of ``of_job`` until a row changes
        for row in rows:
            self._put(row.step.key(row.incident), row)

    def _put(self, key: str, row: LedgerRow) -> None:
        self._rows[key] = row
        if row.step.job is not None:
            self._of_job.setdefault((row.step.job, row.step.kind), {})[key] = None
            self._done_of_job.pop((row.step.job, row.step.kind), None)
        if row.step.kind in NODE_STEPS:
            self._of_nodes[key] = None
        if row.step.kind in INTERRUPTIONS:
            self._stops[key] = None
        if row.step.kind is StepKind.EXCLUDE and row.step.data.get("user"):
            self._loans[key] = None

    def intend(self, incident: str, step: Step, at: datetime) -> bool:
        """Add a row for the step; False if it has one already, which is kept."""
        key = step.key(incident)
        if key in self._rows:
            return False
        self._put(key, LedgerRow(incident, step, at))
        return True

    def record(self, incident: str, outcome: Outcome) -> None:
        key = outcome.step.key(incident)
        row = self._rows.get(key) or LedgerRow(incident, outcome.step, outcome.at)
        self._put(key, dataclasses.replace(row, outcome=outcome))

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        row = self._rows.get(step.key(incident))
        return row.outcome if row is not None else None

    def intended_at(self, incident: str, step: Step) -> datetime | None:
        row = self._rows.get(step.key(incident))
        return row.intended_at if row is not None else None

    def of_plan(self, plan: Plan, kind: StepKind) -> Outcome | None:
        """The outcome of the plan's step of this kind; None if there is none."""
        step = next((step for step in plan.steps if step.kind is kind), None)
        return self.outcome(plan.incident, step) if step is not None else None

    def done(self, plan: Plan, kinds: frozenset[StepKind]) -> Outcome | None:
        """The outcome of the plan's step of one of these kinds, if it was done and had an effect."""
        found = self.outcomes(plan.incident, [step for step in plan.to_do if step.kind in kinds])
        return next((one for one in found if one.result is Result.DONE and not one.data.get("cancelled")), None)

    def outcomes(self, incident: str, steps: Sequence[Step]) -> list[Outcome]:
        """The outcomes of these steps, in their order; steps without an outcome are skipped."""
        found = (self.outcome(incident, step) for step in steps)
        return [outcome for outcome in found if outcome is not None]

    def of_job(self, job: int, kind: StepKind) -> Sequence[LedgerRow]:
        """Steps of this kind that were done (``Result.DONE``) for the job that has this id now, the oldest first."""
        keys = self._of_job.get((job, kind))
        if keys is None:
            return ()
        known = self._done_of_job.get((job, kind))
        if known is None:
            rows = (self._rows[key] for key in keys)
            own = (row for row in rows if not row.gone)
            done = [row for row in own if row.outcome is not None and row.outcome.result is Result.DONE]
            known = self._done_of_job[job, kind] = tuple(sorted(done, key=lambda row: row.intended_at))
        return known

    def stops_of(self, job: int) -> list[LedgerRow]:
        """Stops of the job that has this id now, intended or done, whatever became of them."""
        rows = (self._rows[key] for kind in STOPS for key in self._of_job.get((job, kind), ()))
        return [row for row in rows if not row.gone]

    def jobs(self) -> dict[int, datetime]:
        """By job that has its id still: when the first of its steps was intended."""
        found: dict[int, datetime] = {}
        for (job, _), keys in self._of_job.items():
            for row in (self._rows[key] for key in keys):
                if not row.gone:
                    found[job] = min(found.get(job, row.intended_at), row.intended_at)
        return found

    def leave(self, job: int) -> None:
        """The job is gone, and Slurm has given its id to another one: no step so far was of that."""
        for (other, kind), keys in self._of_job.items():
            if other == job:
                self._rows.update({key: dataclasses.replace(self._rows[key], gone=True) for key in keys})
                self._done_of_job.pop((job, kind), None)

    def drains(self, since: datetime) -> list[LedgerRow]:
        """Drain and down steps that were done or failed since then, the first one first."""
        return self._settled(self._of_nodes, since)

    def stops(self, since: datetime) -> list[LedgerRow]:
        """Steps that stop jobs and were done or failed since then, the first one first."""
        return self._settled(self._stops, since)

    def loans(self) -> list[LedgerRow]:
        """Steps that may have let a job use spare nodes, intended or done, the oldest first."""
        return sorted((self._rows[key] for key in self._loans), key=lambda row: row.intended_at)

    def _settled(self, keys: Iterable[str], since: datetime) -> list[LedgerRow]:
        rows = (self._rows[key] for key in keys)
        return sorted((row for row in rows if row.settled and row.last_at >= since), key=lambda row: row.last_at)

    def forget(self, now: datetime, kept_incidents: Iterable[str], kept_jobs: Iterable[int], after: timedelta) -> None:
        """Drop rows older than ``after``, except those of ``kept_incidents`` and ``kept_jobs``."""
        incidents, jobs, since = set(kept_incidents), set(kept_jobs), now - after
        for key, row in list(self._rows.items()):
            if row.last_at >= since or row.step.job in jobs or row.incident in incidents:
                continue
            del self._rows[key]
            self._of_nodes.pop(key, None)
            self._stops.pop(key, None)
            self._loans.pop(key, None)
            if row.step.job is not None:
                self._done_of_job.pop((row.step.job, row.step.kind), None)
                keys = self._of_job[row.step.job, row.step.kind]
                keys.pop(key, None)
                if not keys:
                    del self._of_job[row.step.job, row.step.kind]

    def has(self, key: str) -> bool:
        return key in self._rows

    def has_outcome(self, key: str) -> bool:
        row = self._rows.get(key)
        return row is not None and row.outcome is not None

    def incident_of(self, key: str) -> str | None:
        """The incident of the step with this key; None when there is no such row."""
        row = self._rows.get(key)
        return row.incident if row is not None else None
