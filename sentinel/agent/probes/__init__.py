"""The programs that run in killable children: one JSON object in on stdin, JSON objects out on stdout, one per line."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

_LOCK = threading.Lock()
_STREAM = [1]  # where messages go


def begin() -> dict[str, Any]:
    """Arguments of this child. Whatever libraries print goes to stderr from here on, so that stdout stays ours."""
    line = sys.stdin.buffer.readline()
    _STREAM[0] = os.dup(1)
    os.dup2(2, 1)
    arguments = json.loads(line)
    assert isinstance(arguments, dict)
    return arguments


def say(message: Mapping[str, object]) -> None:
    """One message to the agent. When the agent is gone, so are we."""
    content = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    try:
        with _LOCK:  # a long line is written in pieces
            while content:
                content = content[os.write(_STREAM[0], content) :]
    except BrokenPipeError:
        os._exit(0)


def become(uid: int, gid: int | None, user: str = "") -> None:
    """Drop root for good: the job's user, with his groups. Asking for the groups may hang, which is why we are a child.

    Raises:
        PermissionError: we are neither root nor that user.
    """
    if os.geteuid() != 0:
        if os.geteuid() != uid:
            raise PermissionError(f"uid {os.geteuid()} cannot become uid {uid}")
        return
    if uid == 0:
        return
    import pwd

    try:
        entry = pwd.getpwuid(uid)
        user, gid = entry.pw_name, entry.pw_gid if gid is None else gid
    except KeyError:
        user = ""
    if gid is None:
        raise PermissionError(f"the group of uid {uid} is not known")
    os.setgroups(os.getgrouplist(user, gid) if user else [gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
