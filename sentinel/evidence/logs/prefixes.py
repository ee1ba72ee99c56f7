"""What stands around a message: colours, carriage returns, rank and host prefixes, times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate

ANSI = re.compile(rb"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_PRINTED = {
    **dict.fromkeys(map(str.encode, "\u2018\u2019"), b"'"),
    **dict.fromkeys(map(str.encode, "\u201c\u201d"), b'"'),
    "\u00a0".encode(): b" ",
    "\u2013".encode(): b"--",
    "\u2026".encode(): b"...",
    "\u200b".encode(): b"",
}
_TYPED = re.compile(b"|".join(_PRINTED))
_OF_ENTITY = {
    b"quot": b'"',
    b"#34": b'"',
    b"#39": b"'",
    b"#x27": b"'",
    b"apos": b"'",
    b"lt": b"<",
    b"gt": b">",
    b"nbsp": b" ",
    b"amp": b"&",
}
_ENTITY = re.compile(rb"&(%s);" % b"|".join(_OF_ENTITY))
# Also behind the time that a container's runtime writes.
_RANK_FIRST = re.compile(
    r"\s*(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z )?(?:\[(?:rank|default)\s?(\d{1,6})\]|(\d{1,6}): )"
)
_RANK = re.compile(
    r"\[Rank (\d{1,6})\]|\bRank[ =:](\d{1,6})\b|\brank(\d{1,6})\]|\[\d{1,6}:(\d{1,6})\]|\| ?rank (\d{1,6})\b"
)
_RANK_LATER = re.compile(r"\[default(\d{1,6})\]:")  # torchrun's, behind another time or a container's name
_NCCL = re.compile(r"(?:^|[\s\]])([A-Za-z][\w.-]{0,63}):\d{1,8}:\d{1,8} (?:\[\d{1,2}\]|NCCL)")
# The month of syslog's time, as the locale of whoever asked the journal for it writes it (nov, févr., Mär, 11月); not what a
# training counts before the time of day (Epoch 12 10:03:22 train loss: 0.3).
_COUNTED = r"(?i:epoch|steps?|iter|batch|round|fold|phase|pass|rank|task|job|run|node|loss|line|info)"
MONTH = rf"(?!{_COUNTED}\b)(?:[^\W\d_]{{3,5}}\.?|\d{{1,2}}[月월])"
_MONTH = rb"(?:[A-Za-z\x80-\xf4]{3,9}\.?|\d{1,2}(?:\xe6\x9c\x88|\xec\x9b\x94))"
_SYSLOG = re.compile(
    rf"^(?:<\d+>)?(?:{MONTH} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{{0,16}})"
    r" ([A-Za-z0-9][\w.-]{0,63}) \S{1,40}?:"
)
_SYSLOG_MARK = re.compile(r" (?:kernel|slurmd|slurmstepd|systemd|nv-hostengine|nvidia-fabricmanager)(?:\[\d+\])?: ")
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)  # fmt: skip
_UPTIME = re.compile(r"^(?:<\d+>)?\[\s{0,8}(\d{1,9}\.\d{1,6})\]")
# A line of a service's log, also where it was copied into another one: its "Permission denied" is about its own files, not
# the user's. The service's name must begin it, after time and host, or it must name Slurm's own functions or folders: a
# program's own lines may begin with a time and "error:", too. Not slurmstepd's, and not PBS's of class Job: these speak of
# the job.
_TIME_AND_HOST = (
    rb"(?:<\d{1,3}>)?(?:(?:(?:[A-Z][a-z]{2} )?(?:%s [ \d]\d (?:\d{4} )?|\d{4}-\d\d-\d\d[T ])\d\d:\d\d:\d\d"
    rb"(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,5})?|\[[\dT:. -]{1,32}\]) (?:[A-Za-z0-9][\w.-]{0,63} )?)?" % _MONTH
)
DAEMON = re.compile(
    rb"(?:\[20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?\] (?:_slurm_|(?:error|fatal): (?!execve)[^\n]{0,120}?"
    rb"(?:\b_slurm_|/(?:etc|run|var/(?:lib|log|run|spool))/(?:slurm|munge)|\bslurm\w{0,8}\.conf\b))"
    rb"|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:\.\d{1,6})?;[\da-fA-F]{2,4};(?:pbs_|PBS_Server|Server)[\w.@-]{0,80};(?!Job;)"
    rb"|%s(?:slurm(?:ctld|d|dbd|restd)(?:\[\d{1,10}\])?: (?:slurm\w{1,6}: )?(?:error|fatal): "
    rb"|(?:Starting [\w ]{1,24}: )?(?:pbs_(?:mom|server|sched|comm)|munged|systemd|kernel|nv-hostengine|nv-fabricmanager"
    rb"|nvidia-(?:persistenced|imex))(?:\[\d{1,10}\])?: ))" % _TIME_AND_HOST
)
# systemd's own words, in the journal or, early in a boot, in the kernel's log.
SYSTEMD = re.compile(
    rb"(?:%s|\[ {0,6}\d{1,8}\.\d{6}\] )(?:systemd(?:-\w{1,20})?|\(sd-\w{1,20}\))\[\d{1,10}\]: " % _TIME_AND_HOST
)
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Prefix:
    rank: int | None = None
    node: str | None = None


def clean(block: bytes) -> bytes:
    """Colours and escapes removed, carriage returns as line ends (a progress bar is many lines), typed quotes as printed.

    Forums and mail programs put curved quotes, blanks that do not break and HTML's entities into what is pasted there.
    """
    if b"\x1b" in block:
        block = ANSI.sub(b"", block)
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not block.isascii() and (b"\xe2\x80" in block or b"\xc2\xa0" in block):
        block = _TYPED.sub(lambda found: _PRINTED[found[0]], block)
    if b"&" in block and _ENTITY.search(block):
        block = _ENTITY.sub(lambda found: _OF_ENTITY[found[1]], block)
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    return block


def lines_of_log(block: bytes) -> list[int]:
    """For each line that ``clean`` makes of the block which of its own lines it is of; empty where all are the same.

    An editor counts a progress bar as one line, whatever was drawn over it.
    """
    if b"\r" not in block or block.count(b"\r") == block.count(b"\r\n"):  # looked for first: counting takes longer
        return []
    return list(accumulate((end != b"\r" for end in _LINE_END.findall(block)), initial=0))


def clean_own(block: bytes) -> bytes:
    """The same for a machine's own log: in it a carriage return, or an escape that hides text, is part of a user's name."""
    if b"\x1b" in block:
        block = _COLOUR.sub(b"", block)
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"?")
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    return block


def prefix_of(line: str) -> Prefix:
    """Rank and host that the line's own prefix names; None where it names none."""
    head = line[:240]  # plain words are looked for first: every step line of a log comes here
    found = _RANK_FIRST.match(head) or (_RANK.search(head) if "ank" in head or "[" in head else None)
    if found is None and "[default" in head:
        found = _RANK_LATER.search(head)
    rank = int(next(group for group in found.groups() if group is not None)) if found else None
    node = None
    host = (_NCCL.search(head) if "NCCL" in head or " [" in head else None) or (
        _SYSLOG.match(head) if _SYSLOG_MARK.search(head) else None
    )
    if host is not None:
        node = host[1]
    return Prefix(rank, node)


def time_of(line: str, *, zoned: bool = False) -> datetime | None:
    """The line's own time where it holds a full date; without a zone it is read as UTC, or not at all if ``zoned``."""
    found = _ISO.search(line[:120])
    if not found or (zoned and not found[8]):
        return None
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    fraction = int((found[7] or "0")[:6].ljust(6, "0"))
    offset = UTC
    if found[8] and found[8] != "Z":
        sign = -1 if found[8][0] == "-" else 1
        offset = timezone(sign * timedelta(hours=int(found[8][1:3]), minutes=int(found[8][-2:])))
    try:
        return datetime(year, month, day, hour, minute, second, fraction, offset).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def uptime_of(line: str) -> float | None:
    """Seconds since boot of a kernel line, where it prints them."""
    found = _UPTIME.match(line)
    return float(found[1]) if found else None
