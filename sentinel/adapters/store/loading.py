"""Reads from the store what the engine needs to rebuild its state after a start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.batches import batched
from sentinel.model.records import (
    RESTARTS,
    Cause,
    Evidence,
    Incident,
    IncidentState,
    Notice,
    Plan,
    StepKind,
    Verdict,
)
from sentinel.model.stored import (
    ENDED,
    LEFT_RUNNING,
    Stored,
    StoredStep,
    heard_of,
    left_running,
    newest_standing,
    not_judged_since,
    still_excluding,
    still_holding,
    without_overtaken,
)

T = TypeVar("T")


class Readable(Protocol):
    def __call__(self, kind: type[T], found: Iterable[object]) -> list[T]: ...


_MOST_EVIDENCE = 5000  # newest that no incident refers to
_STATES = frozenset(IncidentState)  # one of a later release is left out

# What verdicts and restarts are made of; the nodes of every job of a month would take most of the time and memory.
_JUDGED = tuple(column for column in t.incident.c if column.name not in ("nodes", "outcome"))
_SETTINGS = sa.select(t.setting)
_OPEN_PLANS = sa.select(t.plan.c.incident).where(t.plan.c.finished.is_(False)).order_by(t.plan.c.at)
_RUNNING = sa.select(t.attempt.c.job).where(t.attempt.c.ended_at.is_(None))
_TOLD_OF = sa.select(t.notice.c.incident).distinct()
_UNDELIVERED = sa.select(t.notice.c.record, t.notice.c.receiver).where(t.notice.c.delivered.is_(False))


def load(
    connection: sa.Connection,
    readable: Readable,
    steps: Sequence[StoredStep],
    *,
    month: datetime,
    lately: datetime,
    evidence_ids: int,
    counted: datetime | None = None,
) -> Stored:
    """Everything but the ledger in one read transaction.

    Args:
        readable: records of a kind from their JSON; leaves out what cannot be read, and says so.
        steps: the whole ledger, the oldest first, read before: nobody but this daemon adds to it.
        month: incidents since then are history for verdicts.
        lately: evidence since then may not have been judged; incidents closed since then may still get news. Earlier if the
            previous daemon ended earlier.
        evidence_ids: how many of the newest.
        counted: incidents that changed since then count for limits, however long they are closed; None: ``lately``.
    """
    settings = {row.name: row.value for row in connection.execute(_SETTINGS)}
    lately = not_judged_since(settings, lately)
    plans = dict.fromkeys(connection.execute(_OPEN_PLANS).scalars())
    rows = {row.id: row for row in connection.execute(_incidents(month)) if row.state in _STATES}
    wanted = {name for name, row in rows.items() if row.closed_at is None or row.closed_at >= lately} | set(plans)
    wanted |= {name for name, row in rows.items() if counted is not None and row.updated_at >= counted}
    restarted = {step.step.job for step in steps if step.step.kind in RESTARTS and step.step.job is not None}
    attempts = [row._mapping for row in by_id(connection, t.attempt, t.attempt.c.job, restarted | _excluded(steps))]
    wanted |= still_excluding(steps, attempts, lately - ENDED) | still_holding(steps, month)
    older = (wanted | {step.incident for step in steps}) - set(rows)
    rows |= {row.id: row for row in by_id(connection, t.incident, t.incident.c.id, older, _JUDGED)}
    running = set(connection.execute(_RUNNING).scalars())
    of_running = {name: row.closed_at for name, row in rows.items() if row.job in running}
    left = {name for name, closed in of_running.items() if closed is not None and closed >= lately - LEFT_RUNNING}
    made = newest_plans(connection, readable, wanted | left)
    verdicts = newest_verdicts(connection, readable, wanted | of_running.keys())
    wanted |= {name for name in left if left_running(made.get(name), verdicts.get(name))}
    made = {name: plan for name, plan in made.items() if name in wanted}
    known = [row for row in by_id(connection, t.incident, t.incident.c.id, wanted) if row.state in _STATES]
    undelivered, heard = _undelivered(connection, readable)
    return Stored(
        incidents=_with_evidence(connection, readable, sorted(known, key=lambda row: row.id)),
        verdicts=verdicts,
        plans=made,
        open_plans=frozenset(plans.keys() & made.keys()),
        steps=tuple(steps),
        judged=tuple(dict(row._mapping) for row in rows.values() if row.cause in frozenset(Cause)),
        attempts=tuple(dict(row) for row in attempts if row["job"] in restarted),
        recent_attempts=tuple(dict(row._mapping) for row in connection.execute(_recent_attempts(lately))),
        settings=settings,
        told=_told(connection, wanted),
        undelivered=undelivered,
        heard_of=heard,
        standing=_standing(connection, readable, wanted | {""}),
        unclaimed=_unclaimed(connection, readable, lately),
        evidence_ids=_evidence_ids(connection, evidence_ids),
    )


def _excluded(steps: Iterable[StoredStep]) -> set[int]:
    """Jobs for which nodes were excluded."""
    return {row.step.job for row in steps if row.step.kind is StepKind.EXCLUDE and row.step.job is not None}


def _recent_attempts(lately: datetime) -> sa.Select[Any]:
    over = t.attempt.c.ended_at
    return sa.select(t.attempt).where(sa.or_(over.is_(None), over >= lately - ENDED)).order_by(t.attempt.c.started_at)


def _incidents(since: datetime) -> sa.Select[Any]:
    """All of them: a daemon that had never stopped would know the same."""
    still_open = t.incident.c.state != IncidentState.CLOSED
    query = sa.select(*_JUDGED).where(sa.or_(t.incident.c.opened_at >= since, still_open))
    return query.order_by(t.incident.c.opened_at.desc())


def by_id(
    connection: sa.Connection,
    table: sa.Table,
    column: sa.Column[Any],
    ids: Collection[Any],
    columns: tuple[sa.Column[Any], ...] | None = None,
) -> list[Any]:
    """Rows by their ids; ``columns``: only these of each."""
    found: list[Any] = []
    for part in batched(sorted(ids)):
        found.extend(connection.execute(_by_id(columns or tuple(table.c), column), {"ids": part}))
    return found


@cache
def _by_id(columns: tuple[sa.Column[Any], ...], column: sa.Column[Any]) -> sa.Select[Any]:
    return sa.select(*columns).where(column.in_(sa.bindparam("ids", expanding=True)))


def _with_evidence(connection: sa.Connection, readable: Readable, rows: Sequence[Any]) -> tuple[Incident, ...]:
    """The incidents of these rows. Evidence that several of them share is read and decoded once."""
    of_incident: dict[str, list[str]] = {row.id: [] for row in rows}
    for pair in by_id(connection, t.incident_evidence, t.incident_evidence.c.incident, of_incident.keys()):
        of_incident[pair.incident].append(pair.evidence)
    wanted = {name for names in of_incident.values() for name in names}
    records = (row.record for row in by_id(connection, t.evidence, t.evidence.c.id, wanted))
    known = {item.id: item for item in readable(Evidence, records)}
    found = []
    for row in rows:
        items = [known[name] for name in of_incident[row.id] if name in known]
        found.append(incident_from(row, sorted(items, key=lambda item: item.at)))
    return tuple(found)


def incident_from(row: Any, evidence: Sequence[Evidence]) -> Incident:
    """The record of a row of the table ``incident``."""
    return Incident(
        id=row.id,
        opened_at=row.opened_at,
        updated_at=row.updated_at,
        closed_at=row.closed_at,
        state=IncidentState(row.state),
        job=row.job,
        attempt=row.attempt,
        nodes=tuple(row.nodes),
        evidence=tuple(evidence),
        outcome=row.outcome,
    )


def newest_verdicts(connection: sa.Connection, readable: Readable, incidents: set[str]) -> dict[str, Verdict]:
    rows = sorted(by_id(connection, t.verdict, t.verdict.c.incident, incidents), key=lambda row: row.id)
    newest = {row.incident: row.record for row in rows}
    return {name: found for name, record in newest.items() for found in readable(Verdict, [record])}


def newest_plans(connection: sa.Connection, readable: Readable, incidents: Collection[str]) -> dict[str, Plan]:
    rows = sorted(by_id(connection, t.plan, t.plan.c.incident, incidents), key=lambda row: row.at)
    newest = {row.incident: row.record for row in rows}
    return {name: found for name, record in newest.items() for found in readable(Plan, [record])}


def _told(connection: sa.Connection, incidents: set[str]) -> dict[str, dict[str, Any]]:
    """See ``Stored.told``.

    A message of an earlier release tells no stage: its incident counts as told to the end. Or it does not say of which
    request for an approval it told: of those that had begun.
    """
    rows = by_id(connection, t.notice, t.notice.c.incident, incidents)
    others = connection.execute(_TOLD_OF).scalars()
    over = {"stages": ("resolved",), "worst": "critical", "final": True, "joined": "", "labels": {}}
    found: dict[str, dict[str, Any]] = {name: over for name in others if name and name not in incidents}
    for row in sorted({row.id: row for row in rows}.values(), key=lambda row: _outline(row).order):
        record = row.record if isinstance(row.record, dict) else {}
        said: dict[str, Any] = record.get("data") or {}
        stages = (*found.get(row.incident, {"stages": ()})["stages"], said.get("stage") or "handled")
        found[row.incident] = {
            "stages": stages, "worst": said.get("worst") or "critical", "final": bool(said.get("final", True)),
            "joined": said.get("joined") or "", "labels": said.get("labels") or {},
            "asked": said["asked"] if "asked" in said else row.at.isoformat(), "beside": said.get("beside"),
        }  # fmt: skip
    return found


def _undelivered(
    connection: sa.Connection, readable: Readable
) -> tuple[tuple[tuple[Notice, str], ...], dict[str, frozenset[str]]]:
    """See ``Stored.undelivered`` and ``heard_of``. Of what was delivered no text is needed: an unreadable one is no loss."""
    rows = connection.execute(_UNDELIVERED).all()
    waiting = [(notice, row.receiver) for row in rows for notice in readable(Notice, [row.record])]
    known = by_id(connection, t.notice, t.notice.c.incident, {notice.incident for notice, _ in waiting})
    outlines = [(_outline(row), row.receiver, row.delivered) for row in known]
    left = without_overtaken(waiting, [(outline, to) for outline, to, delivered in outlines if delivered])
    return left, heard_of(left, [(outline, to) for outline, to, _ in outlines])


def _standing(connection: sa.Connection, readable: Readable, incidents: set[str]) -> tuple[tuple[Notice, str], ...]:
    rows = {(row.id, row.receiver): row for row in by_id(connection, t.notice, t.notice.c.incident, incidents)}
    chosen = newest_standing((_outline(row), row.receiver, row.delivered) for row in rows.values())
    records = [(rows[outline.id, receiver].record, receiver) for outline, receiver in chosen]
    return tuple((notice, receiver) for record, receiver in records for notice in readable(Notice, [record]))


def _outline(row: Any) -> Notice:
    """What says to which thread the message belongs, and which of it it is."""
    record = row.record if isinstance(row.record, dict) else {}
    said = record.get("data")
    data = (
        {key: said.get(key) for key in ("since", "message", "final") if key in said} if isinstance(said, dict) else {}
    )
    return Notice(row.id, row.incident, row.at, "", "", data)


def _unclaimed(connection: sa.Connection, readable: Readable, since: datetime) -> tuple[Evidence, ...]:
    claimed = sa.select(t.incident_evidence.c.evidence)
    query = (
        sa.select(t.evidence.c.record)
        .where(t.evidence.c.seen_at >= since, t.evidence.c.id.not_in(claimed))
        .order_by(t.evidence.c.at.desc())
    )
    records = [row.record for row in connection.execute(query.limit(_MOST_EVIDENCE))]
    return tuple(readable(Evidence, reversed(records)))


def _evidence_ids(connection: sa.Connection, most: int) -> tuple[str, ...]:
    query = sa.select(t.evidence.c.id).order_by(t.evidence.c.at.desc()).limit(most)
    return tuple(reversed(list(connection.execute(query).scalars())))
