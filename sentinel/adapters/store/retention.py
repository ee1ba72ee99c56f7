"""Prunes the store: unreferenced evidence, and old closed incidents with their verdicts, plans, ledger rows and notices.

Open and watched incidents are kept whatever their age; one held for a person is pruned if it has not changed for as long.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.model.records import IncidentState

_OF_AN_INCIDENT = (t.verdict, t.plan, t.step, t.notice)
_MANY = 500  # ids of one statement


def forget(connection: sa.Connection, before: datetime) -> int:
    """Delete what is older than ``before``; returns how many rows of evidence went."""
    over = _over(connection, before)
    for start in range(0, len(over), _MANY):
        some = over[start : start + _MANY]
        for table in _OF_AN_INCIDENT:
            connection.execute(sa.delete(table).where(table.c.incident.in_(some)))
        connection.execute(sa.delete(t.incident_evidence).where(t.incident_evidence.c.incident.in_(some)))
        connection.execute(sa.delete(t.incident).where(t.incident.c.id.in_(some)))
    told = t.notice.c  # those about no incident: that we were blind
    connection.execute(sa.delete(t.notice).where(told.incident == "", told.at < before, told.delivered))
    connection.execute(sa.delete(t.counter).where(t.counter.c.at < before))
    connection.execute(sa.delete(t.attempt).where(t.attempt.c.ended_at < before))
    kept = sa.select(t.incident_evidence.c.evidence)
    gone = connection.execute(sa.delete(t.evidence).where(t.evidence.c.at < before, t.evidence.c.id.not_in(kept)))
    return int(gone.rowcount)


def _over(connection: sa.Connection, before: datetime) -> list[str]:
    closed = sa.and_(t.incident.c.state == IncidentState.CLOSED, t.incident.c.closed_at < before)
    waits = sa.and_(
        t.incident.c.state.in_((IncidentState.HELD, IncidentState.WAITING)), t.incident.c.updated_at < before
    )
    return [row.id for row in connection.execute(sa.select(t.incident.c.id).where(sa.or_(closed, waits)))]


def size_bytes(connection: sa.Connection) -> int:
    """What the rows take; space that deleted ones left is used again and does not count."""
    if connection.dialect.name == "sqlite":
        page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        return int(page) * (int(pages) - int(free))
    total = 0
    for table in t.metadata.sorted_tables:
        rows = table.alias("rows")
        row = sa.func.pg_column_size(sa.text("rows"))  # the whole row, by the name of its alias
        total += int(
            connection.execute(sa.select(sa.func.coalesce(sa.func.sum(row), 0)).select_from(rows)).scalar_one()
        )
    return total


def shorter(now: datetime, before: datetime) -> datetime | None:
    """The next date to try when the store is still too large; None when only the last day is left."""
    age = now - before
    return now - age / 2 if age > timedelta(days=2) else None
