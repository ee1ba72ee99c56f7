"""News that the controller's hook leaves as empty files, named ``EVENT.JOB.NUMBER``: a file costs a job's end nothing, a
Python process of its own costs a core for a tenth of a second.

Who may leave one is the file system's matter: a file counts only when its owner may speak for the cluster, and none does
when the folder can be written by everybody. What lies there when the daemon starts is what it missed.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from sentinel.daemon.events import Events
from sentinel.log import Log
from sentinel.telemetry import Telemetry

_LOOK_S = 0.1
_NAME = re.compile(r"([a-z_]{1,40})\.(\d{1,10})\.(\d{1,10})\Z")


class Dropbox:
    """Args: trusted: uids whose files count."""

    def __init__(self, folder: Path, trusted: Collection[int], events: Events, telemetry: Telemetry, log: Log) -> None:
        self._folder = folder
        self._trusted = trusted
        self._events = events
        self._telemetry = telemetry
        self._log = log
        self._problem = ""
        self._left: set[str] = set()  # not ours to take; said once

    async def forever(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # a loop of a root
                self._telemetry.bugs.inc()
                self._log.error("bug", where="dropbox", error=repr(error))
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Take what is there and pass it on."""
        try:
            found = await asyncio.to_thread(self._take)
        except OSError as error:
            self._say(f"{self._folder} cannot be read: {error.strerror}")
            return
        for event in sorted({event for event, _ in found}):
            await self._events.arrived_together(event, {job for name, job in found if name == event})

    def _take(self) -> list[tuple[str, int]]:
        """What trusted owners left; it is removed.

        Raises:
            OSError: the folder cannot be read.
        """
        here = self._folder.stat(follow_symlinks=False)
        if not stat.S_ISDIR(here.st_mode) or here.st_mode & stat.S_IWOTH or here.st_uid not in self._trusted:
            self._say(f"{self._folder} must be a folder of a trusted account that nobody else can write to: not read")
            return []
        self._say("")
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                name = _NAME.match(entry.name)
                owned = entry.stat(follow_symlinks=False)
                if name is None or owned.st_uid not in self._trusted or not stat.S_ISREG(owned.st_mode):
                    self._refuse(entry.name)
                    continue
                os.unlink(entry.path)  # noqa: PTH108 - one of many
                found.append((name[1], int(name[2])))
        return found

    def _refuse(self, name: str) -> None:
        if name not in self._left and len(self._left) < 100:
            self._left.add(name)
            self._log.warning("event-refused", file=name[:80], reading="not of a trusted account, or no event")

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.warning("events-unreadable", reason=problem)
        self._problem = problem
