"""Reads events that the controller's hook writes as empty files: ``EVENT.JOB.ANYTHING``, or ``EVENT.JOB.r0e1s0.ANYTHING``.

There the third part says which attempt ended (by restarts), with what code and signal.

Writing a file costs almost nothing at a job's end; starting Python in the hook would take 0.1 s of a core.

Trust comes from the file system: a file counts only if a trusted account owns it, and none counts if the folder is
world-writable. Files present when the daemon starts are events that it missed.

A file stays until what it led to is saved: a daemon that is killed before then leaves it to the next one.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.engine.events import ReportedEnd
from sentinel.log import Log
from sentinel.model.records import utc

EVERY_S = 0.1
EVENT = "[a-z_]{1,40}"  # the name of what a hook of the controller reports
_NAME = re.compile("(" + EVENT + r")\.(\d{1,10})(?:\.r(\d{1,10})e(\d{1,10})s(\d{1,10}))?\.[0-9A-Za-z]{1,10}\Z")

Report = Callable[[str, Collection[int], Mapping[int, ReportedEnd]], None]


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    job: int
    end: ReportedEnd | None


class EventFiles:
    """
    Args:
        trusted: uids whose files count.
        report: takes the name of an event, the jobs concerned, and how the last attempt of each ended where that is told.
        asked_about: jobs of which Slurm is still asked how they ended.
        saved: a future that is done when all that was reported or found before is saved.
    """

    def __init__(
        self,
        folder: Path,
        trusted: Collection[int],
        report: Report,
        log: Log,
        *,
        asked_about: Callable[[], Collection[int]],
        saved: Callable[[], asyncio.Future[None]],
    ) -> None:
        self._folder = folder
        self._trusted = trusted
        self._report = report
        self._log = log
        self._asked_about, self._saved = asked_about, saved
        self._problem = ""
        self._left: set[str] = set()  # names of refused files, to log each once
        self._told: dict[str, _Event] = {}  # by name, files whose event was reported
        self._saving: dict[str, asyncio.Future[None]] = {}  # by name, files to be removed once that is done

    async def look(self) -> None:
        """Read the event files, pass their events on, and remove those of which nothing more is to be saved."""
        try:
            found, problem = await asyncio.to_thread(self._read)
        except OSError as error:
            self._say(f"{self._folder} cannot be read: {error.strerror}")
            return
        fresh = [event for name, event in found.items() if name not in self._told]
        self._told = found
        self._pass_on(fresh)
        over = self._over()
        self._say((await asyncio.to_thread(self._remove, over) if over else "") or problem)

    def _pass_on(self, fresh: Collection[_Event]) -> None:
        for name in sorted({event.name for event in fresh}):
            same = [event for event in fresh if event.name == name]
            ends: dict[int, ReportedEnd] = {}
            for one in same:
                if one.end is not None and (one.job not in ends or ends[one.job].attempt < one.end.attempt):
                    ends[one.job] = one.end
            self._report(name, {event.job for event in same}, ends)

    def _over(self) -> list[str]:
        """The files to remove: Slurm is not asked about their jobs any more, and what that brought is saved."""
        asked = self._asked_about()
        failed = {name for name, saving in self._saving.items() if saving.done() and not _succeeded(saving)}
        self._saving = {name: self._saving[name] for name in self._told.keys() & self._saving.keys() - failed}
        waits = [name for name, event in self._told.items() if name not in self._saving and event.job not in asked]
        if waits:
            self._saving.update(dict.fromkeys(waits, self._saved()))
        return [name for name, saving in self._saving.items() if saving.done()]

    def _read(self) -> tuple[dict[str, _Event], str]:
        """The events of the files of trusted owners, by the files' names, and what could not be read.

        Raises:
            OSError: the folder cannot be read.
        """
        here = self._folder.stat(follow_symlinks=False)
        if not stat.S_ISDIR(here.st_mode) or here.st_mode & stat.S_IWOTH or here.st_uid not in self._trusted:
            return {}, f"{self._folder} must be a folder of a trusted account that nobody else can write to: not read"
        found: dict[str, _Event] = {}
        problem = ""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name in self._told:
                    found[entry.name] = self._told[entry.name]
                    continue
                name = _NAME.match(entry.name)
                try:
                    owned = entry.stat(follow_symlinks=False)
                except OSError as error:
                    problem = f"{self._folder}/{entry.name[:80]} cannot be read: {error.strerror}"
                    continue
                if name is None or owned.st_uid not in self._trusted or not stat.S_ISREG(owned.st_mode):
                    self._refuse(entry.name)
                    continue
                found[entry.name] = _Event(name[1], int(name[2]), _end(name, owned.st_mtime))
        return found, problem

    def _remove(self, names: Collection[str]) -> str:
        """Returns which file cannot be removed, and why; empty: all were."""
        problem = ""
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                problem = f"{self._folder}/{name[:80]} cannot be removed: {error.strerror}"
        return problem

    def _refuse(self, name: str) -> None:
        if name not in self._left and len(self._left) < 100:
            self._left.add(name)
            self._log.warning("event-refused", file=name[:80], reading="not of a trusted account, or no event")

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.warning("events-unreadable", reason=problem)
        self._problem = problem


def _succeeded(saving: asyncio.Future[None]) -> bool:
    return not saving.cancelled() and saving.exception() is None


def _end(name: re.Match[str], at_s: float) -> ReportedEnd | None:
    return ReportedEnd(utc(at_s), int(name[3]), int(name[4]), int(name[5])) if name[3] is not None else None
