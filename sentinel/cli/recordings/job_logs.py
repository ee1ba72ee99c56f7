"""Finds old logs in a folder, and the jobs that wrote them, by the ids in their names."""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sentinel.model.accounting import AccountedAttempt

MOST_LOGS_OF_JOB = 64  # output, errors, a few ranks
# As a word of its own or behind one (job4711), not a part of a random name (5f2e11ab).
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]*(\d+)(?![A-Za-z0-9])")


def old_logs(folder: Path) -> list[Path]:
    """Regular files below the folder, in a stable order; links are not followed, what may not be looked at is left out."""
    return sorted(path for path in folder.rglob("*") if _is_regular(path))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # gone, or in a folder of somebody who only lets others list it
        return False


def logs_by_job(folder: Path, attempts: Sequence[AccountedAttempt]) -> Mapping[int, list[Path]]:
    """The logs below ``folder`` by the job whose id stands in their names.

    A task of an array has a number of its own (``%j``), and is written as that of the array and of the task, too
    (``%A_%a``, ``5_1``); the array's number is also that of one of its tasks, so ``5_1`` must not be taken for job 5.
    """
    jobs = {attempt.job for attempt in attempts}
    tasks = {attempt.task: attempt.job for attempt in attempts if attempt.task is not None}
    found: dict[int, list[Path]] = {}
    for path in old_logs(folder):
        for job in jobs_in(path.name, jobs, tasks):
            own = found.setdefault(job, [])
            if len(own) < MOST_LOGS_OF_JOB:
                own.append(path)
    return found


def jobs_in(name: str, jobs: Collection[int], tasks: Mapping[tuple[int, int], int]) -> set[int]:
    """The jobs whose ids stand in the name of a log. ``tasks``: id of an array and number of the task -> job."""
    arrays = {array for array, _ in tasks}
    numbers = list(_NUMBER.finditer(name))
    found: set[int] = set()
    of_array = False  # the number before was an array's, and this one is its task's
    for number, after in itertools.zip_longest(numbers, numbers[1:]):
        # No job's id begins with 0, as months and days do, or is so long.
        job = int(number[1]) if len(number[1]) <= 10 and number[1][0] != "0" else 0
        if of_array:
            of_array = False
        elif job in arrays and after is not None and name[number.end() : after.start(1)] == "_":
            of_array = True
            found |= {tasks[task] for task in ((job, int(after[1])),) if task in tasks}
        elif job in jobs:
            found.add(job)
    return found
