"""The store, with what only tests write and read row by row. The daemon commits whole decisions and loads everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.changes import write
from sentinel.adapters.store.store import Store
from sentinel.model import changes
from sentinel.model.records import (
    Cause,
    Evidence,
    Incident,
    IncidentState,
    JobView,
    Notice,
    Outcome,
    Plan,
    Result,
    Scope,
    Step,
    Verdict,
)


class DirectStore(Store):
    def evidence_since(self, since: datetime, *, job: int | None = None, node: str | None = None) -> list[Evidence]:
        """Evidence from ``since`` on, oldest first, of one job and/or node if named."""
        query = sa.select(t.evidence.c.record).where(t.evidence.c.at >= since).order_by(t.evidence.c.at)
        if job is not None:
            query = query.where(t.evidence.c.job == job)
        if node is not None:
            query = query.where(t.evidence.c.node == node)
        with self._read() as connection:
            return self._readable(Evidence, (row.record for row in connection.execute(query.limit(5000))))

    def save_incident(self, incident: Incident, *, user: str | None = None) -> None:
        self.commit([changes.IncidentChanged(incident, user)])

    def save_verdict(self, incident: str, verdict: Verdict, at: datetime) -> None:
        self.commit([changes.VerdictReached(incident, verdict, at)])

    def save_closed(
        self, count: int, at: datetime, *, every_s: float = 1.0, cause: Cause = Cause.USER_CODE, job: int = 90_000
    ) -> None:
        """So many incidents that are over, in bulk: of the jobs from ``job`` on, the first at ``at``, one ``every_s``."""
        scope = Scope.APPLICATION if cause is Cause.USER_CODE else Scope.NODE
        rows = [
            {"id": f"many{job + number:06}", "opened_at": opened, "updated_at": opened, "closed_at": opened,
             "state": IncidentState.CLOSED, "job": job + number, "attempt": 0, "user": "eve", "nodes": ["n3"],
             "cause": cause, "scope": scope, "decided_at": opened, "culprit_nodes": [], "culprit_gpus": [],
             "culprit_ranks": [], "seen_on": ["n3"], "users_words": True}
            for number in range(count)
            for opened in (at + timedelta(seconds=every_s * number),)
        ]  # fmt: skip
        with self._begin() as connection:
            connection.execute(sa.insert(t.incident), rows)

    def incident_ids(self, since: datetime | None = None, states: Sequence[IncidentState] = ()) -> list[str]:
        query = sa.select(t.incident.c.id).order_by(t.incident.c.opened_at.desc())
        if since is not None:
            query = query.where(t.incident.c.opened_at >= since)
        if states:
            query = query.where(t.incident.c.state.in_(states))
        with self._read() as connection:
            return [row.id for row in connection.execute(query)]

    def open_incidents(self) -> list[Incident]:
        states = [state for state in IncidentState if state is not IncidentState.CLOSED]
        found = [self.incident(name) for name in self.incident_ids(states=states)]
        return [incident for incident in found if incident is not None]

    def save_attempt(
        self, job: JobView, *, first_step: int | None, last_step: int | None, step_time_s: float | None
    ) -> None:
        self.commit([changes.AttemptSeen(job, first_step, last_step, step_time_s)])

    def save_plan(self, plan: Plan) -> None:
        self.commit([changes.PlanMade(plan)])

    def finish_plan(self, plan: Plan) -> None:
        self.commit([changes.PlanFinished(plan.id)])

    def open_plans(self) -> list[Plan]:
        query = sa.select(t.plan.c.record).where(t.plan.c.finished.is_(False)).order_by(t.plan.c.at)
        with self._read() as connection:
            return self._readable(Plan, (row.record for row in connection.execute(query)))

    def intend(self, plan: Plan, step: Step, at: datetime) -> bool:
        """Write the intent row. False when the step has ended already: do nothing then."""
        with self._begin() as connection:
            write(connection, changes.StepIntended(plan, step, at))
            row = connection.execute(sa.select(t.step.c.result).where(t.step.c.key == step.key(plan.incident))).one()
        return row.result not in (Result.DONE, Result.FAILED)

    def record(self, plan: Plan, outcome: Outcome) -> None:
        self.commit([changes.StepEnded(plan.incident, outcome)])

    def notice_sent(self, notice: str, receiver: str) -> bool:
        query = sa.select(t.notice.c.delivered).where(t.notice.c.id == notice, t.notice.c.receiver == receiver)
        with self._read() as connection:
            row = connection.execute(query).first()
        return bool(row and row.delivered)

    def knows_notice(self, notice: str, receiver: str) -> bool:
        """Whether this notice was composed for the receiver before, delivered or not."""
        query = sa.select(t.notice.c.id).where(t.notice.c.id == notice, t.notice.c.receiver == receiver)
        with self._read() as connection:
            return connection.execute(query).first() is not None

    def record_notice(self, notice: Notice, receiver: str, delivered: bool) -> None:
        self.commit([changes.NoticeChanged(notice, receiver, delivered)])

    def undelivered(self) -> list[tuple[Notice, str]]:
        query = sa.select(t.notice.c.record, t.notice.c.receiver).where(t.notice.c.delivered.is_(False))
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [(notice, row.receiver) for row in rows for notice in self._readable(Notice, [row.record])]

    def save_counters(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Values as (node, unit, name, at, value); of each day the last one is kept."""
        self.commit([changes.CountersRead(tuple(rows))])
