"""Sets back what is dated later than now: a daemon before this one ran while its host's clock was days ahead.

Left as it is, its drains would count for the limits of every hour until that time comes, and what waits would wait for it.
Its clock was ahead by as much as the last that it wrote is, or more: nobody knows for how long it was gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.errors import ProtocolError
from sentinel.model.stored import JUDGED_UNTIL
from sentinel.wire import time_from, to_json

_DATED = (
    t.step.c.intended_at,
    t.step.c.finished_at,
    t.incident.c.opened_at,
    t.incident.c.updated_at,
    t.incident.c.closed_at,
    t.incident.c.decided_at,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_DUE_WITHIN = timedelta(days=1)  # nothing that is kept beside the ledger is due later than that


def set_back(connection: sa.Connection, now: datetime, ahead: timedelta) -> None:
    """Date the ledger, plans, incidents, undelivered messages, and times in settings of the engine's earlier by ``ahead``
    where they are later than ``now``, and ``now`` at most: what was done one after the other stays so."""

    def earlier(at: datetime) -> datetime:
        return min(now, at - ahead)

    def all_earlier(value: Any, latest: datetime = now + _DUE_WITHIN) -> Any:
        return _each_text(value, lambda text: _earlier_text(text, latest, earlier))

    for column in _DATED:
        (key,) = column.table.primary_key
        for name, at in connection.execute(sa.select(key, column).where(column > now)).all():
            connection.execute(sa.update(column.table).where(key == name).values({column.name: earlier(at)}))
    plan, notice, setting = t.plan.c, t.notice.c, t.setting.c
    for row in connection.execute(sa.select(plan.id, plan.at, plan.record).where(plan.at > now)).all():
        # What waits says since when, and until when.
        record = {**all_earlier(row.record), "at": to_json(earlier(row.at))}
        connection.execute(sa.update(t.plan).where(plan.id == row.id).values(at=earlier(row.at), record=record))
    waits = sa.and_(notice.at > now, notice.delivered.is_(False))
    for told in connection.execute(sa.select(notice.id, notice.receiver, notice.at, notice.record).where(waits)).all():
        delivery = {**(told.record.get("delivery") or {}), "next_at": None}
        record = {**told.record, "at": to_json(earlier(told.at)), "delivery": delivery}
        one = sa.and_(notice.id == told.id, notice.receiver == told.receiver)
        connection.execute(sa.update(t.notice).where(one).values(at=earlier(told.at), record=record))
    for kept in connection.execute(sa.select(setting.name, setting.value)).all():
        value = all_earlier(kept.value, now) if kept.name == JUDGED_UNTIL else all_earlier(kept.value)
        if value != kept.value:
            connection.execute(sa.update(t.setting).where(setting.name == kept.name).values(value=value))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(item, change) for name, item in value.items()}
    return [_each_text(item, change) for item in value] if isinstance(value, list) else value


def _earlier_text(text: str, latest: datetime, earlier: Callable[[datetime], datetime]) -> str:
    if not _TIME.fullmatch(text):
        return text
    with suppress(ProtocolError):
        return earlier(at).isoformat() if (at := time_from(text)) > latest else text
    return text
