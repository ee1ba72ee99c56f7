"""Tells people that the store cannot be written: while that lasts nothing is judged or done.

What else is told goes through the store first. That it cannot be written does not: it is handed to the receivers directly,
once each. What became of it is kept once the store is back, for ``sentinel alerts list``. Where another daemon acts, this
one alone is cut off, and people are told nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sentinel.alerts import store_unwritable, store_writable_again
from sentinel.daemon.outage_messages import OutageMessages
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.runner import Runner
from sentinel.engine.events import NoticeNotDelivered, StoreOutageTold
from sentinel.engine.transition import DeliverNotice
from sentinel.log import Log
from sentinel.model.records import Notice
from sentinel.ports import Clock

EVERY_S = 5.0  # between two looks


async def _nobody_else() -> bool:
    return False


class Outage(ABC):
    """What is told of an outage, by a daemon that acts or by one that does not yet."""

    def __init__(self, messages: OutageMessages, clock: Clock, log: Log, *, blind_s: float) -> None:
        """``blind_s``: seconds after which people are told."""
        self._messages, self._clock, self._log = messages, clock, log
        self._blind = timedelta(seconds=blind_s)
        self._since: datetime | None = None
        self._told: datetime | None = messages.heard.since  # the beginning of the outage that people were told of
        self._ending: asyncio.Future[None] | None = None  # done when the store has that it is over

    @abstractmethod
    def shown(self) -> dict[str, Any] | None:
        """Since when nothing is judged or done, and why, for views; None while the store is written."""

    @abstractmethod
    def _over(self, since: datetime, now: datetime) -> bool:
        """Tell that the outage is over of which people were told; returns False where that is not known yet."""

    @abstractmethod
    async def _another_acts(self) -> bool:
        """Whether another daemon says that it is the active one."""

    async def _another_tells(self) -> bool:
        """Whether another daemon acts, or tells people itself that none does."""
        return await self._another_acts()

    async def look(self) -> None:
        """Tell people once when it has lasted ``blind_s``, and once when it is over.

        It is over when the store has what is told of its end: one that fails anew before is the same outage.
        """
        seen, now, told = self.shown(), self._clock.now(), self._told
        self._since = seen["since"] if seen is not None else None
        untold = told is None or self._ending is not None
        if seen is None:
            if told is not None and self._ending is None and self._over(told, now):
                self._told = None
        elif untold and now - seen["since"] >= self._blind and not await self._another_tells():
            began: datetime = self._told or seen["since"]
            self._told, self._ending = began, None
            self._log.warning("store-outage", since=seen["since"].isoformat(), reason=seen["reason"])
            self._messages.begin(store_unwritable(began, seen["reason"], now))
        elif told is not None and await self._another_acts():
            self._over_elsewhere(told, now)
            self._told = self._ending = None
        await self._messages.look()

    def _over_elsewhere(self, since: datetime, now: datetime) -> None:
        """Another daemon acts, and this one cannot save it: whoever heard of the outage is told past the store."""
        self._messages.end(store_writable_again(since, now))


class StoreOutage(Outage):
    """Of the active daemon."""

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
        self._runner, self._lease_problem, self._acts_elsewhere = runner, lease_problem, another_acts
        settings, receivers = runner.state.settings, runner.state.receivers
        heard = told or OutageTold(None, log)
        messages = OutageMessages(settings.alerts, receivers, self._send, clock.now, log, heard)
        super().__init__(messages, clock, log, blind_s=settings.daemon.blind_s)

    def shown(self) -> dict[str, Any] | None:
        problem = self._runner.store_problem
        reason = problem[1] if problem is not None else self._lease_problem()
        if not reason:
            return None
        return {"since": self._since or (problem[0] if problem is not None else self._clock.now()), "reason": reason}

    def _over(self, since: datetime, now: datetime) -> bool:
        over, heard = store_writable_again(since, now), self._messages.heard.receivers
        self._ending = self._runner.handle(StoreOutageTold(now, self._messages.became(), over), patient=True)
        self._ending.add_done_callback(partial(self._kept, heard))
        return False

    def _kept(self, heard: Sequence[str], saved: asyncio.Future[None]) -> None:
        """The store has what these are to be told of the end, unless the daemon stops before: then the file does."""
        if saved.cancelled() or saved.exception() is not None:
            return
        self._messages.heard.done(*heard)
        if saved is self._ending:
            self._told = self._ending = None

    async def _another_acts(self) -> bool:
        return await self._acts_elsewhere()

    async def _send(self, notice: Notice, receiver: str) -> NoticeNotDelivered | None:
        event = await self._runner.perform[DeliverNotice](DeliverNotice(f"outage:{notice.id}", notice, receiver))
        return event if isinstance(event, NoticeNotDelivered) else None
