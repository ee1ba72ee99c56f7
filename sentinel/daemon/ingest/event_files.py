"""Reads events that the controller's hook writes as empty files: ``EVENT.JOB.ANYTHING``, or ``EVENT.JOB.r0e1s0.ANYTHING``.

There the third part says which attempt ended (by restarts), with what code and signal.

Writing a file costs almost nothing at a job's end; starting Python in the hook would take 0.1 s of a core.

Trust comes from the file system: a file counts only if a trusted account owns it, and none counts if the folder is
world-writable. Files present when the daemon starts are events that it missed.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sentinel.engine.events import ReportedEnd
from sentinel.log import Log
from sentinel.model.records import utc

EVERY_S = 0.1
EVENT = "[a-z_]{1,40}"  # the name of what a hook of the controller reports
_NAME = re.compile("(" + EVENT + r")\.(\d{1,10})(?:\.r(\d{1,10})e(\d{1,10})s(\d{1,10}))?\.[0-9A-Za-z]{1,10}\Z")

Report = Callable[[str, Collection[int], Mapping[int, ReportedEnd]], None]


class EventFiles:
    """
    Args:
        trusted: uids whose files count.
        report: takes the name of an event, the jobs concerned, and how the last attempt of each ended where that is told.
    """

    def __init__(self, folder: Path, trusted: Collection[int], report: Report, log: Log) -> None:
        self._folder = folder
        self._trusted = trusted
        self._report = report
        self._log = log
        self._problem = ""
        self._left: set[str] = set()  # names of refused files, to log each once

    async def look(self) -> None:
        """Read and remove the event files, and pass their events on."""
        try:
            found = await asyncio.to_thread(self._take)
        except OSError as error:
            self._say(f"{self._folder} cannot be read: {error.strerror}")
            return
        for event in sorted({event for event, _, _ in found}):
            ends: dict[int, ReportedEnd] = {}
            for name, job, end in found:
                if name == event and end is not None and (job not in ends or ends[job].attempt < end.attempt):
                    ends[job] = end
            self._report(event, {job for name, job, _ in found if name == event}, ends)

    def _take(self) -> list[tuple[str, int, ReportedEnd | None]]:
        """Remove the event files of trusted owners and return their events, job ids and ends.

        Raises:
            OSError: the folder cannot be read.
        """
        here = self._folder.stat(follow_symlinks=False)
        if not stat.S_ISDIR(here.st_mode) or here.st_mode & stat.S_IWOTH or here.st_uid not in self._trusted:
            self._say(f"{self._folder} must be a folder of a trusted account that nobody else can write to: not read")
            return []
        found: list[tuple[str, int, ReportedEnd | None]] = []
        problem = ""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                name = _NAME.match(entry.name)
                try:
                    owned = entry.stat(follow_symlinks=False)
                    if name is None or owned.st_uid not in self._trusted or not stat.S_ISREG(owned.st_mode):
                        self._refuse(entry.name)
                        continue
                    os.unlink(entry.path)  # noqa: PTH108 - one of many
                except OSError as error:  # of this one: of those removed before it nobody else knows
                    problem = f"{self._folder}/{entry.name[:80]} cannot be removed: {error.strerror}"
                    continue
                found.append((name[1], int(name[2]), _end(name, owned.st_mtime)))
        self._say(problem)
        return found

    def _refuse(self, name: str) -> None:
        if name not in self._left and len(self._left) < 100:
            self._left.add(name)
            self._log.warning("event-refused", file=name[:80], reading="not of a trusted account, or no event")

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.warning("events-unreadable", reason=problem)
        self._problem = problem


def _end(name: re.Match[str], at_s: float) -> ReportedEnd | None:
    return ReportedEnd(utc(at_s), int(name[3]), int(name[4]), int(name[5])) if name[3] is not None else None
