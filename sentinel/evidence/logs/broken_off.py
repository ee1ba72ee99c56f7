"""The traceback with which a log breaks off: its exception is not written yet, or was cut away.

A process that is killed while it prints, and whoever passes on an excerpt, leave the frames without their last line. Where
the innermost frame shows a ``raise``, its line names the exception all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.evidence.logs.writers import begins_as

_FRAME = re.compile(rb'(?m)^([^\n]{0,160}?)  File "[^"\n]{1,300}", line \d{1,7}, in [^\n]{1,120}$')
_HEAD = re.compile(rb"(?m)^[^\n]{0,160}?Traceback \(most recent call last\)")
_RAISES = re.compile(rb"^raise ([A-Za-z_][\w.]{2,80})(?:\(f?(['\"])?([^\n]{0,400}))?")
_CLASS = re.compile(rb"(?:^|\.)[A-Z]\w+$")
PADDING = b"\r\n \t\0"  # what may stand behind the last line: a file system fills up with NUL after a crash
_MOST_LINES = 8  # of source and marks below the innermost frame


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The innermost frame's line, and the line of the exception: what stands before it, and what the ``raise`` says."""

    frame: bytes
    exception: bytes


def broken_off(end: bytes) -> BrokenOff | None:
    """Of a log that ends with ``end``; None where no traceback breaks off there."""
    end = end.rstrip(PADDING)
    frame = next(reversed(list(_FRAME.finditer(end))), None)
    head = next(reversed(list(_HEAD.finditer(end, 0, frame.start()))), None) if frame is not None else None
    if frame is None or head is None:
        return None
    prefix, further_in = frame[1], frame[1] + b"    "
    above = end[head.end() : frame.start()].split(b"\n")[1:-1]
    if not all(begins_as(line, prefix + b"  ") for line in above if begins_as(line, prefix)):
        return None  # that traceback ended
    below = end[frame.end() + 1 :].split(b"\n") if frame.end() < len(end) else []
    if below and (begins_as(below[-1], prefix + b"  File") or begins_as(further_in, below[-1])):  # cut within a line
        below.pop()
    if len(below) > _MOST_LINES or not all(begins_as(line, further_in) for line in below):
        return None
    source = below[0][len(prefix) :].strip() if below else b""
    raised = _RAISES.match(source)
    if raised is None or not _CLASS.search(raised[1]):
        return BrokenOff(frame[0], prefix)
    said = (raised[3] or b"").rsplit(raised[2], 1)[0] if raised[2] else b""
    return BrokenOff(frame[0], b"%s%s: %s" % (prefix, raised[1], said))
