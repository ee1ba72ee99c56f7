"""Tells people that the store cannot be written: while that lasts nothing is judged or done.

What else is told goes through the store first. That it cannot be written does not: it is handed to the receivers directly,
once each. What became of it is kept once the store is back, for ``sentinel alerts list``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sentinel.alerts import store_unwritable, store_writable_again
from sentinel.daemon.runner import Runner
from sentinel.engine import delivery
from sentinel.engine.events import NoticeNotDelivered, StoreOutageTold
from sentinel.engine.transition import DeliverNotice
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice
from sentinel.ports import Clock

EVERY_S = 5.0  # between two looks; a message that was not taken is tried again at the next


class StoreOutage:
    def __init__(self, runner: Runner, clock: Clock, log: Log, *, lease_problem: Callable[[], str] = str) -> None:
        """``lease_problem``: why the lease is not ours, which also is written to the store; empty while it is."""
        self._runner, self._clock, self._log = runner, clock, log
        self._lease_problem = lease_problem
        self._since: datetime | None = None
        self._told: datetime | None = None  # the beginning of the outage that people were told of
        self._pending: dict[str, Notice] = {}  # by receiver: what it has not taken
        self._became: list[tuple[Notice, str, bool]] = []  # with its receiver, and whether that took it

    def shown(self) -> dict[str, Any] | None:
        """Since when nothing is judged or done, and why, for views; None while the store is written."""
        problem = self._runner.store_problem
        reason = problem[1] if problem is not None else self._lease_problem()
        if not reason:
            return None
        return {"since": self._since or (problem[0] if problem is not None else self._clock.now()), "reason": reason}

    async def look(self) -> None:
        """Tell people once when it has lasted ``daemon.blind_s``, and once when it is over."""
        seen, now, state = self.shown(), self._clock.now(), self._runner.state
        self._since = seen["since"] if seen is not None else None
        if seen is not None and self._told is None:
            if now - seen["since"] >= timedelta(seconds=state.settings.daemon.blind_s):
                self._told = seen["since"]
                self._log.warning("store-outage", since=seen["since"].isoformat(), reason=seen["reason"])
                notice = store_unwritable(seen["since"], seen["reason"], now)
                self._pending |= dict.fromkeys(delivery.receivers(state, notice), notice)
        elif seen is None and self._told is not None:
            for receiver in list(self._pending):
                self._give_up(receiver, self._pending[receiver].delivery.reason or "it was over before")
            self._runner.handle(StoreOutageTold(now, tuple(self._became), store_writable_again(self._told, now)))
            self._became, self._told = [], None
        await asyncio.gather(*(self._try(receiver) for receiver in list(self._pending)))

    def _give_up(self, receiver: str, reason: str) -> None:
        notice = self._pending.pop(receiver)
        became = dataclasses.replace(notice.delivery, reason=reason, given_up=True)
        self._became.append((dataclasses.replace(notice, delivery=became), receiver, False))

    async def _try(self, receiver: str) -> None:
        notice = self._pending[receiver]
        state = self._runner.state
        if delivery.due(state.channel(receiver), notice) > self._clock.now():
            return
        event = await self._runner.perform[DeliverNotice](DeliverNotice(f"outage:{notice.id}", notice, receiver))
        tries = notice.delivery.tries + 1
        if not isinstance(event, NoticeNotDelivered):
            del self._pending[receiver]
            self._became.append((dataclasses.replace(notice, delivery=Delivery(tries)), receiver, True))
            return
        self._pending[receiver] = dataclasses.replace(notice, delivery=Delivery(tries, event.reason))
        if tries == 1 or not event.again:
            self._log.warning("notice-not-delivered", receiver=receiver, notice=notice.id, reason=event.reason)
        if not event.again or tries >= state.settings.alerts.attempts:
            self._give_up(receiver, event.reason)
