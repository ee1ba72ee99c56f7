"""Finds a job's output file, and the position in it at which an attempt begins.

Slurm hands the prolog the output's name as the user wrote it (``%x-%j.out``); what the prolog does not know of it (the
job's name) becomes a wildcard. A restarted job appends to the log of the attempts before it: TaskProlog prints a line at
the start of each, and the follower begins there.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from pathlib import Path

from sentinel.agent.probes.job_processes import outputs_of

_TOKEN = re.compile(r"%([0-9]*)([A-Za-z%])")
_MOST_WIDTH = 10  # Slurm's own; a user may write any number
_MARKER = "sentinel: job {job} attempt {attempt} begins"
_WAIT_S = 5.0  # TaskProlog runs within moments of the prolog; where there is none, this is what it costs
_OLD_S = 2.0  # a log last written this long before the job began is not its own yet


_NUMBER = "[0-9]*"  # stands for an array's job or task, which the prolog does not know


def pattern_of(stdout: str, *, job: int, user: str, node: str, work_dir: str = "") -> str:
    """A glob pattern for the file that ``stdout`` names. What is not known becomes ``*``."""
    if not stdout.startswith("/"):
        stdout = f"{work_dir.rstrip('/')}/{stdout}"
    known = {"j": str(job), "J": str(job), "A": str(job), "u": user, "N": node.partition(".")[0], "n": "0", "t": "0",
             "s": "batch", "%": "%"}  # fmt: skip
    unknown = {"a": _NUMBER, "A": _NUMBER}
    if any(token[2] == "a" for token in _TOKEN.finditer(stdout)):
        del known["A"]  # the array's own job, not its task's
    made, end = [], 0
    for token in _TOKEN.finditer(stdout):
        made.append(glob.escape(stdout[end : token.start()]))
        width, letter = token.groups()
        value = known.get(letter, "")
        value = value.zfill(min(int(width[:4] or 0), _MOST_WIDTH)) if value.isdigit() else value
        made.append(glob.escape(value) if value else unknown.get(letter, "*"))
        end = token.end()
    return "".join((*made, glob.escape(stdout[end:])))


def newest(pattern: str, uid: int, job: int | None = None) -> str | None:
    """The file of that user that matches, the one written last if there are several; None while there is none.

    Slurm opens a job's output as its user; a file, folder or link of another user that matches, too, was put there. Of an
    array's files only the one that a process of this job writes is its own; without ``job`` the only one.
    """
    found = []
    for path in glob.glob(pattern):  # noqa: PTH207
        try:
            if any(os.lstat(met).st_uid not in (uid, 0) for met in _met_by_wildcards(pattern, path)):
                continue  # also a link to a file of the user's
            status = Path(path).stat()
        except FileNotFoundError:
            continue  # gone by now, or a link that leads nowhere
        if stat.S_ISREG(status.st_mode) and status.st_uid == uid:
            found.append((status.st_mtime, path))
    if _NUMBER in pattern:
        own = outputs_of(job, uid) if job is not None else None
        found = [item for item in found if (item[1] in own if own is not None else len(found) == 1)]
    return max(found)[1] if found else None


def _met_by_wildcards(pattern: str, path: str) -> list[str]:
    """The file, and each of its folders whose name is not the pattern's own: anybody may have chosen it."""
    names = path.split("/")
    wanted = pattern.split("/")
    return [path, *("/".join(names[: at + 1]) for at, name in enumerate(names) if glob.escape(name) != wanted[at])]


def start_of(path: str, *, job: int, attempt: int, began_s: float, limit_bytes: int) -> int | None:
    """Offset at which this attempt's output begins; None while that is not decided yet.

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


def wait_for_start(
    pattern: str, *, uid: int, job: int, attempt: int, began_s: float, limit_bytes: int
) -> tuple[str, int] | None:
    """Path and offset of this attempt's output, once it can be told; None when there is no file yet.

    Raises:
        OSError: it cannot be read.
    """
    path = newest(pattern, uid, job)
    if path is None:
        return None
    there = os.stat(path).st_size  # noqa: PTH116  # size before the search: what comes meanwhile is this attempt's
    until_s = time.monotonic() + _WAIT_S
    while True:
        offset = start_of(path, job=job, attempt=attempt, began_s=began_s, limit_bytes=limit_bytes)
        if offset is not None:
            return path, offset
        if time.monotonic() > until_s:
            return path, there
        time.sleep(0.1)
