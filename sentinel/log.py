"""Log lines of the services: one stable event name per line, then ``key=value``. To stderr; systemd keeps them.

Over the standard library's logging, so that lines of libraries (``take_libraries``) have the same form, and a stderr that is
gone stops nobody. Values are data: quoted, limited, without control characters, so that a user's text cannot forge a line.
"""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

_MOST = 500
_REPEATED_S = 60.0  # a warning that a library repeats is written so often: some do for each turn of a loop
_MOST_WARNINGS = 256  # of libraries, of which it is known when they were last written


class KeyValueFormatter(logging.Formatter):
    """``TIME LEVEL event key=value ...``. What a library says is the event ``library``; its errors are bugs of ours."""

    def format(self, record: logging.LogRecord) -> str:
        event, values = record.msg, record.__dict__.get("values")
        if values is None:
            event, values = _of_library(record)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return " ".join((at, record.levelname, event, *(f"{key}={_shown(value)}" for key, value in values.items())))


class _Handler(logging.Handler):
    """Writes to what ``sys.stderr`` is then, or to the stream that it was given."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self.setFormatter(KeyValueFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # full, or closed: there is no other place to say it
            print(self.format(record), file=self._stream or sys.stderr, flush=True)


class _Repeated(logging.Filter):
    """Keeps the first of a library's warnings of one kind in each ``_REPEATED_S``. Its errors are kept all."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[str, int], float] = {}  # by where it came from, whatever its values

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.pathname, record.lineno)
        last = self._written.get(key)
        if record.levelno >= logging.ERROR or (last is None and len(self._written) >= _MOST_WARNINGS):
            return True
        if last is not None and 0 <= record.created - last < _REPEATED_S:
            return False
        self._written[key] = record.created
        return True


_services = logging.Logger("sentinel", logging.INFO)
_services.addHandler(_Handler())


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._logger = _services
        if stream is not None:
            self._logger = logging.Logger("sentinel", logging.INFO)
            self._logger.addHandler(_Handler(stream))

    def info(self, event: str, **values: object) -> None:
        self._write(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        self._write(logging.WARNING, event, values)

    def error(self, event: str, **values: object) -> None:
        """An error of our own: acceptance tests fail on it."""
        self._write(logging.ERROR, event, values)

    def bug(self, where: str, **values: object) -> None:
        """In an ``except``: a loop survived an error of our own. Says where it came from."""
        error = sys.exc_info()[1]
        self.error("bug", where=where, **values, error=repr(error), place=_place(error))

    def _write(self, level: int, event: str, values: dict[str, object]) -> None:
        self._logger.handle(
            self._logger.makeRecord("sentinel", level, "", 0, event, (), None, extra={"values": values})
        )


def take_libraries() -> None:
    """Write what libraries log as warnings (one of a kind a minute) and errors in the same form.

    Called once, by the main function of a service.
    """
    root = logging.getLogger()
    handler = _Handler()
    handler.addFilter(_Repeated())
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _of_library(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    error = record.exc_info[1] if record.exc_info else None
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):  # it does not fit its arguments: no reason to stop who said it
        text = f"{record.msg} {record.args!r}"
    values: dict[str, object] = {"where": record.name, "text": text}
    if error is not None:
        values |= {"error": repr(error), "place": _place(error)}
    return "bug" if record.levelno >= logging.ERROR else "library", values


def _place(error: BaseException | None) -> str:
    """Files and lines of the innermost calls."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))


def _shown(value: object) -> str:
    text = str(value)
    text = text if len(text) <= _MOST else text[: _MOST - 1] + "…"
    if text and all(ch.isprintable() and ch not in " \"'=" for ch in text):
        return text
    return '"' + "".join(ch if ch.isprintable() and ch != '"' else "?" if ch == '"' else " " for ch in text) + '"'
