"""Reads several logs, or one large log in parts, on all cores; the answer is that of reading them one after another."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sentinel.cli.offline.log_blocks import blocks, next_data, oldest_first
from sentinel.cli.offline.progress_bar import byte_bar
from sentinel.evidence.logs.limits import Limits
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.evidence.logs.run_starts import MOST
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id
from sentinel.model.vocabulary import LOG_LINE

KEEP_STEPS = 64  # last step lines kept for the verdict
PART_BYTES = 32 << 20  # a fraction of a second's work
LEAST_PARTED = 2 * PART_BYTES  # bytes of a file from which starting processes pays
LEAST_TOGETHER = 8 << 20  # bytes of several files from which it pays
LONGEST_LINE = 1 << 20  # bytes in which a part looks for the end of a line
MOST_PROCESSES = 32  # more wait for the disk
_WRITTEN = re.compile(rb"[^\s\0]")
_PROGRESS = frozenset({"pause", "resumed", "timers"})

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Log:
    """A file, or the part of it from ``start`` to ``end``."""

    file: Path
    source: Source
    node: str | None
    start: int = 0
    end: int | None = None


def read_log(log: Log, signatures: Signatures, now: datetime) -> list[Evidence]:
    """Evidence of one log, by line."""
    return _read(log, signatures, now).evidence


def read_whole(log: Log, signatures: Signatures, now: datetime) -> tuple[list[Evidence], bool]:
    """The same, and whether there is anything in it but white space and zeros."""
    read = _read(log, signatures, now)
    return read.evidence, read.written


def may_be_parted(file: Path) -> bool:
    return str(file) != "-" and file.is_file() and file.stat().st_size >= LEAST_PARTED


def together(paths: Sequence[Path]) -> bool:
    """Whether several paths are so long that they are worth processes of their own."""
    try:
        files = [path for path in paths if path.is_file()]
        return len(files) == len(paths) > 1 and sum(path.stat().st_size for path in files) >= LEAST_TOGETHER
    except OSError:  # one may not be looked at; the others are read one after the other
        return False


def read_parts(log: Log, signatures: Signatures, now: datetime) -> list[Evidence]:
    """The same for a large file, in parts that end where lines end."""
    parts = list(_parts(log))
    found: list[Evidence] = []
    steps: list[Evidence] = []
    latest: dict[object, Evidence] = {}  # of units that have enough, the last one
    limits = Limits()
    lines = added = 0
    size = log.file.stat().st_size
    with byte_bar(log.file.name, size, drawn=_function is None) as advance:  # not by several processes over each other
        results = on_all_cores(lambda part: _read(part, signatures, now), parts)
        for part, read in zip(parts, results, strict=True):
            moved = [_moved(item, lines, added) for item in read.evidence] if lines else read.evidence
            steps = [*steps, *(item for item in moved if item.kind == Kind.STEP)][-KEEP_STEPS:]
            for item in moved:
                if item.kind == Kind.STEP:
                    continue
                taken = limits.takes(item.trust, item.rule, item.where, item.data)
                if taken:
                    found.append(item)
                elif taken is None:
                    latest[item.trust, item.rule, item.where] = item
            lines, added = lines + read.lines, added + read.added
            advance((part.end or size) - part.start)
    return [*found, *latest.values(), *steps]


def on_all_cores(function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Results in order. Where processes cannot be had, or one was killed, the rest is done here."""
    cores = min(len(os.sched_getaffinity(0)), len(tasks), MOST_PROCESSES)
    done = 0
    if cores > 1 and _function is None:  # a worker starts no workers of its own
        try:
            fork = multiprocessing.get_context("fork")  # the compiled patterns are there without being sent
            with ProcessPoolExecutor(cores, fork, _remember, (function,)) as pool:
                for result in pool.map(_call, tasks):
                    done += 1
                    yield result
        except (BrokenProcessPool, OSError):
            pass
    yield from map(function, tasks[done:])


_function: Callable[[Any], Any] | None = None  # in a worker: what it is for


def _remember(function: Callable[[Any], Any]) -> None:
    global _function  # noqa: PLW0603
    _function = function


def _call(task: Any) -> Any:
    assert _function is not None
    return _function(task)


class _Read(NamedTuple):
    evidence: list[Evidence]
    lines: int
    added: int  # of them, those that are not lines of the log
    written: bool  # whether there is anything but white space and zeros


def _read(log: Log, signatures: Signatures, now: datetime) -> _Read:
    where = Where(node=log.node, path=str(log.file))
    beginning = b"" if log.start == 0 else next(iter(blocks(log.file, 0, MOST)), None)
    reader = LogReader(
        signatures,
        source=log.source,
        where=where,
        own_times=True,
        last_steps=KEEP_STEPS,
        beginning=beginning,
    )
    found: list[Evidence] = []
    written = False
    given, turned = blocks(log.file, log.start, log.end), 0
    if not log.start and log.end is None:
        given, turned = oldest_first(given)
    for block in given:
        written = written or _WRITTEN.search(block) is not None
        found.extend(item for item in reader.feed(block, now) if item.kind not in _PROGRESS)
    found.extend(item for item in reader.finish(now, ends=log.end is None) if item.kind not in _PROGRESS)
    found = [_turned(item, turned) for item in found] if turned else found
    return _Read(found, reader.lines_read, reader.lines_added, written)


def _turned(item: Evidence, lines: int) -> Evidence:
    """Evidence of a log that was turned round: it says which line of the log it is, and keeps the order of its own."""
    of_log = int(item.data.get(LOG_LINE, item.line) or 0)
    return replace(item, data={**item.data, LOG_LINE: lines + 1 - of_log}) if of_log else item


def _moved(item: Evidence, lines: int, added: int) -> Evidence:
    """Evidence of a part as evidence of the file, above whose part so many lines were read and added."""
    line = (item.line or 0) + lines
    of_log = item.data.get(LOG_LINE, item.line)
    data = {**item.data, LOG_LINE: int(of_log or 0) + lines - added} if added or LOG_LINE in item.data else item.data
    return replace(item, line=line, id=stable_id(item.id, line), data=data)


def _parts(log: Log) -> Iterator[Log]:
    size = log.file.stat().st_size
    start, target = 0, PART_BYTES
    with log.file.open("rb") as file:
        while target < size - PART_BYTES // 2 and (data := next_data(file.fileno(), target)) is not None:
            file.seek(data)
            end = file.read(LONGEST_LINE).find(b"\n")
            if end >= 0:
                yield replace(log, start=start, end=data + end + 1)
                start = data + end + 1
            target = data + PART_BYTES
    yield replace(log, start=start)
