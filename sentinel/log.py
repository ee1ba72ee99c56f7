"""Log lines of the services: one stable event name per line, then ``key=value``. To stderr; systemd adds the time.

Values are data: quoted, limited, without control characters, so that a user's text cannot forge a line.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TextIO

_MOST = 500


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def info(self, event: str, **values: object) -> None:
        self._write("INFO", event, values)

    def warning(self, event: str, **values: object) -> None:
        self._write("WARNING", event, values)

    def error(self, event: str, **values: object) -> None:
        """An error of our own: acceptance tests fail on it."""
        self._write("ERROR", event, values)

    def _write(self, level: str, event: str, values: dict[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        words = " ".join(f"{key}={_shown(value)}" for key, value in values.items())
        print(f"{now} {level} {event} {words}".rstrip(), file=self._stream or sys.stderr, flush=True)


def _shown(value: object) -> str:
    text = str(value)
    text = text if len(text) <= _MOST else text[: _MOST - 1] + "…"
    if text and all(ch.isprintable() and ch not in " \"'=" for ch in text):
        return text
    return '"' + "".join(ch if ch.isprintable() and ch != '"' else "?" if ch == '"' else " " for ch in text) + '"'
