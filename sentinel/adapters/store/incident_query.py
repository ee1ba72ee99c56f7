"""The query for a listing of incidents: what is wanted is asked of the database, so that newer ones hide nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypedDict

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.model.records import IncidentState

MOST_NAMED = 50  # nodes by whose names the database is asked; of more, it returns all rows
_OPEN = tuple(state for state in IncidentState if state is not IncidentState.CLOSED)
_PART_ROWS = 5000  # rows of a whole history that are read at once
_NODES = (t.incident.c.nodes, t.incident.c.culprit_nodes, t.incident.c.seen_on)

# What sums and scores are made of: the lists of all nodes of large jobs would take most of the time and memory.
_SUMMED = tuple(
    column
    for column in t.incident.c
    if column.name not in ("nodes", "outcome", "confidence", "updated_at", "closed_at")
)

Row = dict[str, Any]
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
    cause: str | None
    corrected: bool
    summed: bool
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
    cause: str | None = None,
    corrected: bool = False,
    summed: bool = False,
    after: Place | None = None,
    limit: int = 200,
) -> sa.Select[Any]:
    """Incidents, newest first.

    Args:
        beginning: with which the id begins.
        naming: of these nodes, where they are few; rows of others may be among them.
        cause: as it was judged, or as an operator may have corrected it; rows corrected to others may be among them.
        corrected: only those that an operator corrected.
        summed: only the columns that sums and scores are made of.
        after: the last one of the part before, where a listing is read in parts.
    """
    columns = t.incident.c
    query = sa.select(*(_SUMMED if summed else columns)).limit(limit)
    query = query.order_by(columns.opened_at.desc(), columns.id.desc())
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
    if cause is not None:
        judged = columns.cause == cause
        query = query.where(sa.or_(judged, columns.cause.is_(None), columns.corrections.is_not(None)))
    if corrected:
        query = query.where(columns.corrections.is_not(None))
    if after is not None:
        at, name = after  # the first condition alone is one that an index answers
        query = query.where(columns.opened_at <= at, sa.or_(columns.opened_at < at, columns.id < name))
    return query


def in_parts(read: Callable[..., list[Row]], wanted: Wanted) -> Iterator[Row]:
    """All incidents that match, newest first, however many: no part is longer than ``limit``, which is not a limit of all.

    What is opened meanwhile is newer than what is still to come; nothing comes twice, and nothing is passed over.

    Args:
        read: the rows of ``incident_query`` with these arguments.
    """
    asked: Wanted = {"limit": _PART_ROWS, **wanted}
    while True:
        part = read(**asked)
        yield from part
        if len(part) < asked["limit"]:
            return
        asked["after"] = part[-1]["opened_at"], part[-1]["id"]


def names_one(columns: Iterable[sa.Column[Any]], nodes: Collection[str]) -> sa.ColumnElement[bool] | None:
    """Whether one of these lists of nodes has one of these names; None: of none, or of too many, the database is asked."""
    if not 0 < len(nodes) <= MOST_NAMED:
        return None
    quoted = [json.dumps(name) for name in nodes]  # as a name stands in the JSON of a list
    return sa.or_(*(sa.cast(one, sa.Text).contains(name, autoescape=True) for one in columns for name in quoted))
