"""Queries for listings of attempts, and which of two rows of one attempt counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.incident_query import names_one
from sentinel.model.identity import JobsOfOneId

_COLUMNS = t.attempt.c

Row = dict[str, Any]


class Wanted(TypedDict, total=False):
    """The arguments of ``attempt_query``."""

    job: int | None
    jobs: Collection[int] | None
    since: datetime | None
    ran_since: datetime | None
    user: str | None


def attempt_query(
    *,
    job: int | None = None,
    jobs: Collection[int] | None = None,
    since: datetime | None = None,
    ran_since: datetime | None = None,
    user: str | None = None,
) -> sa.Select[Any]:
    """Attempts that started ``since`` then, or that still ran at ``ran_since`` or later, the oldest first."""
    query = sa.select(t.attempt).order_by(_COLUMNS.started_at)
    if job is not None:
        query = query.where(_COLUMNS.job == job)
    if jobs is not None:
        query = query.where(_COLUMNS.job.in_(jobs))
    if since is not None:
        query = query.where(_COLUMNS.started_at >= since)
    return _of(query, ran_since, user)


class JobRan(NamedTuple):
    """A job's id, with the number of its attempts of a time, whether one has no end, and when the last of them began."""

    job: int
    attempts: int
    endless: bool
    began: datetime
    several: bool  # attempts of more than one job may be among them, which had the id one after the other


def jobs_query(ran_since: datetime | None, user: str | None, jobs: Collection[int] | None) -> sa.Select[Any]:
    """The columns of ``JobRan``; the one that began last first."""
    count, began = sa.func.count(), sa.func.max(_COLUMNS.started_at)
    endless = (count > sa.func.count(_COLUMNS.ended_at)).label("endless")
    first = sa.func.max(sa.case((_COLUMNS.attempt == 0, _COLUMNS.started_at)))
    of_another = sa.or_(first > sa.func.min(_COLUMNS.started_at), sa.func.count(_COLUMNS.user.distinct()) > 1)
    several = sa.func.coalesce(of_another, sa.false()).label("several")
    query = sa.select(_COLUMNS.job, count.label("attempts"), endless, began.label("began"), several)
    if jobs is not None:
        query = query.where(_COLUMNS.job.in_(jobs))
    return _of(query.group_by(_COLUMNS.job).order_by(began.desc(), _COLUMNS.job.desc()), ran_since, user)


def nodes_query(nodes: Collection[str], ran_since: datetime | None, user: str | None) -> sa.Select[Any]:
    """Job and nodes of attempts on one of these nodes; rows of others may be among them."""
    query = sa.select(_COLUMNS.job, _COLUMNS.nodes)
    named = names_one((_COLUMNS.nodes,), nodes)
    return _of(query if named is None else query.where(named), ran_since, user)


def components_query(job: int) -> sa.Select[Any]:
    """The components of the heterogeneous job to which the newest attempt of this job belongs, itself included."""
    newest = sa.select(_COLUMNS.het, _COLUMNS.user).where(_COLUMNS.job == job)
    own = newest.order_by(_COLUMNS.started_at.desc()).limit(1).subquery()
    # Ids come again, with other jobs: most of them with other users'.
    return sa.select(_COLUMNS.job).where(_COLUMNS.het == own.c.het, _COLUMNS.user == own.c.user).distinct()


def _of(query: sa.Select[Any], ran_since: datetime | None, user: str | None) -> sa.Select[Any]:
    if user is not None:
        query = query.where(_COLUMNS.user == user)
    if ran_since is not None:
        query = query.where(sa.or_(_COLUMNS.ended_at.is_(None), _COLUMNS.ended_at >= ran_since))
    return query


def each_once(rows: Iterable[Row]) -> list[Row]:
    """Attempts, the oldest first; of two rows of one attempt the newest.

    While a requeued job's nodes are being freed, Slurm may report the next attempt with the start and nodes of the
    previous one; the store of an earlier release then has it twice. A job's id may come again, too, with another's job.
    """
    newest: dict[tuple[Any, ...], Row] = {}
    rows = list(rows)
    jobs = JobsOfOneId(rows)
    for row in rows:
        key = jobs.of(row["job"], row["started_at"]), row["attempt"]
        newest.pop(key, None)
        newest[key] = row
    return list(newest.values())
