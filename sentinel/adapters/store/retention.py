"""Prunes the store: unreferenced evidence, and old closed incidents with their verdicts, plans, ledger rows and notices.

Open, waiting and watched incidents are kept whatever their age, and those that the caller spares; one held for a person is
pruned if it has not changed for as long. Of a user who takes more than a share, the incidents themselves and their steps
stay, beside the attempts: rates are failures over work, and one without the other would make them wrong.

Evidence ages by its own time, and one whose time has not come, as of a node with a wrong clock, from when it was seen.

What is to go is looked up in transactions that only read, and deleted some rows at a time, each in a transaction of its own:
what the daemon decides meanwhile, and its lease, wait for one of these at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.model.identity import JobsOfOneId
from sentinel.model.records import IncidentState

_TEXTS = (t.verdict, t.plan, t.notice)  # beside its evidence, most of what an incident takes
_OF_AN_INCIDENT = (*_TEXTS, t.step)
_INCIDENTS = 100  # that one transaction deletes, with all that belongs to them
_ROWS = 1000  # that one transaction deletes: some tens of milliseconds
_SIZES = timedelta(days=1)  # the evidence whose bytes one transaction adds up
_AHEAD = timedelta(days=1)  # beyond what a clock is off that somebody looks after

T = TypeVar("T")
Transaction = Callable[[], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True, slots=True)
class Access:
    """Begins transactions: one that only reads, one that deletes."""

    read: Transaction
    delete: Transaction


def forget(store: Access, before: datetime, spared: Collection[str] = (), now: datetime | None = None) -> int:
    """Delete what is older than ``before``, all but the incidents ``spared``; returns how many rows of evidence went.

    Args:
        now: what is of a later time goes as well if it was seen ``before``; None: it stays.
    """
    _forget_incidents(store, _over(before), spared)
    told = t.notice.c  # those about no incident: that we were blind
    with store.delete() as connection:
        connection.execute(sa.delete(t.notice).where(told.incident == "", told.at < before))
    _forget_rows(store, t.counter, t.counter.c.at, before)
    _forget_rows(store, t.attempt, t.attempt.c.ended_at, before)
    return _forget_evidence(store, _unreferenced(store, before, now))


def let_age(store: Access, now: datetime) -> None:
    """Note evidence as seen now whose node's clock was ahead when it was seen, so that it gets old."""
    at, seen_at, until = t.evidence.c.at, t.evidence.c.seen_at, now + _AHEAD
    with store.read() as connection:
        ids = list(connection.execute(sa.select(t.evidence.c.id).where(at > until, seen_at > until)).scalars())
    for some in _some(ids, _ROWS):
        with store.delete() as connection:
            connection.execute(sa.update(t.evidence).where(t.evidence.c.id.in_(some)).values(seen_at=now))


def forget_user(store: Access, user: str, before: datetime, now: datetime, spared: Collection[str] = ()) -> None:
    """Delete the evidence of one user's jobs from before then, and what was told and decided of their closed incidents.

    What is open or held stays whole, as do the incidents ``spared``; and that an incident was, its cause and its steps.
    """
    incident = t.incident.c
    closed = sa.and_(incident.user == user, incident.state == IncidentState.CLOSED, incident.closed_at < before)
    whole = sa.or_(*(sa.exists().where(table.c.incident == incident.id) for table in (*_TEXTS, t.incident_evidence)))
    _forget_incidents(store, sa.and_(closed, whole), spared, texts_only=True)
    with store.read() as connection:
        jobs = list(connection.execute(sa.select(t.attempt.c.job).where(t.attempt.c.user == user).distinct()).scalars())
    _forget_evidence(store, (name for job in jobs for name in _unreferenced_of(store, before, now, job, user)))


def _forget_incidents(
    store: Access, over: sa.ColumnElement[bool], spared: Collection[str], *, texts_only: bool = False
) -> None:
    kept = frozenset(spared)
    with store.read() as connection:
        known = connection.execute(sa.select(t.incident.c.id).where(over)).scalars()
        ids = [name for name in known if name not in kept]
    for some in _some(ids, _INCIDENTS):
        with store.delete() as connection:
            # One may have been opened again since it was read.
            found = sa.select(t.incident.c.id).where(t.incident.c.id.in_(some), over)
            gone = list(connection.execute(found).scalars())
            for table in (*(_TEXTS if texts_only else _OF_AN_INCIDENT), t.incident_evidence):
                connection.execute(sa.delete(table).where(table.c.incident.in_(gone)))
            if not texts_only:
                connection.execute(sa.delete(t.incident).where(t.incident.c.id.in_(gone)))


def _over(before: datetime) -> sa.ColumnElement[bool]:
    closed = sa.and_(t.incident.c.state == IncidentState.CLOSED, t.incident.c.closed_at < before)
    held = sa.and_(t.incident.c.state == IncidentState.HELD, t.incident.c.updated_at < before)
    return sa.or_(closed, held)


def _forget_rows(store: Access, table: sa.Table, at: sa.Column[datetime], before: datetime) -> None:
    """Delete rows from before then, the oldest first."""
    some = sa.select(at).where(at < before).order_by(at).limit(1)
    while True:
        with store.read() as connection:  # rows of one time go together, so that each turn deletes some
            until = connection.execute(some.offset(_ROWS)).scalar()
        with store.delete() as connection:
            connection.execute(sa.delete(table).where(at < before if until is None else at <= until))
        if until is None:
            return


_KEPT = sa.exists().where(t.incident_evidence.c.evidence == t.evidence.c.id)


def _unreferenced(store: Access, before: datetime, now: datetime | None) -> Iterator[str]:
    """Ids of evidence from before then that belongs to no incident; the oldest first. ``now``: see ``forget``."""
    return (name for _, name in _each_unreferenced(store, before, now))


def _each_unreferenced(
    store: Access, before: datetime, now: datetime | None, job: int | None = None
) -> Iterator[tuple[datetime, str]]:
    """Times and ids of that evidence, of this job id alone if one is given."""
    at = t.evidence.c.at
    yield from _paged(store, at < before, job)
    if now is not None:
        yield from _paged(store, sa.and_(at > now, t.evidence.c.seen_at < before), job)


def _paged(store: Access, which: sa.ColumnElement[bool], job: int | None) -> Iterator[tuple[datetime, str]]:
    at, name = t.evidence.c.at, t.evidence.c.id
    query = sa.select(at, name).where(which, ~_KEPT).order_by(at, name).limit(_ROWS)
    query = query if job is None else query.where(t.evidence.c.job == job)
    later = query
    while True:
        with store.read() as connection:
            rows = connection.execute(later).all()
        yield from ((row.at, row.id) for row in rows)
        if len(rows) < _ROWS:
            return
        last = rows[-1]
        later = query.where(at >= last.at, sa.or_(at > last.at, name > last.id))


def _unreferenced_of(store: Access, before: datetime, now: datetime, job: int, user: str) -> Iterator[str]:
    """As ``_unreferenced``, of this job's evidence, but of jobs of others with its id."""
    known = t.attempt.c
    query = sa.select(known.job, known.attempt, known.user, known.started_at, known.ended_at).where(known.job == job)
    with store.read() as connection:
        rows = [row._asdict() for row in connection.execute(query)]
    jobs = JobsOfOneId(rows)
    own = {jobs.of(job, row["started_at"]) for row in rows if row["user"] == user}
    return (name for at, name in _each_unreferenced(store, before, now, job) if jobs.of(job, at) in own)


def _forget_evidence(store: Access, ids: Iterable[str]) -> int:
    count = 0
    for some in _some(ids, _ROWS):
        with store.delete() as connection:  # some of it may belong to an incident now
            gone = connection.execute(sa.delete(t.evidence).where(t.evidence.c.id.in_(some), ~_KEPT))
            count += gone.rowcount
    return count


def _some(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """The items in lists of at most so many."""
    rest = iter(items)
    while some := list(islice(rest, most)):
        yield some


# Job ids that jobs of several users had.
_SHARED = (
    sa.select(t.attempt.c.job)
    .group_by(t.attempt.c.job)
    .having(sa.func.min(t.attempt.c.user) != sa.func.max(t.attempt.c.user))
)
# Whose job had the id when a piece of evidence was.
_OWNER = (
    sa.select(t.attempt.c.user)
    .where(t.attempt.c.job == t.evidence.c.job, t.attempt.c.started_at <= t.evidence.c.at)
    .order_by(t.attempt.c.started_at.desc())
    .limit(1)
    .scalar_subquery()
)
_BYTES = sa.func.sum(sa.func.length(sa.cast(t.evidence.c.record, sa.Text)))


def users_bytes(store: Access) -> dict[str, int]:
    """Bytes that the evidence of each user's jobs takes; users without known attempts are left out."""
    at, job = t.evidence.c.at, t.evidence.c.job
    with store.read() as connection:
        begin, end = connection.execute(sa.select(sa.func.min(at), sa.func.max(at))).one()
    sizes: dict[str, int] = {}
    while begin is not None and begin <= end:
        until = begin + _SIZES
        then = sa.and_(at >= begin, at < until)
        # Of an id that several users' jobs had, the owner is looked up for each item. One statement: an id that two users
        # come to share between two would be in both.
        shared = sa.case((job.in_(_SHARED), sa.func.coalesce(_OWNER, ""))).label("owner")
        each = sa.select(job, shared, _BYTES.label("bytes")).where(then).group_by(job, shared).subquery()
        only = sa.select(sa.func.max(t.attempt.c.user)).where(t.attempt.c.job == each.c.job).scalar_subquery()
        with store.read() as connection:
            for user, size in connection.execute(sa.select(sa.func.coalesce(each.c.owner, only), each.c.bytes)):
                if user:
                    sizes[user] = sizes.get(user, 0) + int(size)
        with store.read() as connection:  # of a node with a wrong clock an item may lie years apart
            begin = connection.execute(sa.select(sa.func.min(at)).where(at >= until)).scalar()
    return sizes


def user_bytes(store: Access, user: str) -> int:
    """Bytes that the evidence of one user's jobs takes."""
    job, jobs = t.evidence.c.job, sa.select(t.attempt.c.job).where(t.attempt.c.user == user)
    own = sa.or_(job.not_in(_SHARED), _OWNER.in_((user,)))
    with store.read() as connection:
        return int(connection.execute(sa.select(_BYTES).where(job.in_(jobs), own)).scalar() or 0)


def greedy(sizes: dict[str, int], most_bytes: int) -> list[str]:
    """Users who take more than an equal share of half the store, the largest first. The other half is the cluster's own."""
    share = most_bytes / 2 / max(1, len(sizes))
    return sorted((user for user, size in sizes.items() if size > share), key=lambda user: -sizes[user])


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
