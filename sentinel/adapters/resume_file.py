"""The resume point of a job as a small file on the shared file system; TaskProlog turns it into variables.

Written by the daemon's account, read by everybody, replaced at once (temporary file, fsync, rename), so that the job
reads the old one or the new one and never half of one. The file system may be frozen: each write has a deadline, in threads
of its own.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sentinel.adapters.atomic_file import replace_file
from sentinel.errors import Refused, Timeout, Unavailable

_AT_ONCE = 4  # writes: one takes hundredths of a second on a file system that answers


class ResumeFiles:
    """Implements ``sentinel.actions.means.ResumePoints``."""

    def __init__(self, folder: Path | None, *, deadline_s: float = 10.0) -> None:
        """``deadline_s``: of one write."""
        self.folder = folder
        self.deadline_s = deadline_s
        self._executor = ThreadPoolExecutor(_AT_ONCE, "resume-points")
        self._late: list[Future[None]] = []  # writes that hang beyond their deadline

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
        # Tried again and again, writes that hang would take all threads. And what thaws late must not replace a newer one.
        self._late = [late for late in self._late if not late.done()]
        if self._late:
            raise Unavailable(
                f"{self.folder} does not answer: an earlier write has not ended",
                fix="mend its mount; if it answers again and this remains, restart the daemon",
            )
        writing = self._executor.submit(_replace, self.folder, f"{job}.env", text)
        try:
            await asyncio.wait_for(asyncio.wrap_future(writing), self.deadline_s)
        except TimeoutError as error:
            raise Timeout(f"writing to {self.folder} took longer than {self.deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be written: {error.strerror}") from error
        finally:
            if not writing.cancel():  # it has begun
                self._late.append(writing)


def _replace(folder: Path, name: str, text: str) -> None:
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A resume point names the checkpoint that a job loads: whoever can write one runs programs as its user.
        raise Refused(
            f"{folder} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}: others can write resume "
            "points",
            fix=f"chown {os.geteuid()} {folder}; chmod go-w {folder}",
        )
    replace_file(folder / name, text, 0o644)
