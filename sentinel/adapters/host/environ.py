"""Reads whose a process is, and variables from its environment, of which its user chooses the content and, for a running
one, the length.

A process may say that its environment is any part of its memory (``PR_SET_MM_MAP``), gigabytes or more of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

_MOST_BYTES = 6 << 20  # of arguments and environment in all, for the kernel's execve
_LONGEST = 4096  # bytes of a value: a path
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


def environment_of(process: Path, names: Collection[str]) -> dict[str, str]:
    """The values of these variables; one that is longer than a path is left out.

    Args:
        process: its folder in /proc.

    Raises:
        OSError: the process is gone, or may not be read.
    """
    content = bytearray(b"\0")
    with (process / "environ").open("rb", buffering=0) as stream:
        while len(content) < _MOST_BYTES and (part := stream.read(min(1 << 16, _MOST_BYTES - len(content)))):
            content += part
    found = {}
    for name in names:
        if (at := content.find(b"\0%b=" % name.encode())) >= 0:  # the first of its name, as for the process itself
            begin = at + len(name) + 2
            end = content.find(b"\0", begin, begin + _LONGEST + 1)
            value = content[begin : end if end >= 0 else begin + _LONGEST + 1]
            if len(value) <= _LONGEST:
                found[name] = value.decode("utf-8", "surrogateescape")
    return found


def uid_of(process: Path) -> int:
    """The uid of who began the process.

    The owner of its folder is root also for processes that may not be traced, and for programs that act as root for whoever
    starts them, under whatever name: its real uid is in "status".

    Raises:
        OSError: the process is gone.
    """
    uid = process.stat().st_uid
    found = _UID.search((process / "status").read_text(errors="replace")) if uid == 0 else None
    return int(found[1]) if found else uid
