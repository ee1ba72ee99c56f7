"""Copies the audit log to syslog, entry by entry and in order, also after an outage of syslog.

The store records which entries were sent. A restarted daemon continues there and may repeat a few entries. A person who
alters the database cannot alter the copy, and it is told there once an entry that was copied last is another one. Since the
store's record can be altered to fit, a file of the daemon's account has the last entry that this host sent, and each start
sends a line with number and digest of where the store says that it goes on.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.adapters.atomic_file import replace_file
from sentinel.adapters.store.store import Store
from sentinel.adapters.syslog import MOST_BYTES, Syslog
from sentinel.daemon.audit.listing import shown
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.audit import EXPORTED, EXPORTED_DIGEST, REWRITTEN, ChainedEntry
from sentinel.model.changes import SettingChanged

EVERY_S = 1.0
COPIED = "audit_copied.json"  # in [daemon] state: number and digest of the last entry that this host sent
_AT_ONCE = 100
_HEAD_BYTES = 500  # space for the header that syslog writes before the text


class AuditExport:
    def __init__(self, store: Store, syslog: Syslog, copied: Path | None = None) -> None:
        """``copied``: the file that has the last entry sent; None: none is kept."""
        self._store = store
        self._syslog = syslog
        self._copied = copied
        self._done = 0  # number of the last entry that was sent
        self._sent: list[tuple[int, str]] | None = None  # number and digest of what was sent last; None: not looked yet

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
            SentinelError: an entry could not be sent or read, or what was sent not be written down.
        """
        sent: tuple[int, str] | None = None
        try:
            before, done = self._begun(), self._done
            for number, digest in before:
                if number and digest and self._digest(number) != digest:
                    self._syslog.send(json.dumps({"audit_rewritten": number, "digest": digest}), datetime.now(UTC))
                    self._store.put(REWRITTEN, number)
                    done, sent = 0, (0, "")
                    break
            found = self._store.audit(after=done, most=_AT_ONCE)
            for item in found:
                self._syslog.send(line_of(item), item.entry.at)
                sent = (item.number, item.digest)
        finally:
            self._syslog.close()  # the next entry may be a day away
            if sent is not None:
                self._keep(*sent)
        return bool(found)

    def _begun(self) -> list[tuple[int, str]]:
        """What was sent last, as the store and the file have it. Once: say in syslog where this daemon goes on."""
        if self._sent is None:
            number = _whole(self._store.get(EXPORTED, 0))
            if number:
                line = json.dumps({"audit_continued": number, "digest": self._digest(number)})
                self._syslog.send(line, datetime.now(UTC))
            self._sent = [(number, str(self._store.get(EXPORTED_DIGEST, ""))), *self._read()]
            self._done = number
        return self._sent

    def _digest(self, number: int) -> str:
        """Of the entry that has this number now; empty: there is none, or it can be read no more."""
        try:
            found = self._store.audit(after=number - 1, most=1)
        except ProtocolError:
            return ""
        return found[0].digest if found and found[0].number == number else ""

    def _keep(self, number: int, digest: str) -> None:
        self._done, self._sent = number, [(number, digest)]
        # Together: a number with the digest of another entry would look like an audit that was rewritten.
        self._store.commit([SettingChanged(EXPORTED, number), SettingChanged(EXPORTED_DIGEST, digest)])
        if self._copied is None:
            return
        try:
            replace_file(self._copied, json.dumps([number, digest]), 0o600)
        except OSError as error:
            raise Unavailable(f"{self._copied} cannot be written: {error.strerror}") from error

    def _read(self) -> list[tuple[int, str]]:
        """The entry in the file, where there is one."""
        try:
            number, digest = json.loads(self._copied.read_bytes()) if self._copied is not None else (0, "")
        except (OSError, ValueError, TypeError, RecursionError):
            return []
        return [(_whole(number), str(digest))]


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def line_of(item: ChainedEntry) -> str:
    """An entry as one line of JSON. If it is too long: only who did what, and the digest of the whole entry."""
    line = json.dumps(shown(item))
    if len(line) <= MOST_BYTES - _HEAD_BYTES:
        return line
    entry = item.entry
    kept = {"who": entry.who[:64], "action": entry.action, "stage": entry.stage, "target": entry.target[:64]}
    chain = {"number": item.number, "digest": item.digest, "previous": item.previous}
    return json.dumps(chain | kept | {"incident": entry.incident, "why": entry.why[:64], "cut": True})
