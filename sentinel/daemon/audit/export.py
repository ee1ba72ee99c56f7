"""Copies the audit to syslog, entry by entry and in order, however long syslog was away.

What was handed over is noted in the store: a start goes on there, and may repeat a few entries. Whoever alters the database
cannot alter the copy.
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
_HEAD_BYTES = 500  # what syslog writes before the text


class AuditExport:
    def __init__(self, store: Store, syslog: Syslog) -> None:
        self._store = store
        self._syslog = syslog

    async def export_all(self) -> None:
        """Hand over what there is.

        Raises:
            SentinelError: see ``export``.
        """
        while await asyncio.to_thread(self.export):
            continue

    def export(self) -> bool:
        """Hand over the next entries; whether there were any. Blocking.

        Raises:
            SentinelError: an entry was not handed over, or cannot be read.
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
    """One line of JSON; of a long one only who did what, and the digest, which stands for the rest as well."""
    line = json.dumps(shown(item))
    if len(line) <= MOST_BYTES - _HEAD_BYTES:
        return line
    entry = item.entry
    kept = {"who": entry.who[:64], "action": entry.action, "stage": entry.stage, "target": entry.target[:64]}
    chain = {"number": item.number, "digest": item.digest, "previous": item.previous}
    return json.dumps(chain | kept | {"incident": entry.incident, "why": entry.why[:64], "cut": True})
