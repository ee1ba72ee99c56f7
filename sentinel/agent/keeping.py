"""What survives a restart of the agent besides the spool: small JSON files, replaced atomically."""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from sentinel.log import Log

log = Log()


def bug(told: Log, where: str) -> None:
    """Say that a loop survived an error of our own, with the place it came from."""
    error = sys.exc_info()[1]
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    told.error("bug", where=where, error=repr(error), place=place)


def write_atomically(path: Path, content: str, mode: int = 0o644) -> bool:
    """Replace a file in one step. False when the disk refuses: the old content stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.write(descriptor, content.encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        log.warning("write-failed", path=path, error=error.strerror)
        return False
    return True


def save(path: Path, value: object) -> bool:
    return write_atomically(path, json.dumps(value), 0o600)


def restore(path: Path) -> Any:
    """What ``save`` wrote; None when there is nothing or it cannot be read (then everything is new)."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("state-unreadable", path=path, error=error)
        return None


def node_name(configured: str) -> str:
    return configured or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
