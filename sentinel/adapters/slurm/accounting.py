"""Reads the past from Slurm's accounting: ``sacct`` over a slurmdbd, or what it printed into a file.

Asked for are only fields that users cannot fill with words of theirs, separated by a character that no name may hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from sentinel.adapters.slurm.hostlist import expand
from sentinel.adapters.slurm.process import Commands
from sentinel.config.settings import Slurm
from sentinel.errors import SentinelError
from sentinel.model.accounting import AccountedAttempt

FIELDS = ("JobIDRaw", "User", "Partition", "State", "ExitCode", "Start", "End", "AllocTRES", "NodeList")
DELIMITER = "|"  # no user, partition, TRES or node name holds it
DEADLINE_S = 600.0  # a month of a large site is a million rows, and slurmdbd is asked once
MOST_BYTES = 2 << 30
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)")
_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]{1,64}=(\d{1,9})(?=,|$)")


def arguments(since: datetime, until: datetime) -> list[str]:
    """The arguments of ``sacct``: allocations of all users, each attempt of a requeued job on its own, times in UTC."""
    form = "%Y-%m-%dT%H:%M:%S"
    return [
        "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
        f"--starttime={since.astimezone(UTC).strftime(form)}", f"--endtime={until.astimezone(UTC).strftime(form)}",
        f"--format={','.join(FIELDS)}",
    ]  # fmt: skip


async def ask(settings: Slurm, since: datetime, until: datetime) -> bytes:
    """What sacct prints.

    Raises:
        Unavailable: there is no sacct, or slurmdbd does not answer.
        SlurmSaidNo: it refuses.
    """
    environment = {"SLURM_CONF": settings.conf, "SLURM_TIME_FORMAT": "standard"} if settings.conf else {}
    commands = Commands(bin=settings.bin or None, environment=environment, deadline_s=DEADLINE_S)
    return await commands.run("sacct", *arguments(since, until))


def read(text: str, now: datetime) -> tuple[list[AccountedAttempt], list[int]]:
    """The attempts that began, in order of time, and the numbers of the lines that could not be read.

    An attempt that runs still ends ``now``. What never began (pending, cancelled before) is left out.
    """
    found: list[tuple[datetime, list[str], datetime]] = []
    unread: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split(DELIMITER)
        try:
            if len(fields) != len(FIELDS):
                raise ValueError(line)
            started = _time(fields[5])
            ended = now if fields[6] == "Unknown" else _time(fields[6])
            int(fields[0])
        except (ValueError, OverflowError):
            if len(fields) == len(FIELDS) and fields[5] in ("Unknown", "None"):
                continue
            unread.append(number)
            continue
        found.append((started, fields, ended))
    count: Counter[int] = Counter()
    attempts = []
    for started, fields, ended in sorted(found, key=lambda row: row[0]):
        job = int(fields[0])
        attempts.append(_attempt(job, count[job], fields, started, ended))
        count[job] += 1
    return attempts, unread


def _time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _attempt(job: int, attempt: int, fields: Sequence[str], started: datetime, ended: datetime) -> AccountedAttempt:
    code, _, signal = fields[4].partition(":")
    return AccountedAttempt(
        job=job,
        attempt=attempt,
        user=fields[1],
        partition=fields[2],
        state=fields[3].split(" ")[0].rstrip("+").lower(),  # "CANCELLED by 1000"
        exit_code=int(code) if code.isdecimal() else None,
        exit_signal=int(signal) if signal.isdecimal() else None,
        started_at=started,
        ended_at=max(started, ended),
        gpus=_gpus(fields[7]),
        nodes=_nodes(fields[8]),
    )


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
