"""Folders and daemons of a test that must not outlive it, also when the test process is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MARK = "SENTINEL_TEST_FOLDER"

_PROGRAM = r"""
import os, shutil, signal, sys, time
folder, mark = sys.argv[1], (sys.argv[2] + "=" + sys.argv[1]).encode()
sys.stdin.buffer.read()  # ends when the test process closes it or is gone
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    found = False
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ:
                marked = mark in environ.read().split(b"\0")
            with open(f"/proc/{entry}/stat", "rb") as stat:
                zombie = stat.read().rpartition(b")")[2].split()[0] == b"Z"
            if marked and not zombie:
                os.kill(int(entry), signal.SIGKILL)
                found = True
        except OSError:
            continue
    if not found:
        break
    time.sleep(0.05)
shutil.rmtree(folder, ignore_errors=True)
"""


class Keeper:
    """A temporary folder and every process that carries ``environment`` of this keeper: gone after ``close()``.

    A process of its own waits for the end of a pipe that only this process holds open; so it also learns of ``kill -9``.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))  # short: socket paths have 107 bytes
        self.environment = {MARK: str(self.folder)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.folder), MARK], stdin=subprocess.PIPE, start_new_session=True
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
