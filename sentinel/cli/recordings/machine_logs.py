"""Of a machine's old log: which node its name says, and when a line was written that states no full date as ISO does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sentinel.cli.offline.classify_input import source_of
from sentinel.model.records import Evidence, Source

_WORD = re.compile(r"[\w-]+")
# dmesg-n7.txt, kern.log.n7, slurmd_n7-20261102.log: what is behind the log's own name.
_BEHIND = re.compile(
    r"(?i)(?:dmesg|kern(?:el)?[._-]?log|kmsg|messages|syslog|journal(?:ctl)?|slurm(?:ctld|d|dbd)|nv-hostengine"
    r"|dcgm|fabricmanager)(?P<mark>[-_.])(?P<rest>.+)"
)
_ROTATED = re.compile(r"[-_.]\d[\dT-]*$")  # by number or date
_SURE = re.compile(r"(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[\w-]+")  # a word like a node's name: dmesg-old.txt names none
# dmesg -T states the year behind the time, syslog's default none.
_DATE = re.compile(
    r"(?:<\d+>)?\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<day>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)?"
    r"(?: (?P<year>\d{4})\b)?"
)
_CLOCKS = timedelta(days=1)  # a job may have been accounted for in another zone than the node's


def node_of(path: Path, folder: Path, nodes: Collection[str]) -> str | None:
    """The node whose name is a word of the path, or is behind the log's own name; of a machine's own log in a folder of its
    own, that folder's name. ``nodes``: those that are known; empty where none is."""
    if source_of(path) is Source.JOB_LOG:
        return None
    below = path.relative_to(folder)
    behind = list(_behind(path.name))
    words = (word for part in reversed(below.parts) for word in (part, *map(str, _WORD.findall(part))))
    named = next((word for word in (*behind, *words) if word in nodes), None)
    if named is not None or nodes:
        return named
    sure = next((word for word in behind[1:] if _SURE.fullmatch(word)), None)
    return below.parent.name if sure is None and len(below.parts) > 1 else sure


def _behind(name: str) -> Iterator[str]:
    """What is behind the log's own name; then its first word, where a dash leads to it; then without a date or number."""
    match = _BEHIND.match(name)
    if match is None:
        return
    yield match["rest"]
    word = _WORD.match(match["rest"])
    if match["mark"] == "." or word is None:
        return
    yield from (_ROTATED.sub("", word[0]), word[0])


def dated(items: Sequence[Evidence], now: datetime, span: tuple[datetime, datetime] | None) -> list[Evidence]:
    """The items of one log, those without a time (``now``) with the date that begins their line, read as UTC.

    ``span``: from the first attempt of a job to the last: a date without a year is of the one that falls into it, where that
    is one alone.
    """
    return [item if item.at != now else replace(item, at=_date_of(item.text, span) or now) for item in items]


def _date_of(text: str, span: tuple[datetime, datetime] | None) -> datetime | None:
    match = _DATE.match(text)
    if match is None:
        return None
    years = [int(match["year"])] if match["year"] else range(span[0].year - 1, span[1].year + 2) if span else ()
    found = []
    for year in years:
        try:
            at = datetime.strptime(f"{year} {match['day']}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:  # 29 February of another year
            continue
        if match["year"] or (span and span[0] - _CLOCKS <= at <= span[1] + _CLOCKS):
            found.append(at)
    return found[0] if len(found) == 1 else None
