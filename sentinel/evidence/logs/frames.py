"""The innermost frame of a Python traceback: whose code it is, and whether it refused or failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

BEFORE = 2048  # bytes before an exception that are looked at
BETWEEN = 4  # lines between a frame and the exception that ends its traceback: the source, its marks, a note
_FRAME = re.compile(rb'\bFile "([^"\n]{1,300})", line \d{1,7}, in ([\w<>.]{1,80})(?:(?=[^\n]{0,40}\n([^\n]{0,240})))?')
_STANDARD = re.compile(rb"/python\d[\d.]{0,6}/(?!(?:site|dist)-packages/)|^<frozen ")
# What only hands on the exception of another: of a worker, of a wrapped call.
_HANDS_ON = re.compile(rb"/torch/_utils\.py$|/tblib/|/traceback_util(?:s)?\.py$")
_TABLE = re.compile(rb"\b[A-Z][A-Z0-9_]{3,40}\[")
_CHECKS = re.compile(rb"(?: {2,}|\t)(?:raise|assert)\b")


@dataclass(frozen=True, slots=True)
class Frame:
    """The last frame that is not the standard library's, and what stands within it.

    ``refused``: its line is a ``raise`` or an ``assert``: somebody looked and said no; otherwise the language failed there.
    ``standard``: file and function of the standard library's frame in which it ended, empty where it did not.
    """

    file: str
    function: str
    refused: bool
    standard: str = ""
    table: bool = False  # its line looks a name up in a constant of the program, as ``MODELS[name]`` does


def innermost(before: bytes) -> Frame | None:
    """The last frame in ``before``, the text up to the line of an exception; None where none is near.

    Frames of the standard library raise for whom they were called by, and are passed over.
    """
    frames = list(_FRAME.finditer(before))
    if not frames or before.count(b"\n", frames[-1].end(2)) > BETWEEN:
        return None
    named = [f for f in frames if not _STANDARD.search(f[1]) and not _HANDS_ON.search(f[1]) and f[1][:1] != b"<"]
    last = frames[-1]
    standard = f"{_text(last[1]).rsplit('/', 1)[-1]}:{_text(last[2])}" if _STANDARD.search(last[1]) else ""
    if not named:
        return Frame("", "", False, standard) if standard else None
    frame = named[-1]
    source = frame[3] if frame is last and frame[3] is not None else b""
    refused, table = _CHECKS.search(source) is not None, _TABLE.search(source) is not None
    return Frame(_text(frame[1]), _text(frame[2]), refused, standard, table)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
