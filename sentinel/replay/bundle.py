"""Bundles: a recording as one compressed file, for a replay elsewhere, a bug report, or a vendor's ticket.

gzip of JSON lines. The first line says what it is, the last one how many records there are: without it the file is torn.
What is read is data of a stranger: sizes are bounded, and every record is decoded strictly.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sentinel import __version__
from sentinel.errors import FileError, ProtocolError
from sentinel.model.orders import MOST_ATTEMPT, MOST_JOB
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import Evidence
from sentinel.text import json_with_bytes
from sentinel.wire import record_from, to_text

FORMAT = "sentinel-bundle"
VERSION = 1  # raised when an older release could not read it
MOST_LINE_BYTES = 16 << 20  # an incident with all grounds of its verdict takes 100 kB
MOST_BYTES = 1 << 30  # unpacked; 90 days of 2,048 nodes take about 300 MB
MOST_RECORDS = 2_000_000  # half a kilobyte of memory each
MOST_RATIO, RATIO_FROM_BYTES = 200, 32 << 20  # unpacked to packed, of a large one; JSON of records has 10 to 40
# A replay adds to times and takes from them, which ends in an error at the ends of the calendar.
# A node whose clock was never set says 1970.
EARLIEST, LATEST = datetime(1969, 12, 31, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)

_KINDS: Mapping[str, type[Any]] = {"evidence": Evidence, "incident": RecordedIncident, "attempt": RecordedAttempt}
T = TypeVar("T")


def write_bundle(path: Path, lines: Iterable[Mapping[str, Any]], *, anonymised: bool) -> int:
    """Write ``lines`` (see ``lines_of``) to a new file, readable by its owner only. Returns the number of records.

    Raises:
        FileError: the file is there already, or cannot be written.
    """
    count = 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as raw, gzip.open(raw, "wt", encoding="utf-8") as out:
            out.write(
                json.dumps({"format": FORMAT, "version": VERSION, "release": __version__, "anonymised": anonymised})
            )
            for line in lines:
                out.write("\n" + json.dumps(line))
                count += 1
            out.write("\n" + json.dumps({"records": count}) + "\n")
    except FileExistsError as error:
        raise FileError(path, "is there already", fix="name another file with --out, or remove this one") from error
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}", fix="name another file with --out") from error
    return count


def lines_of(recording: Recording) -> Iterator[dict[str, Any]]:
    """The records of a recording as JSON objects ``{kind: record}``."""
    for kind, items in (
        ("attempt", recording.attempts), ("evidence", recording.evidence), ("incident", recording.incidents),
    ):  # fmt: skip
        for item in items:
            yield {kind: json_with_bytes(to_text(item))}


def read_bundle(path: Path) -> Recording:
    """
    Raises:
        FileError: not a bundle, torn, from a newer release, or larger than a bundle can be; with the line where it has one.
    """
    lines = _lines(path)
    head = next(lines, (0, None))[1]
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FileError(path, "is not a bundle", fix="name a file that `sentinel bundle` wrote, or a store", line=1)
    if head.get("version") != VERSION:
        made_by = f"{head.get('release')!r:.40}"
        raise FileError(
            path, f"has format {head.get('version')!r:.20} of release {made_by}; this release reads {VERSION}",
            fix="read it with that release, or a newer one", line=1,
        )  # fmt: skip
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    count = unreadable = 0
    ended = False
    for number, line in lines:
        if ended:
            raise FileError(path, "goes on after its end", fix="export it again", line=number)
        if isinstance(line, dict) and line.keys() == {"records"}:
            ended = True
            if line["records"] != count:
                raise _torn(path, number)
            continue
        count += 1
        kind, record = next(iter(line.items())) if isinstance(line, dict) and len(line) == 1 else ("", None)
        try:
            made = record_from(_KINDS[kind], record)
            if not all(EARLIEST < at < LATEST for at in _times_of(made)):
                raise ProtocolError("at no time that a clock of ours shows")
            if not all(0 < job <= MOST_JOB and 0 <= attempt <= MOST_ATTEMPT for job, attempt in _attempts_of(made)):
                raise ProtocolError("an attempt that Slurm does not number so")
            found[kind].append(made)
        except (KeyError, ProtocolError):
            unreadable += 1  # one that is not understood hides no other
    if not ended:
        raise _torn(path, None)
    return Recording(
        evidence=tuple(sorted(found["evidence"], key=_time_of)),
        incidents=tuple(sorted(found["incident"], key=_time_of)),
        attempts=tuple(sorted(found["attempt"], key=_time_of)),
        unreadable=unreadable,
    )


def _attempts_of(record: Evidence | RecordedIncident | RecordedAttempt) -> list[tuple[int, int]]:
    """The attempts that it names, with their jobs."""
    named: list[tuple[int | None, int | None]]
    match record:
        case Evidence():
            named = [(record.where.job, record.where.attempt)]
        case RecordedIncident():
            steps = record.plan.steps if record.plan is not None else ()
            named = [(record.incident.job, record.incident.attempt), *((step.job, step.attempt) for step in steps)]
        case RecordedAttempt():
            named = [(record.job, record.attempt)]
    return [(1 if job is None else job, attempt or 0) for job, attempt in named]


def _time_of(record: Evidence | RecordedIncident | RecordedAttempt) -> datetime:
    """By which it is put in order."""
    match record:
        case Evidence():
            return record.seen_at
        case RecordedIncident():
            return record.incident.opened_at
        case _:
            return record.started_at


def _times_of(record: Evidence | RecordedIncident | RecordedAttempt) -> Iterator[datetime]:
    """Every time to which a replay adds, or which it compares."""
    found: list[datetime | None]
    match record:
        case Evidence():
            found = [record.at, record.seen_at]
        case RecordedIncident():
            known, plan = record.incident, record.plan
            steps = [(row.intended_at, row.outcome.at if row.outcome is not None else None) for row in record.steps]
            found = [known.opened_at, known.updated_at, known.closed_at, *(at for both in steps for at in both)]
            found += [plan.at, *(wait.since for wait in plan.waits)] if plan is not None else []
        case _:
            found = [record.started_at, record.ended_at]
    for at in found:
        if at is not None:
            if at.utcoffset() is None:
                raise ProtocolError("a time without its zone")
            yield at


def _torn(path: Path, line: int | None) -> FileError:
    return FileError(path, "is torn: its end is missing", fix="export or copy it again", line=line)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of each line."""
    size = 0
    try:
        packed = path.stat().st_size
        with gzip.open(path, "rb") as file:
            number = 0
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                size += len(line)
                bomb = size > RATIO_FROM_BYTES and size > MOST_RATIO * packed
                if len(line) > MOST_LINE_BYTES or size > MOST_BYTES or number > MOST_RECORDS or bomb:
                    most = f"{MOST_LINE_BYTES >> 20} MiB a line, {MOST_BYTES >> 30} GiB and {MOST_RECORDS:,} records in all"
                    raise FileError(path, f"is larger than a bundle can be ({most})", fix="export less", line=number)
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise FileError(path, "is not JSON", fix="export or copy it again", line=number) from error
    except EOFError as error:
        raise _torn(path, None) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise FileError(path, "is not a bundle", fix="name a file that `sentinel bundle` wrote, or a store") from error
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix="name a readable file") from error
