"""Whom this daemon told that nothing is done, in a file of its own: they hear when that is over, whichever daemon acts then.

A daemon that was cut off from the database replaces its own process when it is back, and stands by: what it told cannot be
kept in the store, and the other daemon does not know of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from sentinel.adapters.atomic_file import replace_file
from sentinel.adapters.notify.channels import receivers
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.alerts import store_writable_again
from sentinel.config.alerts import Alerts
from sentinel.config.settings import Settings
from sentinel.daemon.lease import Lease
from sentinel.engine import delivery
from sentinel.engine.events import NoticeNotDelivered
from sentinel.errors import ProtocolError, SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice
from sentinel.ports import Sink
from sentinel.wire import record_from, time_from, to_json

FILE = "outage-told.json"  # in [daemon] state
_MOST_BYTES = 1 << 20
_AGAIN_S = 30.0  # before a receiver that did not take it is tried again


class OutageTold:
    """The message and who took it. What the disk does not take is remembered by this process alone."""

    def __init__(self, path: Path | None, log: Log) -> None:
        """``path``: None: no file."""
        self._path, self._log = path, log
        self.notice: Notice | None = None
        self.receivers: tuple[str, ...] = ()
        if path is not None:
            self._read(path)

    @property
    def since(self) -> datetime | None:
        """The beginning of the outage that people were told of; None: they need not be told of an end."""
        return time_from(self.notice.data.get("since")) if self.notice is not None and self.receivers else None

    def took(self, notice: Notice, receiver: str) -> None:
        before = self.receivers if self.notice is not None and self.notice.id == notice.id else ()
        self.notice, self.receivers = notice, tuple(dict.fromkeys([*before, receiver]))
        self._write()

    def done(self, receiver: str | None = None) -> None:
        """The receiver knows that it is over; None: all of them do, or will from the store."""
        self.receivers = tuple(one for one in self.receivers if receiver is not None and one != receiver)
        self._write()

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            notice, names = record_from(Notice, found["notice"]), found["receivers"]
            time_from(notice.data.get("since"))
            self.notice, self.receivers = notice, tuple(str(name) for name in names)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError, ProtocolError) as error:
            self._log.warning("outage-told-not-read", path=path, reason=f"{error!s:.200}")

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            if not self.receivers:
                self._path.unlink(missing_ok=True)
                return
            text = json.dumps({"notice": to_json(self.notice), "receivers": self.receivers})
            replace_file(self._path, text, 0o600)
        except OSError as error:
            self._log.warning("outage-told-not-kept", path=self._path, reason=os.strerror(error.errno or 0))


async def tell_that_it_is_over(
    told: OutageTold,
    alerts: Alerts,
    sinks: Mapping[str, Sink],
    now: Callable[[], datetime],
    log: Log,
    *,
    again_s: float = _AGAIN_S,
) -> None:
    """Tell those who heard of the outage that another daemon acts, past the store, which is that one's.

    Args:
        again_s: seconds before it is tried again, or looked again whether a receiver's quiet hours are over.
    """
    since = told.since
    if since is None:
        return
    over = store_writable_again(since, now())
    pending = dict.fromkeys(told.receivers, over)
    while pending:
        for receiver, notice in tuple(pending.items()):
            channel, sink = alerts.channels.get(receiver), sinks.get(receiver)
            if sink is None or not delivery.is_for(channel, over):
                del pending[receiver]
                told.done(receiver)
            elif delivery.due(channel, over) <= now():
                became = await _try(sink, notice, alerts.attempts, now, log)
                if became is not None and not became.given_up:
                    pending[receiver] = dataclasses.replace(notice, delivery=became)
                    continue
                del pending[receiver]
                if became is None or became.tries < alerts.attempts:  # else the next start tries it again
                    told.done(receiver)
        if pending:
            await asyncio.sleep(again_s)


async def _try(sink: Sink, notice: Notice, attempts: int, now: Callable[[], datetime], log: Log) -> Delivery | None:
    """What became of one attempt; None: the receiver took it."""
    try:
        await sink.send(notice)
    except SentinelError as error:
        again, unsure = isinstance(error, Unavailable), isinstance(error, Unavailable) and error.unsure
        event = NoticeNotDelivered(now(), notice, sink.name, error.message, again, took=error.took, unsure=unsure)
        if not again or not notice.delivery.tries:
            said = "notice-not-delivered" if again else "notice-refused"
            log.warning(said, receiver=sink.name, notice=notice.id, reason=error.message)
        return delivery.after_failure(notice.delivery, event, attempts)
    return None


async def tell_while_standing_by(told: OutageTold, settings: Settings, lease: Lease, log: Log) -> None:
    """As ``tell_that_it_is_over``, once another daemon is seen to act. If none does, this one will, and tells it then."""
    if told.since is None:
        return
    while not lease.another_renews:
        await asyncio.sleep(lease.every_s)
    try:
        sinks = receivers(settings.alerts, DeliveryThreads())
    except SentinelError as error:
        log.warning("outage-end-not-told", reason=error.message, fix=error.fix)
        return
    await tell_that_it_is_over(
        told, settings.alerts, {sink.name: sink for sink in sinks}, lambda: datetime.now(UTC), log
    )
