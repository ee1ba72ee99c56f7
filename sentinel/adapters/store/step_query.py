"""Reads the ledger in parts, each a transaction with a deadline of its own: it has all that retention leaves, of a large
cluster a million rows, of which each takes longer to decode than to fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.model.records import Outcome, Result, Step, StepKind
from sentinel.model.stored import StoredStep

PART_ROWS = 20_000  # decoded in half a second
_STEPS = sa.select(
    t.step.c.key, t.step.c.incident, t.step.c.kind, t.step.c.node, t.step.c.job, t.step.c.attempt, t.step.c.intended_at,
    t.step.c.result, t.step.c.finished_at, t.step.c.reason, t.step.c.data, t.step.c.record,
).order_by(t.step.c.key)  # fmt: skip

Read = Callable[[], AbstractContextManager[sa.Connection]]


def all_steps(read: Read) -> list[StoredStep]:
    """All that retention has left, the oldest first. ``read``: begins a transaction."""
    parts = _parts(read, _STEPS, lambda last: t.step.c.key > last.key)
    return sorted((step for part in parts for step in steps_from(part)), key=lambda step: step.intended_at)


def steps_done(
    read: Read, kinds: Sequence[StepKind], results: Sequence[Result], *, since: datetime | None, job: int | None
) -> list[dict[str, Any]]:
    """See ``Store.steps_done``. ``read``: begins a transaction."""
    columns = t.step.c
    read_ones = [column for column in columns if column.name != "record"]  # twice what the rest takes to read
    query = sa.select(*read_ones).where(columns.kind.in_(kinds), columns.result.in_(results))
    query = query.order_by(columns.intended_at, columns.key)
    if since is not None:
        query = query.where(columns.intended_at >= since)
    if job is not None:
        query = query.where(columns.job == job)

    def behind(last: Any) -> sa.ColumnElement[bool]:  # the first condition alone is one that an index answers
        at, key = last.intended_at, last.key
        return sa.and_(columns.intended_at >= at, sa.or_(columns.intended_at > at, columns.key > key))

    return [dict(row._mapping) for part in _parts(read, query, behind) for row in part]


def _parts(
    read: Read, query: sa.Select[Any], behind: Callable[[Any], sa.ColumnElement[bool]]
) -> Iterator[Sequence[sa.Row[Any]]]:
    """``behind``: what is true of the rows behind the last one of a part."""
    wanted = query.limit(PART_ROWS)
    while True:
        with read() as connection:
            part = connection.execute(wanted).all()
        yield part
        if len(part) < PART_ROWS:
            return
        wanted = query.where(behind(part[-1])).limit(PART_ROWS)


def steps_from(rows: Iterable[Any]) -> list[StoredStep]:
    """The records of rows of the table ``step``; those of a later release are left out."""
    found = []
    kinds, results = frozenset(StepKind), {None, *Result}
    for row in rows:
        if row.kind not in kinds or row.result not in results:
            continue  # of a later release
        record = row.record if isinstance(row.record, dict) else {}
        data, tries = record.get("data") or {}, record.get("tries") or 0
        step = Step(StepKind(row.kind), node=row.node, job=row.job, attempt=row.attempt, data=data, tries=tries)
        outcome = Outcome(step, Result(row.result), row.finished_at, row.reason, row.data) if row.result else None
        found.append(StoredStep(row.incident, step, row.intended_at, outcome))
    return found
