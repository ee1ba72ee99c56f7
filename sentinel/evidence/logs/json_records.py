"""Unwraps records that are written as JSON, one on a line: what a program printed stands inside, with newlines escaped.

Docker's json-file driver, clouds' exports and loggers of programs (structlog, python-json-logger, zap) write so. Rules know
the text that a program prints, and a traceback by its lines, also where it stands in one line with its line ends escaped.
"""

from __future__ import annotations

import re
from typing import Any

from sentinel.evidence.logs.json_fields import LEVELS, TIMES, beside, level_name, level_of, lines_of, rank_of
from sentinel.evidence.logs.prefixes import ANSI
from sentinel.text import json_of

# Keys of the text; a sample of a data set has others, or no level and time beside it.
_TEXT = ("message", "msg", "event", "log", "textPayload")
_TEXTS = frozenset(_TEXT)
_RECORD = re.compile(rb'[{,] {0,2}"(?:%s)" {0,2}: {0,2}"' % "|".join(_TEXT).encode())
_BESIDE = frozenset([*TIMES, *LEVELS, "stream", "record"])
_PAYLOADS = ("jsonPayload", "fields")  # of a cloud's export, and of Rust's tracing: the record that was logged
# A traceback's line whose end is escaped, once or as a string within a string.
_ESCAPED = re.compile(rb"(?:\(most recent call last\):|, line \d{1,7}, in [\w<>.]{1,80})\\{1,8}n")
_LINE_END = re.compile(rb"\\{1,8}n")
_QUOTED = re.compile(rb"\\{1,8}([\"'])")
_TOLD_AS = re.compile(rb"\b(?:DEBUG|INFO|WARN(?:ING)?)\b")
_IN_TRACEBACK = re.compile(r"\(most recent call last\)|\bFile \"")
_DEEPEST = 3  # records within a record: a logger's in a container's in a cloud's
_MOST_LINES = 16_384  # of a record: one that has more is left as it stands, so that none grows without bound


def unwrapped(block: bytes) -> tuple[bytes, list[int]]:
    """The block with each such record as the lines that were printed, and for each of these which of its lines it was.

    No numbers where nothing was unwrapped.
    """
    records = b"{" in block and (block.startswith(b"{") or b"\n{" in block) and _RECORD.search(block)
    # One byte is looked for a hundred times as fast as two.
    escaped = (
        b"\\" in block
        and b"\\n" in block
        and (b"call last)" in block or b", line " in block)
        and _ESCAPED.search(block)
    )
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
    lines[-1] = lines[-1].rstrip(b"'\"})]")
    told = _TOLD_AS.search(lines[0][:200])  # so is the exception, which stands on a line of its own now
    level = told[0] + b": " if told else b""
    return [lines[0], *(line if line[:1].isspace() else level + line for line in lines[1:])]


def _said(line: bytes, deepest: int) -> list[bytes]:
    """What a record's program printed, line by line; nothing where the line is no such record."""
    record = _record(line) if deepest and line[:1] == b"{" and _RECORD.search(line) else None
    text = _text(record) if record is not None else None
    if record is None or text is None:
        return []
    parts, name = text.split("\n"), level_name(record)
    printed = len(parts)  # lines of the message: another program's record may stand in them
    if not isinstance(record.get("record"), dict):  # loguru's text has all that its record has
        same, below = beside(record, name, text)
        parts[0] = " ".join((parts[0], *same)).strip("\n") if same else parts[0]
        parts.extend(below)
    before, (level, only_by_level) = rank_of(record), level_of(record, name, parts[0])
    if only_by_level:
        parts.append(f"ERROR: {parts[0]}")  # besides: rules know the message as it stands
    lines = "\n".join(parts).split("\n") if len(parts) > 1 else parts
    if len(lines) > _MOST_LINES:
        return []
    traceback = len(lines) > 1 and any(map(_IN_TRACEBACK.search, parts))
    said: list[bytes] = []
    for number, part in enumerate(lines):
        # Of a traceback within a record the exception has the record's level, and its frames have none.
        own = "" if said and traceback and part[:1].isspace() else level
        nested = part[:1] == "{" and number < printed
        inner = _said(part.encode("utf-8", "replace"), deepest - 1) if nested else []
        said.extend(inner or [f"{before}{own}{part}".encode("utf-8", "replace")])
    return said


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json_of(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not found.keys() & _BESIDE:
        return None
    for key in _PAYLOADS:
        if isinstance(payload := found.get(key), dict) and payload.keys() & _TEXTS:
            return {**found, key: None, **payload}
    return found


def _text(record: dict[str, Any]) -> str | None:
    """The message as lines, None where there is none; loguru's has its time and level before it, and a traceback below."""
    text = record.get("text") if isinstance(record.get("record"), dict) else None
    if not isinstance(text, str):
        for key in _TEXT:
            if isinstance(other := record.get(key), str) and (text is None or not text.strip()):
                text = other
    if text is None:
        return None
    return lines_of(text).removesuffix("\n")
