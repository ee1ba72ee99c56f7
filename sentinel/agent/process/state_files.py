"""Stores the agent's state, apart from the spool, in small JSON files that are replaced atomically.

Each folder has a writer thread, for which callers wait a bounded time: a hung disk below ``state`` stops neither the
GPU watch nor the verdict for the prolog, which is in another folder. When the disk answers again, the newest content of
each file is written; meanwhile ``stuck`` reports the hang.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

from sentinel.errors import UserError
from sentinel.log import Log
from sentinel.text import json_with_bytes, plain

log = Log()

PATIENCE_S = 2.0  # how long a caller waits for a write, which takes 1 ms on a healthy disk
_OWN_BYTES = 64 << 20  # largest file that is read back; results of orders take a few MB
_IDLE_S = 10.0  # a folder's thread ends after this long without a write


class Folder:
    """The thread that writes the files of one folder."""

    def __init__(self, patience_s: float | None = None) -> None:
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        self._lock = threading.Condition()
        self._waiting: dict[Path, tuple[int, bytes, int]] = {}  # file -> number of the write, content, mode
        self._results: dict[Path, tuple[int, bool]] = {}  # file -> number and success of its last write
        self._count = 0
        self._thread: threading.Thread | None = None
        self._busy_since_s: float | None = None

    @property
    def stuck_s(self) -> float:
        """Seconds for which the present write has not returned; 0 when there is none."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def write(self, path: Path, content: bytes, mode: int) -> bool:
        """Write a file. False if the disk refused, or has not answered within ``PATIENCE_S``."""
        with self._lock:
            self._count += 1
            number = self._count
            self._waiting[path] = (number, content, mode)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="state", daemon=True)
                self._thread.start()
            self._lock.notify_all()
            if self.stuck_s < self.patience_s:
                self._lock.wait_for(lambda: self._results.get(path, (0, False))[0] >= number, self.patience_s)
            done, good = self._results.get(path, (0, False))
            return good and done >= number

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy_since_s = None
                if not self._lock.wait_for(lambda: self._waiting, _IDLE_S):
                    self._thread = None
                    return
                path, (number, content, mode) = next(iter(self._waiting.items()))
                del self._waiting[path]
                self._busy_since_s = time.monotonic()
            good = _replace(path, content, mode)
            with self._lock:
                self._results[path] = (number, good)
                self._lock.notify_all()


_folders: dict[Path, Folder] = {}


def stuck() -> dict[Path, float]:
    """Folders whose disk does not answer, and for how long in seconds."""
    return {path: seconds for path, folder in list(_folders.items()) if (seconds := folder.stuck_s) > 0}


def write_atomically(path: Path, content: str, mode: int = 0o644) -> bool:
    """Replace a file in one step. False if the disk refuses or hangs: the old content stays for now."""
    folder = _folders.setdefault(path.parent, Folder())
    return folder.write(path, plain(content).encode(), mode)


def _replace(path: Path, content: bytes, mode: int) -> bool:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # left by an earlier process with this pid
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        log.warning("write-failed", path=path, error=error.strerror)
        return False
    return True


def save(path: Path, value: object) -> bool:
    return write_atomically(path, json.dumps(value), 0o600)


def own_bytes(path: Path) -> bytes:
    """Read a small file that only root can have written (by the hooks or the agent).

    Raises:
        FileNotFoundError: it does not exist. OSError: unreadable, a link, or another user could have written it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no plain file")
        if os.geteuid() == 0 and (status.st_uid != 0 or _open_to_others(status)):
            raise PermissionError(f"{path} can be written by others than root: what it says is not believed")
        return stream.read(_OWN_BYTES)


def require_own(key: str, folder: Path) -> None:
    """Check that only root can write or replace a folder: it and all folders above it are root's.

    Nothing is checked if the agent does not run as root.

    Raises:
        UserError: names the folder that another user could replace.
    """
    if os.geteuid() != 0:
        return
    whole = folder.resolve()
    for part in (whole, *whole.parents):
        status = part.stat()
        sticky = status.st_mode & stat.S_ISVTX and part != whole  # as in /tmp: only a file's owner can rename it
        if status.st_uid != 0 or (_open_to_others(status) and not sticky):
            raise UserError(
                f"{key}: {part} can be written by others than root, who could replace what the agent keeps in {folder}",
                fix="name a folder below folders of root's, as /var/lib/sentinel-agent",
            )


def _open_to_others(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    return bool(by_group or status.st_mode & stat.S_IWOTH)


def restore(path: Path) -> Any:
    """Read what ``save`` wrote; None if there is no such file or it is unreadable (the caller then starts afresh)."""
    try:
        return json_with_bytes(own_bytes(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("state-unreadable", path=path, error=error)
        return None


def node_name(configured: str) -> str:
    return configured or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
