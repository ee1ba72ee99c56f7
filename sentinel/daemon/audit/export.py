"""Copies the audit log to syslog, entry by entry and in order, also after an outage of syslog.

The store records which entries were sent. A restarted daemon continues there and may repeat a few entries. A person who
alters the database cannot alter the copy, and it is told there once the entry that was copied last is another one.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

from sentinel.adapters.store.store import Store
from sentinel.adapters.syslog import MOST_BYTES, Syslog
from sentinel.daemon.audit.listing import shown
from sentinel.errors import ProtocolError
from sentinel.model.audit import EXPORTED, EXPORTED_DIGEST, REWRITTEN, ChainedEntry

EVERY_S = 1.0
_AT_ONCE = 100
_HEAD_BYTES = 500  # space for the header that syslog writes before the text


class AuditExport:
    def __init__(self, store: Store, syslog: Syslog) -> None:
        self._store = store
        self._syslog = syslog
        self._sent: tuple[int, str] | None = None  # number and digest of the last entry that this daemon sent

    async def export_all(self) -> None:
        """Send all entries that are not sent yet.

        Raises:
            SentinelError: see ``export``.
        """
        while await asyncio.to_thread(self.export):
            continue

    def export(self) -> bool:
        """Send the next entries; returns whether there were any. Blocking.

        An entry that was sent and is no longer what it was shows that somebody rewrote the database: syslog and ``doctor``
        say so, and all entries are sent again.

        Raises:
            SentinelError: an entry could not be sent or read.
        """
        done, digest = self._sent or (self._store.get(EXPORTED, 0), self._store.get(EXPORTED_DIGEST, ""))
        sent = None
        try:
            if done and digest and not self._is_kept(done, digest):
                self._syslog.send(json.dumps({"audit_rewritten": done, "digest": digest}), datetime.now(UTC))
                self._store.put(REWRITTEN, done)
                done, sent = 0, (0, "")
            found = self._store.audit(after=done, most=_AT_ONCE)
            for item in found:
                self._syslog.send(line_of(item), item.entry.at)
                sent = (item.number, item.digest)
        finally:
            self._syslog.close()  # the next entry may be a day away
            if sent is not None:
                self._sent = sent
                self._store.put(EXPORTED, sent[0])
                self._store.put(EXPORTED_DIGEST, sent[1])
        return bool(found)

    def _is_kept(self, number: int, digest: str) -> bool:
        try:
            found = self._store.audit(after=number - 1, most=1)
        except ProtocolError:  # it could be read when it was sent
            return False
        return [(item.number, item.digest) for item in found] == [(number, digest)]


def line_of(item: ChainedEntry) -> str:
    """An entry as one line of JSON. If it is too long: only who did what, and the digest of the whole entry."""
    line = json.dumps(shown(item))
    if len(line) <= MOST_BYTES - _HEAD_BYTES:
        return line
    entry = item.entry
    kept = {"who": entry.who[:64], "action": entry.action, "stage": entry.stage, "target": entry.target[:64]}
    chain = {"number": item.number, "digest": item.digest, "previous": item.previous}
    return json.dumps(chain | kept | {"incident": entry.incident, "why": entry.why[:64], "cut": True})
