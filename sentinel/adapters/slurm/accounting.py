"""Reads the past from Slurm's accounting: ``sacct`` over a slurmdbd, or what it printed into a file.

Asked for are only fields that users cannot fill with words of theirs, separated by a character that no name may hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from sentinel.adapters.slurm.process import Commands
from sentinel.config.settings import Slurm
from sentinel.errors import SentinelError, Timeout, Unavailable
from sentinel.model.accounting import AccountedAttempt
from sentinel.model.hostlist import expand
from sentinel.text import whole_number

FIELDS = ("JobIDRaw", "User", "Partition", "State", "ExitCode", "Start", "End", "AllocTRES", "NodeList", "JobID")
LEAST_FIELDS = 9  # without JobID nothing tells the tasks of job arrays apart
DELIMITER = "|"  # no user, partition, TRES or node name holds it
DEADLINE_S = 600.0  # a month of a large site is a million rows, and slurmdbd is asked once
MOST_BYTES = 2 << 30
_ELSEWHERE = (
    "sacctmgr show cluster says whether slurmdbd is there; --from takes what sacct printed on another host; where the site "
    "keeps no accounting, sentinel replay FOLDER goes by job logs alone"
)
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)  # Slurm is younger
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)")
_TASK = re.compile(r"(\d{1,10})_(\d{1,7})")
_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]{1,64}=(\d{1,9})(?=,|$)")


def arguments(since: datetime, until: datetime) -> list[str]:
    """The arguments of ``sacct``: allocations of all users, each attempt of a requeued job on its own, times in UTC.

    Of this cluster alone: nodes of a federation's others may have the same names.
    """
    form = "%Y-%m-%dT%H:%M:%S"
    return [
        "--local", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
        f"--starttime={since.astimezone(UTC).strftime(form)}", f"--endtime={until.astimezone(UTC).strftime(form)}",
        f"--format={','.join(FIELDS)}",
    ]  # fmt: skip


async def ask(settings: Slurm, since: datetime, until: datetime) -> bytes:
    """What sacct prints.

    Raises:
        Unavailable: there is no sacct or no accounting, or slurmdbd does not answer, or refuses.
    """
    environment = {"SLURM_CONF": settings.conf, "SLURM_TIME_FORMAT": "standard"} if settings.conf else {}
    commands = Commands(bin=settings.bin or None, environment=environment, deadline_s=DEADLINE_S)
    try:
        return await commands.run("sacct", *arguments(since, until))
    except Timeout:
        raise
    except SentinelError as error:  # the error's own words speak of slurmctld, which was not asked
        said = error.message.removeprefix("slurmctld did not answer: ")
        raise Unavailable(f"Slurm's accounting (slurmdbd) gave no answer: {said}", fix=_ELSEWHERE) from error


def read(text: str, now: datetime | None) -> tuple[list[AccountedAttempt], list[int]]:
    """The attempts that began, in order of time, and the numbers of the lines that could not be read.

    An attempt that runs still ends ``now``; None: at the newest time of the text, which is when it was printed or sooner.
    What never began (pending, cancelled before) is left out. An attempt that stands there twice, as where two outputs that
    overlap were put together, counts once: with its end, where that was known to one of them, as the later row says it.
    """
    rows: dict[tuple[str, datetime], tuple[datetime, list[str], datetime | None]] = {}
    unread: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split(DELIMITER)
        try:
            if not LEAST_FIELDS <= len(fields) <= len(FIELDS):
                raise ValueError(line)
            started = _time(fields[5])
            ended = None if fields[6] == "Unknown" else _time(fields[6])
            if not _number(fields[0]) or (ended is not None and ended < started):
                raise ValueError(line)
        except (ValueError, OverflowError):
            if len(fields) >= LEAST_FIELDS and fields[5] in ("Unknown", "None"):
                continue
            unread.append(number)
            continue
        before = rows.get((fields[0], started))
        if before is None or ended is not None or before[2] is None:
            rows[fields[0], started] = (started, fields, ended)
    found = list(rows.values())
    newest = max((ended or started for started, _, ended in found), default=None)
    count: Counter[int] = Counter()
    attempts = []
    for started, fields, ended in sorted(found, key=lambda row: row[0]):
        job = _number(fields[0]) or 0
        attempts.append(_attempt(job, count[job], fields, started, ended or now or newest or started))
        count[job] += 1
    return attempts, unread


def _time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if not EARLIEST < at < LATEST:
        raise ValueError(text)
    return at


def _attempt(job: int, attempt: int, fields: Sequence[str], started: datetime, ended: datetime) -> AccountedAttempt:
    code, _, signal = fields[4].partition(":")
    task = _TASK.fullmatch(fields[9]) if len(fields) > LEAST_FIELDS else None
    return AccountedAttempt(
        job=job,
        attempt=attempt,
        user=fields[1],
        partition=fields[2],
        state=fields[3].split(" ")[0].rstrip("+").lower(),  # "CANCELLED by 1000"
        exit_code=_number(code),
        exit_signal=_number(signal),
        started_at=started,
        ended_at=max(started, ended),
        gpus=_gpus(fields[7]),
        nodes=_nodes(fields[8]),
        task=(int(task[1]), int(task[2])) if task is not None else None,
    )


def _number(text: str) -> int | None:
    return whole_number(text, digits=10)  # Slurm's are of 32 bits


def _gpus(tres: str) -> int | None:
    plain = _GPUS.search(tres)
    if plain is not None:
        return int(plain[1])
    typed = [int(count) for count in _TYPED.findall(tres)]
    return sum(typed) if typed else 0 if tres else None


def _nodes(text: str) -> tuple[str, ...]:
    if text in ("", "None assigned"):
        return ()
    try:
        return expand(text)
    except SentinelError:
        return ()  # not known
