"""The query for a listing of incidents: what is wanted is asked of the database, so that newer ones hide nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.model.records import IncidentState

MOST_NAMED = 50  # nodes by whose names the database is asked; of more, it returns all rows
_OPEN = tuple(state for state in IncidentState if state is not IncidentState.CLOSED)
_NODES = (t.incident.c.nodes, t.incident.c.culprit_nodes, t.incident.c.seen_on)

Place = tuple[datetime, str]  # opened at, id


class Wanted(TypedDict, total=False):
    """The arguments of ``incident_query``."""

    since: datetime | None
    job: int | None
    jobs: Collection[int] | None
    user: str | None
    ids: Sequence[str] | None
    beginning: str
    still_open: bool
    naming: Collection[str]
    after: Place | None
    limit: int


def incident_query(
    *,
    since: datetime | None = None,
    job: int | None = None,
    jobs: Collection[int] | None = None,
    user: str | None = None,
    ids: Sequence[str] | None = None,
    beginning: str = "",
    still_open: bool = False,
    naming: Collection[str] = (),
    after: Place | None = None,
    limit: int = 200,
) -> sa.Select[Any]:
    """Incidents, newest first.

    Args:
        beginning: with which the id begins.
        naming: of these nodes, where they are few; rows of others may be among them.
        after: the last one of the part before, where a listing is read in parts.
    """
    columns = t.incident.c
    query = sa.select(t.incident).order_by(columns.opened_at.desc(), columns.id.desc()).limit(limit)
    if ids is not None:
        query = query.where(columns.id.in_(ids))
    if beginning:
        query = query.where(columns.id.startswith(beginning, autoescape=True))
    if since is not None:
        query = query.where(columns.opened_at >= since)
    if job is not None:
        query = query.where(columns.job == job)
    if jobs is not None:
        query = query.where(columns.job.in_(jobs))
    if user is not None:
        query = query.where(columns.user == user)
    if still_open:
        query = query.where(columns.state.in_(_OPEN))
    if (named := names_one(_NODES, naming)) is not None:
        query = query.where(named)
    if after is not None:
        at, name = after
        query = query.where(sa.or_(columns.opened_at < at, sa.and_(columns.opened_at == at, columns.id < name)))
    return query


def names_one(columns: Iterable[sa.Column[Any]], nodes: Collection[str]) -> sa.ColumnElement[bool] | None:
    """Whether one of these lists of nodes has one of these names; None: of none, or of too many, the database is asked."""
    if not 0 < len(nodes) <= MOST_NAMED:
        return None
    quoted = [json.dumps(name) for name in nodes]  # as a name stands in the JSON of a list
    return sa.or_(*(sa.cast(one, sa.Text).contains(name, autoescape=True) for one in columns for name in quoted))
