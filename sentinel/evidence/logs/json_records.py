"""Unwraps records that are written as JSON, one on a line: what a program printed stands inside, with newlines escaped.

Docker's json-file driver, clouds' exports and loggers of programs (structlog, python-json-logger, zap) write so. Rules know
the text that a program prints, and a traceback by its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sentinel.text import json_of

# Keys of the text; a sample of a data set has others, or no level and time beside it.
_TEXT = ("message", "msg", "event", "log", "textPayload")
_RECORD = re.compile(rb'[{,] {0,2}"(?:%s)" {0,2}: {0,2}"' % "|".join(_TEXT).encode())
_BESIDE = (
    "level",
    "levelname",
    "severity",
    "stream",
    "time",
    "timestamp",
    "ts",
    "@timestamp",
    "asctime",
    "__REALTIME_TIMESTAMP",
)
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "warning": "WARNING"}  # below an error
_RAISED = ("error", "err", "exception", "exc_info", "exc_text", "stack_trace", "traceback", "stack")
_RANKS = ("rank", "global_rank", "process_index")
_DEEPEST = 3  # records within a record: a logger's in a container's in a cloud's


def unwrapped(block: bytes) -> tuple[bytes, list[int]]:
    """The block with each such record as the lines that were printed, and for each of these which of its lines it was.

    No numbers where nothing was unwrapped.
    """
    if b"{" not in block or not (block.startswith(b"{") or b"\n{" in block) or not _RECORD.search(block):
        return block, []
    lines: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        said = list(_said(line, _DEEPEST)) or [line]
        lines.extend(said)
        numbers.extend([number] * len(said))
    return b"\n".join(lines) + (b"\n" if block.endswith(b"\n") else b""), numbers


def _said(line: bytes, deepest: int) -> Iterator[bytes]:
    """What a record's program printed, line by line; nothing where the line is no such record."""
    record = _record(line) if deepest and line.startswith(b"{") and _RECORD.search(line) else None
    if record is None:
        return
    text = next((record[key] for key in _TEXT if isinstance(record.get(key), str)), "")
    rank, level = _rank(record), _level(record)
    first = True
    for part in (*text.removesuffix("\n").split("\n"), *_raised(record, text)):
        inner = list(_said(part.encode("utf-8", "replace"), deepest - 1))
        # Of a traceback within a record the exception has the record's level, and its frames have none.
        own = level if first or not part[:1].isspace() else ""
        yield from inner or (f"{rank}{own}{part}".encode("utf-8", "replace"),)
        first = False


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json_of(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not any(key in found for key in _BESIDE):
        return None
    return found


def _rank(record: dict[str, Any]) -> str:
    rank = next((record[key] for key in _RANKS if type(record.get(key)) is int), None)
    return f"[rank{rank}]: " if rank is not None else ""


def _level(record: dict[str, Any]) -> str:
    """The level as a program prints it before its message; none for errors. A cloud's severity is that of the stream."""
    level = record.get("level", record.get("levelname", None if "textPayload" in record else record.get("severity")))
    known = _LEVELS.get(level.lower()) if isinstance(level, str) else None
    return f"{known}: " if known else ""


def _raised(record: dict[str, Any], text: str) -> Iterator[str]:
    """The lines of the error that a record carries beside its message."""
    for key in _RAISED:
        value = record.get(key)
        if isinstance(value, str) and value not in text:
            yield from value.split("\n")
