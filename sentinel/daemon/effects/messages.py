"""Shows which messages were delivered and which were not, and sends test messages for operators."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.config.alerts import Channel
from sentinel.daemon.api.histories import since_of
from sentinel.daemon.runner import Runner
from sentinel.engine.delivery import due, trial
from sentinel.engine.events import NoticeNotDelivered
from sentinel.engine.transition import DeliverNotice
from sentinel.errors import UserError
from sentinel.model.records import Notice
from sentinel.ports import Clock

_MOST = 1000  # messages that were delivered and messages that were not, of each the newest


async def messages(
    store: Store,
    now: datetime,
    arguments: dict[str, Any],
    user: str | None,
    channels: Mapping[str, Channel] | None = None,
) -> dict[str, Any]:
    """Messages since ``arguments["since"]`` (default: a day ago), and all that were not delivered.

    Args:
        user: only those about this user's jobs; None: an operator, who sees all.
        channels: by name: what some messages wait for is their channel's digest or the end of its quiet hours.
    """
    since = since_of(arguments) or now - timedelta(days=1)
    found = await asyncio.to_thread(store.notices, since=since, most=_MOST, user=user)
    rows = [
        _shown(notice, receiver, delivered) | _held_back((channels or {}).get(receiver), notice, delivered, now)
        for notice, receiver, delivered in found
    ]
    return {"messages": rows, "most": _MOST}


def _shown(notice: Notice, receiver: str, delivered: bool) -> dict[str, Any]:
    became = notice.delivery
    state = "delivered" if delivered else "given up" if became.given_up else "tried" if became.tries else "waits"
    return {
        "id": notice.id,
        "at": notice.at,
        "receiver": receiver,
        "state": state,
        "tries": became.tries,
        "reason": became.reason,
        "next_at": became.next_at,
        "incident": notice.incident,
        "stage": notice.data.get("stage"),
        "severity": notice.data.get("severity"),
        "job": notice.data.get("job"),
        "user": notice.data.get("user"),
        "title": notice.title,
    }


def _held_back(channel: Channel | None, notice: Notice, delivered: bool, now: datetime) -> dict[str, Any]:
    """Until when a message that was not tried yet is kept back, and why; empty where it is not."""
    became = notice.delivery
    at = due(channel, notice)
    if channel is None or delivered or became.given_up or became.tries or became.next_at is not None or at <= now:
        return {}
    by_day = due(dataclasses.replace(channel, quiet=""), notice)
    return {"next_at": at, "reason": "the channel's quiet hours" if at != by_day else "for the channel's next digest"}


async def send_trials(runner: Runner, clock: Clock, to: str, who: str) -> dict[str, Any]:
    """Send a test message to one receiver or to all, once and without retries; returns the results.

    Raises:
        UserError: there is no such receiver, or none at all.
    """
    known = runner.state.receivers
    if not known:
        raise UserError("no channel is set", fix="add [alerts.channels.NAME] to the settings; see docs/webhooks.md")
    if to and to not in known:
        raise UserError(f"no channel {to!r:.80}", fix=f"known here: {', '.join(known)}")
    names = [to] if to else list(known)
    results = await asyncio.gather(*(_try(runner, clock, name, who) for name in names))
    return {"results": list(results)}


async def _try(runner: Runner, clock: Clock, receiver: str, who: str) -> dict[str, Any]:
    notice = trial(receiver, clock.now(), runner.state.settings.cluster, who)
    event = await runner.perform[DeliverNotice](DeliverNotice(f"test:{notice.id}", notice, receiver))
    reason = event.reason if isinstance(event, NoticeNotDelivered) else ""
    return {"receiver": receiver, "delivered": not isinstance(event, NoticeNotDelivered), "reason": reason}
