"""The resume point of a job as a small file on the shared file system; TaskProlog turns it into variables.

Written by the daemon's account, read by everybody, replaced at once (temporary file, fsync, rename), so that the job
reads the old one or the new one and never half of one. The file system may be frozen: each write has a deadline, in threads
of its own.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sentinel.adapters.atomic_file import replace_file
from sentinel.errors import Refused, Timeout, Unavailable

T = TypeVar("T")
_AT_ONCE = 4  # calls: one takes hundredths of a second on a file system that answers

_AT_A_TIME = 500  # resume points removed by one call: within its deadline, also in a folder that was never tidied


class ResumeFiles:
    """Implements ``sentinel.actions.means.ResumePoints``."""

    def __init__(self, folder: Path | str | None, *, deadline_s: float = 10.0) -> None:
        """
        Args:
            folder: as ``[daemon] resume`` names it; None or empty: there is none.
            deadline_s: of one call to the file system.
        """
        self.folder = Path(folder) if folder else None
        self.deadline_s = deadline_s
        self._executor = ThreadPoolExecutor(_AT_ONCE, "resume-points")
        self._replacing = Lock()  # a new file is not removed in the place of the old one
        self._late: list[Future[Any]] = []  # calls that hang beyond their deadline

    async def write(self, job: int, values: Mapping[str, str]) -> None:
        """
        Raises:
            Refused: no folder is set, others may write to it, or a value cannot stand in the file.
            Timeout: whether it was written, or will be, is not known.
            Unavailable: the folder cannot be written, or an earlier write to it still hangs.
        """
        if self.folder is None:
            raise Refused("no resume folder is set", fix="set [daemon] resume to a folder on the shared file system")
        for name, value in values.items():
            if not value.isprintable():
                raise Refused(f"{name} holds a character that cannot go into a resume file: {value!r:.80}")
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        try:
            await self._called(_replace, self.folder, f"{job}.env", text, self._replacing)
        except TimeoutError as error:
            raise Timeout(f"writing to {self.folder} took longer than {self.deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be written: {error.strerror}") from error

    async def remove_former(self, before: Callable[[int], datetime | None]) -> list[int]:
        """Remove the resume points of jobs that are gone, some hundreds at a time; returns the ids in them.

        Args:
            before: called in another thread, with an id: what was written for it before then is removed; None: it stays.

        Raises:
            Timeout: what was removed is not known.
            Unavailable: the folder cannot be read or written, or an earlier call to it still hangs.
        """
        if self.folder is None:
            return []
        try:
            return await self._called(_remove_former, self.folder, before, self._replacing)
        except TimeoutError as error:
            raise Timeout(f"looking through {self.folder} took longer than {self.deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be read or written: {error.strerror}") from error

    async def writable(self) -> bool | None:
        """Whether the folder can be written; None: there is none, or it does not answer."""
        if self.folder is None:
            return None
        try:
            return await self._called(os.access, self.folder, os.W_OK | os.X_OK)
        except (TimeoutError, Unavailable):
            return None

    async def read_only(self) -> bool:
        """Whether the folder is mounted read-only for this process, as systemd does it; false where that is not known."""
        try:
            status = await self._called(os.statvfs, self.folder) if self.folder is not None else None
        except (TimeoutError, Unavailable, OSError):
            return False
        return bool(status and status.f_flag & os.ST_RDONLY)

    async def _called(self, function: Callable[..., T], *arguments: object) -> T:
        """Call what waits for the file system.

        Raises:
            TimeoutError: it has not ended within the deadline.
            Unavailable: an earlier call has not ended either.
        """
        # Tried again and again, calls that hang would take all threads. And a write that thaws late must not replace a
        # newer one.
        self._late = [late for late in self._late if not late.done()]
        if self._late:
            raise Unavailable(
                f"{self.folder} does not answer: an earlier write has not ended",
                fix="mend its mount; if it answers again and this remains, restart the daemon",
            )
        calling = self._executor.submit(function, *arguments)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(calling), self.deadline_s)
        finally:
            if not calling.cancel():  # it has begun
                self._late.append(calling)


def _replace(folder: Path, name: str, text: str, replacing: Lock) -> None:
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A resume point names the checkpoint that a job loads: whoever can write one runs programs as its user.
        raise Refused(
            f"{folder} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}: others can write resume "
            "points",
            fix=f"chown {os.geteuid()} {folder}; chmod go-w {folder}",
        )
    with replacing:
        replace_file(folder / name, text, 0o644)
        os.utime(folder / name, (now_s := time.time(), now_s))  # by this host's clock: a file server has its own


def _remove_former(folder: Path, before: Callable[[int], datetime | None], replacing: Lock) -> list[int]:
    removed: list[int] = []
    for path in folder.iterdir():
        if path.suffix != ".env" or not path.stem.isdecimal():
            continue
        if (limit := before(int(path.stem))) is None:
            continue
        if len(removed) >= _AT_A_TIME:
            break
        with replacing, suppress(FileNotFoundError):  # another daemon, or a person, may remove it too
            if datetime.fromtimestamp(path.lstat().st_mtime, UTC) < limit:
                path.unlink()
                removed.append(int(path.stem))
    return removed
