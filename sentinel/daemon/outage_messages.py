"""Hands what is told of an outage of the store to its receivers directly, past the store, each until it took it.

That nothing is done is tried for as long as it lasts: what takes the store away may take the mail server, too, and nothing
else tells of it. Who may have it hears of the end. That is written down before an attempt: the answer may come too late,
or to a process that is gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from sentinel.config.alerts import JOB_LOG, Alerts
from sentinel.daemon.outage_told import OutageTold
from sentinel.engine import delivery
from sentinel.engine.events import NoticeNotDelivered
from sentinel.errors import SentinelError
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice
from sentinel.ports import Sink

_PAUSES_S = (5.0, 10.0, 30.0, 120.0, 300.0, 600.0)  # before the next attempt; the last one repeats
_MOST_PAUSE_S = 3600.0  # that a receiver may ask for: what is told later helps nobody

Send = Callable[[Notice, str], Awaitable[NoticeNotDelivered | None]]


class OutageMessages:
    def __init__(
        self,
        alerts: Alerts,
        receivers: Sequence[str],
        send: Send,
        now: Callable[[], datetime],
        log: Log,
        heard: OutageTold,
    ) -> None:
        """
        Args:
            send: one attempt; returns why the receiver did not take it, None if it did.
            heard: who was told of an outage, also by the process before this one.
        """
        self._alerts, self._receivers, self._send, self._now, self._log = alerts, receivers, send, now, log
        self.heard = heard
        self._pending: dict[str, Notice] = {}  # by receiver: what it has not taken
        self._late: set[str] = set()  # receivers that may have what they did not take
        notice = heard.notice  # with its receiver, and whether that took it
        self._became = [(notice, receiver, True) for receiver in heard.receivers] if notice is not None else []
        self._before = notice if heard.receivers else None  # what the process before this one told, perhaps not all

    def begin(self, notice: Notice) -> None:
        """Whoever has it already, of a store that fails anew before the outage is over, does not get it again."""
        had = self.heard.of(notice)
        self._pending |= dict.fromkeys((one for one in self._for(notice) if one not in had), notice)

    def seen(self, *, away: bool) -> None:
        """The store was asked: if it is away still, who has not taken what the process before this one told gets it."""
        notice, self._before = self._before, None
        if away and notice is not None:
            fresh = dataclasses.replace(notice, delivery=Delivery())
            self._pending |= {one: fresh for one in self._for(fresh) if one not in self.heard.receivers}

    def end(self, over: Notice) -> None:
        """Whoever heard of the outage is told past the store that it is over. Who need not hear that is forgotten."""
        told = [receiver for receiver in self._for(over) if receiver in self.heard.receivers]
        self._pending, self._became, self._late = dict.fromkeys(told, over), [], set()
        if others := set(self.heard.receivers).difference(told):
            self.heard.done(*others)

    def became(self) -> tuple[tuple[Notice, str, bool], ...]:
        """The outage is over: its messages as they became, with their receivers, and whether these took them."""
        for receiver, notice in tuple(self._pending.items()):
            self._give_up(receiver, notice.delivery.reason or "it was over before")
        became, self._became, self._late = tuple(self._became), [], set()
        return became

    def _for(self, notice: Notice) -> list[str]:
        channels = self._alerts.channels
        return [one for one in self._receivers if one != JOB_LOG and delivery.is_for(channels.get(one), notice)]

    async def look(self) -> None:
        """Try each message that is due once."""
        now = self._now()
        due = {receiver: notice for receiver, notice in self._pending.items() if self._due(receiver, notice) <= now}
        begun = [receiver for receiver, notice in due.items() if not notice.data["final"]]
        before = set(self.heard.receivers)
        if begun:
            await asyncio.to_thread(self.heard.took, due[begun[0]], *begun)
        failed = dict(zip(due, await asyncio.gather(*(self._tried(due[one], one) for one in due)), strict=True))
        ended = [one for one in due if self._has_ended(one, due[one], failed[one])]
        ended += [one for one in begun if failed[one] is not None and one not in before | self._late]
        if ended:
            await asyncio.to_thread(self.heard.done, *ended)

    async def _tried(self, notice: Notice, receiver: str) -> NoticeNotDelivered | None:
        try:
            return await self._send(notice, receiver)
        except Exception as error:  # what the others took would not be noted, and they would get it again
            self._log.bug("outage", receiver=receiver)
            return NoticeNotDelivered(self._now(), notice, receiver, f"internal error: {error!r:.200}", True)

    def _due(self, receiver: str, notice: Notice) -> datetime:
        return notice.delivery.next_at or delivery.due(self._alerts.channels.get(receiver), notice)

    def _has_ended(self, receiver: str, notice: Notice, failed: NoticeNotDelivered | None) -> bool:
        """Keeps what became of an attempt; returns whether the receiver need not hear of the end any more."""
        final = bool(notice.data["final"])
        if failed is None:
            del self._pending[receiver]
            if not final:
                taken = dataclasses.replace(notice, delivery=Delivery(notice.delivery.tries + 1))
                self._became.append((taken, receiver, True))
            return final
        # One that says that nothing is done is true for as long as that lasts.
        attempts = self._alerts.attempts if final else sys.maxsize
        became = delivery.after_failure(notice.delivery, failed, attempts)
        pause_s = max(_PAUSES_S[min(became.tries, len(_PAUSES_S)) - 1], min(failed.after_s, _MOST_PAUSE_S))
        next_at = None if became.given_up else failed.at + timedelta(seconds=pause_s)
        self._pending[receiver] = dataclasses.replace(notice, delivery=dataclasses.replace(became, next_at=next_at))
        if became.tries == 1 or not failed.again:
            said = "notice-not-delivered" if failed.again else "notice-refused"
            self._log.warning(said, receiver=receiver, notice=notice.id, reason=failed.reason)
        if failed.late or delivery.may_have_heard(became):
            self._late.add(receiver)
        if became.given_up:
            self._give_up(receiver, failed.reason)
        return final and became.given_up and became.tries < attempts  # else the next start tries it again

    def _give_up(self, receiver: str, reason: str) -> None:
        notice = self._pending.pop(receiver)
        if notice.data["final"]:
            return
        unsure = notice.delivery.unsure or int(receiver in self._late)
        became = dataclasses.replace(notice.delivery, reason=reason, given_up=True, next_at=None, unsure=unsure)
        self._became.append((dataclasses.replace(notice, delivery=became), receiver, False))


async def send(sink: Sink, notice: Notice, now: Callable[[], datetime]) -> NoticeNotDelivered | None:
    """One attempt; returns why it was not taken, None if it was."""
    try:
        await sink.send(notice)
    except SentinelError as error:
        return NoticeNotDelivered.because(error, notice, sink.name, now())
    return None
