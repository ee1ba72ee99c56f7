"""Programs that the agent runs as killable children: a JSON object on stdin, JSON objects on stdout, one per line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

MEMORY_VARIABLE = "SENTINEL_USER_MEMORY_BYTES"  # set by the agent, from jobs.memory_bytes

_LOCK = threading.Lock()
_STREAM = [1]  # descriptor to which messages are written


def begin() -> dict[str, Any]:
    """Read this child's arguments. From now on anything that libraries print goes to stderr: stdout has only messages."""
    arguments = next_request()
    assert arguments is not None
    _STREAM[0] = os.dup(1)
    os.dup2(2, 1)
    return arguments


def next_request() -> dict[str, Any] | None:
    """Arguments of the next request, for a child that serves several; None when the agent has closed the pipe."""
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    arguments = json.loads(line)
    assert isinstance(arguments, dict)
    return arguments


def say(message: Mapping[str, object]) -> None:
    """Send one message to the agent. Ends this process if the agent is gone."""
    content = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    try:
        with _LOCK:  # a long line takes several writes
            while content:
                content = content[os.write(_STREAM[0], content) :]
    except BrokenPipeError:
        os._exit(0)


def become(uid: int, gid: int | None) -> None:
    """Drop root for good and become the job's user, with all of that user's groups. Looking those up may hang.

    uid 0 and gid 0 are refused, whoever names them: no file of a job is read or moved as root.

    Raises:
        PermissionError: uid or gid is 0 or no number, this process is neither root nor that user, or the kernel did not
            drop root.
    """
    if type(uid) is not int or uid <= 0 or (gid is not None and (type(gid) is not int or gid <= 0)):
        raise PermissionError(f"uid {uid!r:.40}, gid {gid!r:.40}: what is a job's is not touched as root")
    _no_new_privileges()
    _limit_memory()
    if os.geteuid() != 0:
        if os.geteuid() != uid:
            raise PermissionError(f"uid {os.geteuid()} cannot become uid {uid}")
        return
    import pwd

    try:
        entry = pwd.getpwuid(uid)
        user, gid = entry.pw_name, entry.pw_gid if gid is None else gid
    except KeyError:
        user = ""
    if gid is None or gid == 0:
        raise PermissionError(f"the group of uid {uid} is {'root' if gid == 0 else 'not known'}")
    groups = os.getgrouplist(user, gid) if user else [gid]
    os.setgroups([group for group in groups if group != 0])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
        raise PermissionError(f"still root after becoming uid {uid}")


def _limit_memory() -> None:
    """Whatever a user's files make of this process, the agent in the same control group goes on: more memory than the
    agent's ``jobs.memory_bytes`` is refused, and where the group runs out of it the kernel ends this process first."""
    import resource

    most = int(os.environ.get(MEMORY_VARIABLE) or 0)
    with contextlib.suppress(OSError, ValueError):  # one that is limited more tightly stays so
        if most:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as stream:  # noqa: PTH123
        if int(stream.read()) < 0:  # the agent's own, which its children have
            stream.write(b"0")


def account() -> tuple[str, str]:
    """Name and home folder of this process's user; empty if the node does not know the user."""
    import pwd

    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return "", ""
    return entry.pw_name, entry.pw_dir


def _no_new_privileges() -> None:
    """Keep programs started from here from gaining rights by set-uid or file capabilities, if the kernel can."""
    import ctypes

    pr_set_no_new_privs = 38  # linux/prctl.h
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_no_new_privs, 1, 0, 0, 0)
