"""Tells people that the store cannot be written: while that lasts nothing is judged or done.

What else is told goes through the store first. That it cannot be written does not: it is handed to the receivers directly,
once each. What became of it is kept once the store is back, for ``sentinel alerts list``. Where another daemon acts, this
one alone is cut off, and people are told nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sentinel.alerts import store_unwritable, store_writable_again
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.runner import Runner
from sentinel.engine import delivery
from sentinel.engine.events import NoticeNotDelivered, StoreOutageTold
from sentinel.engine.transition import DeliverNotice
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice
from sentinel.ports import Clock

EVERY_S = 5.0  # between two looks; a message that was not taken is tried again at the next


async def _nobody_else() -> bool:
    return False


class StoreOutage:
    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        log: Log,
        *,
        lease_problem: Callable[[], str] = str,
        another_acts: Callable[[], Awaitable[bool]] = _nobody_else,
        told: OutageTold | None = None,
    ) -> None:
        """
        Args:
            lease_problem: why the lease is not ours, which also is written to the store; empty while it is.
            another_acts: whether another daemon says that it is the active one.
            told: who was told of an outage, also by the process before this one.
        """
        self._runner, self._clock, self._log = runner, clock, log
        self._lease_problem, self._another_acts = lease_problem, another_acts
        self._since: datetime | None = None
        self._heard = told or OutageTold(None, log)
        self._told: datetime | None = self._heard.since  # the beginning of the outage that people were told of
        self._ending: asyncio.Future[None] | None = None  # done when the store has that it is over
        self._pending: dict[str, Notice] = {}  # by receiver: what it has not taken
        notice = self._heard.notice  # with its receiver, and whether that took it
        self._became = [(notice, receiver, True) for receiver in self._heard.receivers] if notice is not None else []

    def shown(self) -> dict[str, Any] | None:
        """Since when nothing is judged or done, and why, for views; None while the store is written."""
        problem = self._runner.store_problem
        reason = problem[1] if problem is not None else self._lease_problem()
        if not reason:
            return None
        return {"since": self._since or (problem[0] if problem is not None else self._clock.now()), "reason": reason}

    async def look(self) -> None:
        """Tell people once when it has lasted ``daemon.blind_s``, and once when it is over.

        It is over when the store has what is told of its end: one that fails anew before is the same outage.
        """
        seen, now = self.shown(), self._clock.now()
        self._since = seen["since"] if seen is not None else None
        untold = self._told is None or self._ending is not None
        lasting = timedelta(seconds=self._runner.state.settings.daemon.blind_s)
        if seen is None:
            if not untold:
                self._over(now)
        elif untold and now - seen["since"] >= lasting and not await self._another_acts():
            self._tell(seen, now)
        elif self._told is not None and await self._another_acts():
            self._over_elsewhere(now)
        await asyncio.gather(*(self._try(receiver) for receiver in list(self._pending)))

    def _tell(self, seen: dict[str, Any], now: datetime) -> None:
        heard = self._heard.receivers if self._told is not None else ()
        self._told, self._ending = self._told or seen["since"], None
        self._log.warning("store-outage", since=seen["since"].isoformat(), reason=seen["reason"])
        notice = store_unwritable(self._told, seen["reason"], now)
        told = [receiver for receiver in delivery.receivers(self._runner.state, notice) if receiver not in heard]
        self._pending |= dict.fromkeys(told, notice)

    def _over(self, now: datetime) -> None:
        assert self._told is not None, "asked while people know of an outage"
        for receiver in list(self._pending):
            self._give_up(receiver, self._pending[receiver].delivery.reason or "it was over before")
        became, self._became = tuple(self._became), []
        over = store_writable_again(self._told, now)
        self._ending = self._runner.handle(StoreOutageTold(now, became, over), patient=True)
        self._ending.add_done_callback(partial(self._kept, [receiver for _, receiver, _ in became]))

    def _kept(self, receivers: Sequence[str], saved: asyncio.Future[None]) -> None:
        """The store has what these are to be told of the end, unless the daemon stops before: then the file does."""
        if saved.cancelled() or saved.exception() is not None:
            return
        for receiver in receivers:
            self._heard.done(receiver)
        if saved is self._ending:
            self._told = self._ending = None

    def _over_elsewhere(self, now: datetime) -> None:
        """Another daemon acts, and this one cannot save it: whoever heard of the outage is told past the store."""
        assert self._told is not None, "asked while people know of an outage"
        over, state = store_writable_again(self._told, now), self._runner.state
        told = [receiver for receiver in self._heard.receivers if receiver in delivery.receivers(state, over)]
        self._pending, self._became, self._told, self._ending = dict.fromkeys(told, over), [], None, None

    def _give_up(self, receiver: str, reason: str) -> None:
        notice = self._pending.pop(receiver)
        if notice.data["final"]:
            self._heard.done(receiver)
            return
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
            if notice.data["final"]:
                await asyncio.to_thread(self._heard.done, receiver)
                return
            self._became.append((dataclasses.replace(notice, delivery=Delivery(tries)), receiver, True))
            await asyncio.to_thread(self._heard.took, notice, receiver)
            return
        became = delivery.after_failure(notice.delivery, event, state.settings.alerts.attempts)
        self._pending[receiver] = dataclasses.replace(notice, delivery=became)
        if tries == 1 or not event.again:
            self._log.warning("notice-not-delivered", receiver=receiver, notice=notice.id, reason=event.reason)
        if delivery.may_have_heard(became) and not notice.data["final"]:  # who has it hears of the end, too
            await asyncio.to_thread(self._heard.took, notice, receiver)
        if became.given_up:
            self._give_up(receiver, event.reason)
