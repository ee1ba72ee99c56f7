"""The resume point of a job as a small file on the shared file system; TaskProlog turns it into variables.

Written by the daemon's account, read by everybody, replaced at once (temporary file, fsync, rename), so that the job
reads the old one or the new one and never half of one. In a thread with a deadline: the file system may be frozen.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sentinel.adapters.atomic_file import replace_file
from sentinel.errors import Refused, Timeout, Unavailable


class ResumeFiles:
    """Implements ``sentinel.actions.means.ResumePoints``."""

    def __init__(self, folder: Path | None, *, deadline_s: float = 10.0) -> None:
        self.folder = folder
        self.deadline_s = deadline_s

    async def write(self, job: int, values: Mapping[str, str]) -> None:
        if self.folder is None:
            raise Refused("no resume folder is set", fix="set [daemon] resume to a folder on the shared file system")
        for name, value in values.items():
            if not value.isprintable():
                raise Refused(f"{name} holds a character that cannot go into a resume file: {value!r:.80}")
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        try:
            await asyncio.wait_for(asyncio.to_thread(_replace, self.folder, f"{job}.env", text), self.deadline_s)
        except TimeoutError as error:
            raise Timeout(f"writing to {self.folder} took longer than {self.deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be written: {error.strerror}") from error


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
