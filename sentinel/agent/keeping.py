"""What survives a restart of the agent besides the spool: small JSON files, replaced atomically."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

log = logging.getLogger("sentinel.agent")


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
        log.warning("write-failed path=%s error=%s", path, error.strerror)
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
        log.warning("state-unreadable path=%s error=%s", path, error)
        return None


def node_name(configured: str) -> str:
    return configured or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
