"""Finds a job's output file, and the position in it at which an attempt begins.

Slurm hands the prolog the output's name as the user wrote it (``%x-%j.out``); what the prolog does not know of it (the
job's name) becomes a wildcard. A restarted job appends to the log of the attempts before it: TaskProlog prints a line at
the start of each, and the follower begins there.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import heapq
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.agent.probes.job_processes import outputs_of

_TOKEN = re.compile(r"%([0-9]*)([A-Za-z%])")
_MOST_WIDTH = 10  # Slurm's own limit of a field's width; a user may write any number
_MARKER = "sentinel: job {job} attempt {attempt} begins"
_WAIT_S = 5.0  # wait for TaskProlog's line, which soon follows the prolog; without a TaskProlog the delay
_OLD_S = 2.0  # a log last written this long before the job began is an earlier job's


_ESCAPED = re.compile(r"\[([*?[])\]")  # as glob.escape writes them
_MOST_NAMES = 100_000  # names examined for one log, in all folders (0.2 s): any folder's name may contain wildcards
_MOST_S = 5.0  # a full search takes 0.2 s; a slow file system takes longer
_OF_THE_KERNEL = ("/proc/", "/sys/", "/dev/")
_MOST_OPENED = 256  # newest logs of an array's tasks in which one is looked for by its line
_HEAD, _TAIL = 4096, 65_536  # bytes of each that are read
_NUMBER = "[0-9]*"  # stands for an array's job or task, which the prolog does not know


def pattern_of(stdout: str, *, job: int, user: str, node: str, work_dir: str = "") -> str:
    """A glob pattern for the file that ``stdout`` names. Fields whose value is not known become ``*``."""
    if not stdout.startswith("/"):
        stdout = f"{work_dir.rstrip('/')}/{stdout}"
    known = {"j": str(job), "J": str(job), "A": str(job), "u": user, "N": node.partition(".")[0], "n": "0", "t": "0",
             "s": "batch", "%": "%"}  # fmt: skip
    unknown = {"a": _NUMBER, "A": _NUMBER}
    if any(token[2] == "a" for token in _TOKEN.finditer(stdout)):
        del known["A"]  # id of the array, not of its task
    made, end = [], 0
    for token in _TOKEN.finditer(stdout):
        made.append(glob.escape(stdout[end : token.start()]))
        width, letter = token.groups()
        value = known.get(letter, "")
        value = value.zfill(min(int(width[:4] or 0), _MOST_WIDTH)) if value.isdigit() else value
        made.append(glob.escape(value) if value else unknown.get(letter, "*"))
        end = token.end()
    return "".join((*made, glob.escape(stdout[end:])))


def newest(
    pattern: str, uid: int, job: int | None = None, attempt: int | None = None, *, since_s: float | None = None
) -> str | None:
    """The file of that user that matches and was written last; None while there is none.

    Slurm opens a job's output as its user: a matching file, folder or link of another user is ignored. If several
    tasks of an array match, the file that a process of ``job`` writes counts, or else the one in which this attempt
    begins; without ``job`` there must be only one, of those written since the Unix time ``since_s`` if that is given.

    Raises:
        OSError: more names than ``_MOST_NAMES`` had to be looked at, or for longer than ``_MOST_S``.
    """
    of_array = _NUMBER in pattern
    own = outputs_of(job, uid) if of_array and job is not None else None
    best, count, others = (0.0, ""), 0, list[tuple[float, str]]()
    for path in _matching(pattern, uid):
        try:
            if any(os.lstat(met).st_uid not in (uid, 0) for met in _met_by_wildcards(pattern, path)):
                continue  # also if it is a link to a file of the user
            status = Path(path).stat()
        except OSError:
            continue  # gone by now, or a link to nothing or in a circle
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            continue
        if since_s is not None and status.st_mtime < since_s:
            continue
        if own is None or path in own:
            best, count = max(best, (status.st_mtime, path)), count + 1
        elif len(others) < _MOST_OPENED:
            heapq.heappush(others, (status.st_mtime, path))
        else:
            heapq.heappushpop(others, (status.st_mtime, path))
    if own is not None and not count and attempt is not None:
        marker = _MARKER.format(job=job, attempt=attempt).encode()
        return next((path for _, path in sorted(others, reverse=True) if _holds_line(path, marker)), None)
    return best[1] if count == 1 or (count and not (of_array and own is None)) else None


def of_ended(pattern: str, uid: int, job: int, attempt: int, began_s: float | None = None) -> str | None:
    """The log of an attempt that has ended; of an array's tasks without a line that tells them apart, the only one.

    Args:
        began_s: Unix time at which it began; a first attempt's log, which Slurm makes then, may be the only one since.

    Raises:
        OSError: as ``newest``.
    """
    found = newest(pattern, uid, job, attempt) or newest(pattern, uid)
    if found is None and began_s and attempt == 0:
        return newest(pattern, uid, since_s=began_s - _OLD_S)
    return found


def _holds_line(path: str, line: bytes) -> bool:
    """Whether the line stands at the beginning of the file, or near its end."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return any(line in part.splitlines() for part in (head, file.read(_TAIL)))
    except OSError:
        return False


def _matching(pattern: str, uid: int) -> Iterator[str]:
    """Yield the paths that match, in constant memory: a pattern may match very many.

    A wildcard enters no other user's folder, who could fill it, and none of the kernel's, which have no end.
    """
    return _below("/", pattern.split("/")[1:], uid, _Bounds())


class _Bounds:
    """How much is looked at for one log."""

    def __init__(self) -> None:
        self._looked = itertools.count(1)
        self._until_s = time.monotonic() + _MOST_S

    def count(self) -> None:
        if next(self._looked) > _MOST_NAMES:
            raise OSError(errno.E2BIG, f"{_MOST_NAMES:,} names and more have to be looked at for it")
        if time.monotonic() > self._until_s:
            raise OSError(errno.E2BIG, f"it was looked for longer than {_MOST_S:g} s")


def _below(folder: str, names: Sequence[str], uid: int, bounds: _Bounds) -> Iterator[str]:
    name, rest = names[0], names[1:]
    plain = _ESCAPED.sub(r"\1", name)
    if "*" not in _ESCAPED.sub("", name):
        path = folder + plain
        if rest:
            yield from _below(f"{path}/", rest, uid, bounds)
        elif os.path.lexists(path):
            yield path
        return
    if folder.startswith(_OF_THE_KERNEL):
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            bounds.count()
            if not fnmatch.fnmatchcase(entry.name, name) or (entry.name[0] == "." and name[0] != "."):
                continue
            if not rest:
                yield folder + entry.name
            elif _is_folder_of(entry, uid):
                yield from _below(f"{folder}{entry.name}/", rest, uid, bounds)


def _is_folder_of(entry: os.DirEntry[str], uid: int) -> bool:
    try:
        return entry.is_dir() and entry.stat(follow_symlinks=False).st_uid in (uid, 0)
    except OSError:  # a link in a circle, or to where this user may not look: anybody can make one in a shared folder
        return False


def _met_by_wildcards(pattern: str, path: str) -> list[str]:
    """The file and those of its folders that matched a wildcard: another user may have made one of that name."""
    names = path.split("/")
    wanted = pattern.split("/")
    return [path, *("/".join(names[: at + 1]) for at, name in enumerate(names) if glob.escape(name) != wanted[at])]


def start_of(path: str, *, job: int, attempt: int, began_s: float, limit_bytes: int) -> int | None:
    """Offset in bytes at which this attempt's output begins; None while that is not known yet.

    Args:
        began_s: Unix time at which the job began on this node.
        limit_bytes: only so much of the end of the file is searched.
    """
    status = Path(path).stat()
    if attempt == 0:
        return status.st_size if status.st_mtime < began_s - _OLD_S else 0
    marker = _MARKER.format(job=job, attempt=attempt).encode()
    begin = max(0, status.st_size - limit_bytes)
    with Path(path).open("rb") as file:
        file.seek(begin)
        content = file.read(limit_bytes)
    found = content.rfind(marker)
    return None if found < 0 else begin + found


def end_of(content: bytes, *, job: int, attempt: int) -> int | None:
    """Offset in ``content`` (whole lines) at which a later attempt's output begins; None if none does."""
    begins = _MARKER.format(job=job, attempt=r"(\d{1,9})").encode()
    if begins.partition(b"(")[0] not in content:
        return None
    found = re.finditer(rb"^%b\r?$" % begins, content, re.MULTILINE)
    return next((mark.start() for mark in found if int(mark[1]) > attempt), None)


def wait_for_start(
    pattern: str, *, uid: int, job: int, attempt: int, began_s: float, limit_bytes: int, over: bool = False
) -> tuple[str, int] | None:
    """Path and offset of this attempt's output; waits up to ``_WAIT_S`` for it. None when there is no file yet.

    ``over``: the attempt has ended, so that no process is left that shows which of an array's logs is its own.

    Raises:
        OSError: it cannot be read.
    """
    path = of_ended(pattern, uid, job, attempt, began_s) if over else newest(pattern, uid, job, attempt)
    if path is None:
        return None
    there = os.stat(path).st_size  # noqa: PTH116  # size before the search: what is written during it is ours
    until_s = time.monotonic() + _WAIT_S
    while True:
        offset = start_of(path, job=job, attempt=attempt, began_s=began_s, limit_bytes=limit_bytes)
        if offset is not None:
            return path, offset
        if time.monotonic() > until_s:
            return path, there
        time.sleep(0.1)
