"""Copies the audit log to syslog, entry by entry and in order, also after an outage of syslog.

The store records which entries were sent. A restarted daemon continues there and may repeat a few entries. A person who
alters the database cannot alter the copy.
"""

from __future__ import annotations

import asyncio
import json

from sentinel.adapters.store.store import Store
from sentinel.adapters.syslog import MOST_BYTES, Syslog
from sentinel.daemon.audit.listing import shown
from sentinel.model.audit import EXPORTED, ChainedEntry

EVERY_S = 1.0
_AT_ONCE = 100
_HEAD_BYTES = 500  # space for the header that syslog writes before the text


class AuditExport:
    def __init__(self, store: Store, syslog: Syslog) -> None:
        self._store = store
        self._syslog = syslog

    async def export_all(self) -> None:
        """Send all entries that are not sent yet.

        Raises:
            SentinelError: see ``export``.
        """
        while await asyncio.to_thread(self.export):
            continue

    def export(self) -> bool:
        """Send the next entries; returns whether there were any. Blocking.

        Raises:
            SentinelError: an entry could not be sent or read.
        """
        done = before = self._store.get(EXPORTED, 0)
        found = self._store.audit(after=done, most=_AT_ONCE)
        try:
            for item in found:
                self._syslog.send(line_of(item), item.entry.at)
                done = item.number
        finally:
            self._syslog.close()  # the next entry may be a day away
            if done != before:
                self._store.put(EXPORTED, done)
        return bool(found)


def line_of(item: ChainedEntry) -> str:
    """An entry as one line of JSON. If it is too long: only who did what, and the digest of the whole entry."""
    line = json.dumps(shown(item))
    if len(line) <= MOST_BYTES - _HEAD_BYTES:
        return line
    entry = item.entry
    kept = {"who": entry.who[:64], "action": entry.action, "stage": entry.stage, "target": entry.target[:64]}
    chain = {"number": item.number, "digest": item.digest, "previous": item.previous}
    return json.dumps(chain | kept | {"incident": entry.incident, "why": entry.why[:64], "cut": True})
