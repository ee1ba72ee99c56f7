"""Whom this daemon told that nothing is done, in a file of its own: they hear when that is over, whichever daemon acts then.

A daemon that was cut off from the database replaces its own process when it is back, and stands by: what it told cannot be
kept in the store, and the other daemon does not know of it.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime
from pathlib import Path

from sentinel.adapters.atomic_file import replace_file
from sentinel.errors import ProtocolError
from sentinel.log import Log
from sentinel.model.records import Notice
from sentinel.wire import record_from, time_from, to_json

FILE = "outage-told.json"  # in [daemon] state
_MOST_BYTES = 1 << 20


class OutageTold:
    """The message and who has it, or may have it. What the disk does not take is remembered by this process alone."""

    def __init__(self, path: Path | None, log: Log) -> None:
        """``path``: None: no file."""
        self._path, self._log = path, log
        self._changing = threading.Lock()  # what a thread adds is not lost to what the event loop takes away
        self.notice: Notice | None = None
        self.receivers: tuple[str, ...] = ()
        if path is not None:
            self._read(path)

    @property
    def since(self) -> datetime | None:
        """The beginning of the outage that people were told of; None: they need not be told of an end."""
        return time_from(self.notice.data.get("since")) if self.notice is not None and self.receivers else None

    def of(self, notice: Notice) -> tuple[str, ...]:
        """Who has this message, or may have it."""
        return self.receivers if self.notice is not None and self.notice.id == notice.id else ()

    def took(self, notice: Notice, *receivers: str) -> None:
        """These have the message, or may have it."""
        with self._changing:
            self.notice, self.receivers = notice, tuple(dict.fromkeys([*self.of(notice), *receivers]))
            self._write()

    def done(self, *receivers: str) -> None:
        """These need not hear that it is over, or will from the store."""
        with self._changing:
            self.receivers = tuple(one for one in self.receivers if one not in receivers)
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
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)  # nothing else may need the state folder
            text = json.dumps({"notice": to_json(self.notice), "receivers": self.receivers})
            replace_file(self._path, text, 0o600)
        except OSError as error:
            self._log.warning("outage-told-not-kept", path=self._path, reason=os.strerror(error.errno or 0))
