"""Tells people of an outage of the store that begins before this daemon acts: it may have been started in it.

A power cut takes database and daemon together, and the daemon may be back first. What another one tells is not told twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sentinel.adapters.notify.channels import receivers
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.config.settings import Settings
from sentinel.daemon.lease import Lease
from sentinel.daemon.outage import EVERY_S, Outage
from sentinel.daemon.outage_messages import OutageMessages, send
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.standby import another_acts
from sentinel.engine.events import NoticeNotDelivered
from sentinel.errors import SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model.records import Notice
from sentinel.ports import Clock, Sink

_AGAIN_S = 2.0  # before a store that did not answer is asked again
T = TypeVar("T")
Elsewhere = Callable[[bool], Awaitable[bool]]


class OutageBeforeActing(Outage):
    """Of a daemon that waits for its store, or for the lease.

    Attributes:
        lease: None until the store has answered once.
    """

    def __init__(
        self,
        settings: Settings,
        sinks: Mapping[str, Sink],
        told: OutageTold,
        clock: Clock,
        log: Log,
        *,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """
        Args:
            elsewhere: whether another daemon acts, or, if asked so, tells people that none does; None: by what each says of
                itself.
        """
        self.lease: Lease | None = None
        self._settings, self._sinks, self._elsewhere = settings, sinks, elsewhere or self._ask
        self._problem: tuple[datetime, str] | None = None
        messages = OutageMessages(settings.alerts, list(sinks), self._send, clock.now, log, told)
        super().__init__(messages, clock, log, blind_s=settings.daemon.blind_s)

    def answers(self, problem: str) -> None:
        """Note why the store does not answer; empty: it does."""
        since = self._problem[0] if self._problem is not None else self._clock.now()
        self._problem = (since, problem) if problem else None
        self._messages.seen(away=bool(problem))

    def tells(self) -> bool:
        """Whether somebody has it from here that nothing is done, and that lasts."""
        return self._problem is not None and self._told is not None and bool(self._messages.heard.receivers)

    async def tell(self) -> None:
        """Look until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:  # it must not keep the daemon from its lease
                self._log.bug("outage")

    def shown(self) -> dict[str, Any] | None:
        return {"since": self._problem[0], "reason": self._problem[1]} if self._problem is not None else None

    def _over(self, since: datetime, now: datetime) -> bool:
        """If no other daemon is seen to act, this one will, and tells it then."""
        if self.lease is None or not self.lease.another_renews:
            return False
        self._over_elsewhere(since, now)
        return True

    async def _another_acts(self) -> bool:
        return await self._elsewhere(False)

    async def _another_tells(self) -> bool:
        return await self._elsewhere(True)

    async def _ask(self, or_tells: bool) -> bool:
        settings = self._settings
        return await another_acts(self.lease, settings.daemon, settings.alerts.deadline_s, or_tells=or_tells)

    async def _send(self, notice: Notice, receiver: str) -> NoticeNotDelivered | None:
        return await send(self._sinks[receiver], notice, self._clock.now)


def waiting_daemon(settings: Settings, told: OutageTold, clock: Clock, log: Log) -> OutageBeforeActing:
    """One that tells nobody, and logs it, where the receivers cannot be made: with the lease, it ends because of that."""
    try:
        sinks = receivers(settings.alerts, DeliveryThreads())
    except SentinelError as error:
        log.warning("outage-not-told", reason=error.message, fix=error.fix)
        return OutageBeforeActing(settings, {}, OutageTold(None, log), clock, log)
    return OutageBeforeActing(settings, {sink.name: sink for sink in sinks}, told, clock, log)


async def once_store_answers(make: Callable[[], T], answers: Callable[[str], None], log: Log) -> T:
    """What ``make`` returns, once it raises no ``Unavailable`` any more.

    Args:
        answers: called after each try with why it does not; empty: it does.
    """
    said = ""
    while True:
        try:
            made = await asyncio.to_thread(make)
        except Unavailable as error:
            answers(error.message)
            if error.message != said:
                log.warning("waiting-for-store", reason=error.message, fix=error.fix)
            said = error.message
            await asyncio.sleep(_AGAIN_S)
        else:
            answers("")
            return made
