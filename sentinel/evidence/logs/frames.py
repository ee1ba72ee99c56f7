"""The innermost frame of a Python traceback."""

from __future__ import annotations

import re

BEFORE = 2048  # bytes before an exception that are looked at
BETWEEN = 4  # lines between a frame and the exception that ends its traceback: the source, its marks, a note
_FRAME = re.compile(rb'\bFile "([^"\n]{1,300})", line \d{1,7}, in ')
_STANDARD = re.compile(rb"/python\d[\d.]{0,6}/(?!(?:site|dist)-packages/)")


def innermost(before: bytes) -> str:
    """The file of the last frame in ``before``, the text up to the line of an exception; empty where none is near.

    Frames of the standard library raise for whom they were called by, and are passed over.
    """
    frames = list(_FRAME.finditer(before))
    if not frames or before.count(b"\n", frames[-1].end()) > BETWEEN:
        return ""
    named = [frame[1] for frame in frames if not _STANDARD.search(frame[1]) and not frame[1].startswith(b"<")]
    return named[-1].decode("utf-8", "replace") if named else ""
