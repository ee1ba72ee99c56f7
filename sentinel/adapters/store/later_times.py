"""Sets back what is dated later than now: a daemon before this one ran while its host's clock was days ahead.

Left as it is, its drains would count for the limits of every hour until that time comes, and what waits would wait for it.
When it really was, nobody knows: before now.
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


def set_back(connection: sa.Connection, now: datetime) -> None:
    """Date the ledger, plans, incidents, undelivered messages, and times in settings of the engine's ``now`` at most."""
    for column in _DATED:
        connection.execute(sa.update(column.table).where(column > now).values({column.name: now}))
    plan, notice, setting = t.plan.c, t.notice.c, t.setting.c
    for row in connection.execute(sa.select(plan.id, plan.record).where(plan.at > now)).all():
        dated = {"at": now, "record": {**row.record, "at": to_json(now)}}
        connection.execute(sa.update(t.plan).where(plan.id == row.id).values(**dated))
    waits = sa.select(notice.id, notice.receiver, notice.record).where(notice.at > now, notice.delivered.is_(False))
    for message in connection.execute(waits).all():
        became = {**(message.record.get("delivery") or {}), "next_at": None}
        record = {**message.record, "at": to_json(now), "delivery": became}
        one = sa.and_(notice.id == message.id, notice.receiver == message.receiver)
        connection.execute(sa.update(t.notice).where(one).values(at=now, record=record))
    for kept in connection.execute(sa.select(setting.name, setting.value)).all():
        if (value := _each_text(kept.value, lambda text: _at_most(text, now))) != kept.value:
            connection.execute(sa.update(t.setting).where(setting.name == kept.name).values(value=value))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(item, change) for name, item in value.items()}
    return [_each_text(item, change) for item in value] if isinstance(value, list) else value


def _at_most(text: str, now: datetime) -> str:
    if not _TIME.fullmatch(text):
        return text
    with suppress(ProtocolError):
        return now.isoformat() if time_from(text) > now + _DUE_WITHIN else text
    return text
