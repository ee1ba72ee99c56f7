"""Unwraps records that are written as JSON, one on a line: what a program printed stands inside, with newlines escaped.

Docker's json-file driver, clouds' exports and loggers of programs (structlog, python-json-logger, zap) write so. Rules know
the text that a program prints, and a traceback by its lines, also where it stands in one line with its line ends escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sentinel.evidence.logs.prefixes import ANSI
from sentinel.text import json_of

# Keys of the text; a sample of a data set has others, or no level and time beside it.
_TEXT = ("message", "msg", "event", "log", "textPayload")
_RECORD = re.compile(rb'[{,] {0,2}"(?:%s)" {0,2}: {0,2}"' % "|".join(_TEXT).encode())
_BESIDE = frozenset(
    ["level", "levelname", "severity", "stream", "time", "timestamp", "ts", "@timestamp", "asctime", "record"]
)
# A traceback's line whose end is escaped, once or as a string within a string.
_ESCAPED = re.compile(rb"(?:\(most recent call last\):|, line \d{1,7}, in [\w<>.]{1,80})\\{1,8}n")
_LINE_END = re.compile(rb"\\{1,8}n")
_QUOTED = re.compile(rb"\\{1,8}([\"'])")
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "warning": "WARNING"}  # below an error
_RAISED = frozenset({"error", "err", "exception", "exc_info", "exc_text", "stack_trace", "traceback", "stack"})
_PROGRESS = re.compile(
    r"(?:\w{1,40}_)?(?:step|iter|iteration|epoch|loss|grad_norm)"
)  # keys of numbers that tell of steps
_RANKS = ("rank", "global_rank", "process_index")
_DEEPEST = 3  # records within a record: a logger's in a container's in a cloud's


def unwrapped(block: bytes) -> tuple[bytes, list[int]]:
    """The block with each such record as the lines that were printed, and for each of these which of its lines it was.

    No numbers where nothing was unwrapped.
    """
    records = b"{" in block and (block.startswith(b"{") or b"\n{" in block) and _RECORD.search(block)
    escaped = b"\\n" in block and (b"call last)" in block or b", line " in block) and _ESCAPED.search(block)
    if not records and not escaped:
        return block, []
    lines: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        said = _said(line, _DEEPEST) or _unescaped(line)
        lines.extend(said or [line])
        numbers.extend([number] * (len(said) or 1))
    printed = b"\n".join(lines) + (b"\n" if block.endswith(b"\n") else b"")
    return ANSI.sub(b"", printed) if b"\x1b" in printed else printed, numbers


def _unescaped(line: bytes) -> list[bytes]:
    """The lines of a traceback that stands in one line, as Ray, a launcher or ``repr`` hand it on."""
    if b"\\n" not in line or not _ESCAPED.search(line):
        return []
    lines = _LINE_END.split(_QUOTED.sub(rb"\1", line).replace(b"\\t", b"\t"))
    return [*lines[:-1], lines[-1].rstrip(b"'\"})]")]


def _said(line: bytes, deepest: int) -> list[bytes]:
    """What a record's program printed, line by line; nothing where the line is no such record."""
    record = _record(line) if deepest and line[:1] == b"{" and _RECORD.search(line) else None
    text = _text(record) if record is not None else None
    if record is None or text is None:
        return []
    before, level = _rank(record), _level(record)
    parts = text.split("\n")
    parts[0] += "".join(f" {key}={value}" for key, value in record.items() if _tells(key, value))
    if not _RAISED.isdisjoint(record):
        parts.extend(_raised(record, text))
    said: list[bytes] = []
    for part in "\n".join(parts).split("\n"):
        # Of a traceback within a record the exception has the record's level, and its frames have none.
        own = level if not said or not part[:1].isspace() else ""
        inner = _said(part.encode("utf-8", "replace"), deepest - 1) if part[:1] == "{" else []
        said.extend(inner or [f"{before}{own}{part}".encode("utf-8", "replace")])
    return said


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json_of(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() & _BESIDE else None


def _text(record: dict[str, Any]) -> str | None:
    """The message as lines, None where there is none; loguru's has its time and level before it, and a traceback below."""
    text = record.get("text") if isinstance(record.get("record"), dict) else None
    if not isinstance(text, str):
        text = next((record[key] for key in _TEXT if key in record and isinstance(record[key], str)), None)
    if text is None:
        return None
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n")


def _tells(key: str, value: Any) -> bool:
    """Whether it is a number that a step line prints, as a logger that takes fields writes it beside its message."""
    return type(value) in {int, float} and _PROGRESS.fullmatch(key) is not None


def _rank(record: dict[str, Any]) -> str:
    for key in _RANKS:
        if type(rank := record.get(key)) is int:
            return f"[rank{rank}]: "
    return ""


def _level(record: dict[str, Any]) -> str:
    """The level as a program prints it before its message; none for errors. A cloud's severity is that of the stream."""
    level = record.get("level", record.get("levelname", None if "textPayload" in record else record.get("severity")))
    known = _LEVELS.get(level.lower()) if isinstance(level, str) else None
    return f"{known}: " if known else ""


def _raised(record: dict[str, Any], text: str) -> Iterator[str]:
    """The lines of the error that a record carries beside its message: as text, in parts (ECS), or as structlog's frames."""
    for key in (key for key in record if key in _RAISED):
        value = record[key]
        if isinstance(value, dict):
            value = next((value[part] for part in ("stack_trace", "message") if isinstance(value.get(part), str)), None)
        if isinstance(value, str) and value not in text:
            yield from value.split("\n")
        if isinstance(value, list):
            yield from _traceback(value)


def _traceback(raised: list[Any]) -> Iterator[str]:
    """structlog's ``dict_tracebacks``: exceptions of one chain, the last one first, each with its frames."""
    for one in reversed([item for item in raised if isinstance(item, dict)]):
        yield "Traceback (most recent call last):"
        frames = one.get("frames")
        for frame in frames if isinstance(frames, list) else ():
            if isinstance(frame, dict):
                yield f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
                yield f"    {frame.get('line') or ''}".rstrip()
        yield f"{one.get('exc_type')}: {one.get('exc_value')}"
