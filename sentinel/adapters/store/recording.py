"""Reads a part of the store as a recording, for replays and bundles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.audit import approved
from sentinel.adapters.store.loading import (
    Readable,
    by_id,
    incident_from,
    newest_plans,
    newest_verdicts,
)
from sentinel.adapters.store.step_query import steps_from
from sentinel.model.corrections import Correction
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import Evidence, IncidentState
from sentinel.model.stored import StoredStep

# How far a judgement looks back: evidence and attempts of this time before the first incident belong to it.
LOOK_BACK = timedelta(hours=1)


def read_recording(
    connection: sa.Connection,
    readable: Readable,
    *,
    since: datetime,
    until: datetime,
    incident: str | None = None,
    node: str | None = None,
) -> Recording:
    """Incidents opened from ``since`` to ``until``, with their evidence, verdicts, plans, steps, and the jobs' attempts.

    Evidence that comes with them belongs in part to incidents that were not asked for: those are named without what was
    decided of them, so that nobody takes it for evidence of which nothing was made.

    Args:
        readable: see ``sentinel.adapters.store.loading``.
        incident: only this one, whenever it was, with the evidence around it.
        node: only incidents that name this node, with the evidence about it.
    """
    query = sa.select(t.incident).where(t.incident.c.state.in_([state.value for state in IncidentState]))
    if incident is not None:
        query = query.where(t.incident.c.id == incident)
    else:
        query = query.where(t.incident.c.opened_at >= since, t.incident.c.opened_at <= until)
    rows = [
        row for row in connection.execute(query) if node is None or node in row.nodes or node in (row.seen_on or ())
    ]
    if incident is not None and rows:
        since, until = rows[0].opened_at, rows[0].closed_at or rows[0].updated_at
    names = {row.id for row in rows}
    claimed = defaultdict(list)
    for link in by_id(connection, t.incident_evidence, t.incident_evidence.c.incident, names):
        claimed[link.incident].append(link.evidence)
    jobs = {row.job for row in rows if row.job is not None}
    about = (
        None if incident is None and node is None else (jobs, {node} if node else {n for r in rows for n in r.nodes})
    )
    evidence = _evidence(connection, readable, {i for ids in claimed.values() for i in ids}, since, until, about)
    order = {item.id: number for number, item in enumerate(evidence)}
    verdicts, plans = newest_verdicts(connection, readable, names), newest_plans(connection, readable, names)
    steps, allowed = _steps(connection, names), approved(connection, since) if names else {}
    return Recording(
        evidence=tuple(evidence),
        incidents=tuple(
            RecordedIncident(
                incident_from(row, ()),
                tuple(sorted((i for i in claimed[row.id] if i in order), key=order.__getitem__)),
                row.user,
                verdicts.get(row.id),
                plans.get(row.id),
                tuple(steps[row.id]),
                tuple(readable(Correction, row.corrections or ())),
                allowed.get(row.id, ()),
            )
            for row in sorted(rows, key=lambda row: row.opened_at)
        )
        + (_around(connection, names, order, since, until) if rows else ()),
        attempts=tuple(_attempts(connection, since, until, jobs if about is not None else None)),
    )


def _steps(connection: sa.Connection, names: set[str]) -> Mapping[str, list[StoredStep]]:
    steps = defaultdict(list)
    for step in steps_from(by_id(connection, t.step, t.step.c.incident, names)):
        steps[step.incident].append(step)
    return steps


def _around(
    connection: sa.Connection, names: set[str], order: Mapping[str, int], since: datetime, until: datetime
) -> tuple[RecordedIncident, ...]:
    """Incidents beside ``names`` to which some of the evidence in ``order`` belongs, without what was decided of them."""
    near = sa.select(t.incident).where(
        t.incident.c.state.in_([state.value for state in IncidentState]),
        t.incident.c.updated_at >= since - LOOK_BACK,
        t.incident.c.opened_at <= until + 2 * LOOK_BACK,  # it may be opened later than its first evidence was seen
    )
    rows = {row.id: row for row in connection.execute(near) if row.id not in names}
    shared = defaultdict(list)
    for link in by_id(connection, t.incident_evidence, t.incident_evidence.c.incident, rows.keys()):
        if link.evidence in order:
            shared[link.incident].append(link.evidence)
    return tuple(
        RecordedIncident(incident_from(rows[name], ()), tuple(sorted(ids, key=order.__getitem__)))
        for name, ids in sorted(shared.items(), key=lambda pair: rows[pair[0]].opened_at)
    )


def _evidence(
    connection: sa.Connection,
    readable: Readable,
    claimed: set[str],
    since: datetime,
    until: datetime,
    about: tuple[set[int], set[str]] | None,
) -> list[Evidence]:
    """In the order in which the daemon saw it. ``about``: only of these jobs and nodes, beside what is ``claimed``."""
    query = sa.select(t.evidence.c.record).where(
        t.evidence.c.at >= since - LOOK_BACK, t.evidence.c.at <= until + LOOK_BACK
    )
    if about is not None:
        query = query.where(sa.or_(t.evidence.c.job.in_(about[0]), t.evidence.c.node.in_(about[1])))
    records = [row.record for row in connection.execute(query)]
    records += [row.record for row in by_id(connection, t.evidence, t.evidence.c.id, claimed)]
    found = {item.id: item for item in readable(Evidence, records)}
    return sorted(found.values(), key=lambda item: (item.seen_at, item.at))


def _attempts(
    connection: sa.Connection, since: datetime, until: datetime, jobs: set[int] | None
) -> Sequence[RecordedAttempt]:
    ran = sa.or_(t.attempt.c.ended_at.is_(None), t.attempt.c.ended_at >= since - LOOK_BACK)
    query = (
        sa.select(t.attempt).where(ran, t.attempt.c.started_at <= until + LOOK_BACK).order_by(t.attempt.c.started_at)
    )
    if jobs is not None:
        query = query.where(t.attempt.c.job.in_(jobs))
    rows: list[dict[str, Any]] = [dict(row._mapping) for row in connection.execute(query)]
    kept = RecordedAttempt.__dataclass_fields__
    return [
        RecordedAttempt(**{**{key: row[key] for key in row if key in kept}, "nodes": tuple(row["nodes"])})
        for row in rows
    ]
