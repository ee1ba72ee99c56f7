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
    _forget_incidents(connection, _over(connection, before))
    told = t.notice.c  # those about no incident: that we were blind
    connection.execute(sa.delete(t.notice).where(told.incident == "", told.at < before, told.delivered))
    connection.execute(sa.delete(t.counter).where(t.counter.c.at < before))
    connection.execute(sa.delete(t.attempt).where(t.attempt.c.ended_at < before))
    kept = sa.select(t.incident_evidence.c.evidence)
    gone = connection.execute(sa.delete(t.evidence).where(t.evidence.c.at < before, t.evidence.c.id.not_in(kept)))
    return int(gone.rowcount)


def users_bytes(connection: sa.Connection) -> dict[str, int]:
    """Bytes that the evidence of each user's jobs takes; users without known attempts are left out."""
    owner = sa.select(t.attempt.c.job, sa.func.max(t.attempt.c.user).label("user")).group_by(t.attempt.c.job).subquery()
    size = sa.func.sum(sa.func.length(sa.cast(t.evidence.c.record, sa.Text)))
    query = (
        sa.select(owner.c.user, size)
        .join(owner, owner.c.job == t.evidence.c.job)
        .where(owner.c.user.is_not(None))
        .group_by(owner.c.user)
    )
    return {row[0]: int(row[1]) for row in connection.execute(query)}


def forget_user(connection: sa.Connection, user: str, before: datetime) -> None:
    """Delete the evidence of one user's jobs, and their closed incidents, from before then. What is open or held stays."""
    closed = sa.select(t.incident.c.id).where(
        t.incident.c.user == user, t.incident.c.state == IncidentState.CLOSED, t.incident.c.closed_at < before
    )
    _forget_incidents(connection, [row.id for row in connection.execute(closed)])
    jobs = sa.select(t.attempt.c.job).where(t.attempt.c.user == user)
    kept = sa.select(t.incident_evidence.c.evidence)
    connection.execute(
        sa.delete(t.evidence).where(t.evidence.c.at < before, t.evidence.c.job.in_(jobs), t.evidence.c.id.not_in(kept))
    )


def _forget_incidents(connection: sa.Connection, ids: list[str]) -> None:
    for start in range(0, len(ids), _MANY):
        some = ids[start : start + _MANY]
        for table in _OF_AN_INCIDENT:
            connection.execute(sa.delete(table).where(table.c.incident.in_(some)))
        connection.execute(sa.delete(t.incident_evidence).where(t.incident_evidence.c.incident.in_(some)))
        connection.execute(sa.delete(t.incident).where(t.incident.c.id.in_(some)))


def greedy(sizes: dict[str, int], most_bytes: int) -> list[str]:
    """Users who take more than an equal share of half the store, the largest first. The other half is the cluster's own."""
    share = most_bytes / 2 / max(1, len(sizes))
    return sorted((user for user, size in sizes.items() if size > share), key=lambda user: -sizes[user])


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
