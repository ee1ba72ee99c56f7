"""Adds to the audit and reads it. Its rows are chained by digests, and triggers refuse to change or delete one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.errors import ProtocolError
from sentinel.model.audit import FIRST, AuditEntry, ChainedEntry, Stage, canonical, chained, digest_of

_LOCK = 0x53454E54  # PostgreSQL: who adds an entry waits for the one before it; SQLite's writers do so anyway
_WAIT_FOR_OTHERS = sa.select(sa.func.pg_advisory_xact_lock(_LOCK))
_INSERT = sa.insert(t.audit)
_LAST_ENTRY = sa.select(t.audit.c.number, t.audit.c.digest).order_by(t.audit.c.number.desc()).limit(1)
_AT_ONCE = 1000  # rows of one part while the chain is checked
Read = Callable[[], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of the chain found.

    Attributes:
        entries: how many are in order.
        head: the digest of the last of them.
        fault: what is wrong with the one after it; empty: nothing.
    """

    entries: int = 0
    head: str = FIRST
    fault: str = ""


def add_entry(connection: sa.Connection, entry: AuditEntry) -> None:
    """Within the transaction of the change that it is about."""
    if connection.dialect.name == "postgresql":
        connection.execute(_WAIT_FOR_OTHERS)
    last = connection.execute(_LAST_ENTRY).first()
    made = chained(last.number + 1 if last else 1, entry, last.digest if last else FIRST)
    kept = made.entry
    row = {
        "number": made.number, "at": kept.at, "who": kept.who, "origin": kept.origin, "action": kept.action,
        "stage": kept.stage, "target": kept.target, "incident": kept.incident, "why": kept.why,
        "before": canonical(kept.before), "after": canonical(kept.after), "previous": made.previous,
        "digest": made.digest,
    }  # fmt: skip
    connection.execute(_INSERT, row)


def entries(
    connection: sa.Connection, *, since: datetime | None = None, after: int = 0, newest: int | None = None, most: int
) -> list[ChainedEntry]:
    """The oldest first; of more than ``newest`` the newest.

    Raises:
        ProtocolError: a row cannot be read: somebody changed it.
    """
    query = sa.select(t.audit).where(t.audit.c.number > after)
    if since is not None:
        query = query.where(t.audit.c.at >= since)
    if newest is not None:
        rows = list(connection.execute(query.order_by(t.audit.c.number.desc()).limit(min(newest, most))))[::-1]
    else:
        rows = list(connection.execute(query.order_by(t.audit.c.number).limit(most)))
    return [_entry(row) for row in rows]


def approved(connection: sa.Connection, since: datetime) -> dict[str, tuple[str, ...]]:
    """By incident: what people allowed since then, as they were shown it. What cannot be read is left out."""
    query = sa.select(t.audit.c.incident, t.audit.c.after).where(
        t.audit.c.at >= since, t.audit.c.action == "approve", t.audit.c.stage == Stage.DONE
    )
    found: dict[str, dict[str, None]] = {}
    for row in connection.execute(query.order_by(t.audit.c.number)):
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            names = [name for name in json.loads(row.after).get("approved", ()) if isinstance(name, str)]
            found.setdefault(row.incident, {}).update(dict.fromkeys(names))
    return {incident: tuple(names) for incident, names in found.items()}


def check(read: Read, so_far: Checked, most: int | None) -> Checked:
    """Compute every digest again, from the first entry behind ``so_far`` on. The chain is never pruned: it is read in parts,
    each a transaction with a deadline of its own.

    Args:
        read: begins a transaction.
        most: about so many more entries; None: all.
    """
    found = so_far
    while True:
        query = sa.select(t.audit).order_by(t.audit.c.number).limit(_AT_ONCE)
        if found.entries:
            query = query.where(t.audit.c.number > found.entries)
        with read() as connection:
            rows = connection.execute(query).all()
        found = _checked(rows, found)
        enough = most is not None and found.entries - so_far.entries >= most
        if found.fault or enough or len(rows) < _AT_ONCE:
            return found


def _checked(rows: Iterable[Any], so_far: Checked) -> Checked:
    """``so_far`` with these entries, which follow it."""
    number, head = so_far.entries, so_far.head
    for row in rows:
        try:
            found = _entry(row)
        except ProtocolError as error:
            return Checked(number, head, f"entry {number + 1}: {error.message}")
        if found.number != number + 1:
            missing = (
                f"entry {number + 1}" if found.number == number + 2 else f"entries {number + 1} to {found.number - 1}"
            )
            return Checked(number, head, f"missing: {missing}")
        if found.previous != head:
            return Checked(number, head, f"entry {found.number} does not follow the one before it")
        if found.digest != digest_of(found.number, found.entry, found.previous):
            return Checked(number, head, f"entry {found.number} was changed")
        number, head = found.number, found.digest
    return Checked(number, head)


def _entry(row: Any) -> ChainedEntry:
    try:
        entry = AuditEntry(
            row.at, row.who, row.origin, row.action, Stage(row.stage), row.target, row.incident, row.why,
            json.loads(row.before), json.loads(row.after),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"it cannot be read: {error!s:.100}") from error
    return ChainedEntry(row.number, entry, row.previous, row.digest)
