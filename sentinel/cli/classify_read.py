"""What ``sentinel classify`` reads: files, pipes and folders, in constant memory, into evidence."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sentinel.classify.hang import HangFinding, analyse
from sentinel.collectives import RankTrace, Unreadable
from sentinel.errors import UserError
from sentinel.evidence.error_file import read_error_file
from sentinel.evidence.flight_recorder import named_as_dump, read_dump
from sentinel.evidence.logs import LogReader, Signatures
from sentinel.model import Evidence, Kind, Source, Where, stable_id

BLOCK = 1 << 20  # bytes read at a time
FILES_IN_FOLDER = 4096  # of one failure; more is not one failure's folder
READ_DEADLINE_S = 30.0  # for a FIFO that nobody writes to
KEEP_STEPS = 64  # last step lines kept for the verdict
_PROGRESS = frozenset({"pause", "resumed", "timers"})

# Names that a machine gives its own logs. Content never makes a file trusted: a program can print anything.
_KERNEL_NAME = re.compile(r"(?i)^(?:dmesg|kern(?:el)?[._-]?log|kmsg|messages|syslog|journal(?:ctl)?)\b")
_SLURM_NAME = re.compile(r"(?i)^slurm(?:ctld|d|dbd)\b")
_DCGM_NAME = re.compile(r"(?i)^(?:dcgm|nv-hostengine|fabricmanager)")
ERROR_FILE_BYTES = 1 << 20  # of one worker's error file
EPOCH = datetime(1970, 1, 2, tzinfo=UTC)
DUMP_BYTES = 1 << 28  # of one flight-recorder dump


def read_path(
    path: Path, signatures: Signatures, now: datetime, *, source: str = "auto", node: str | None = None
) -> tuple[list[Evidence], list[str]]:
    """Evidence of one path, and what could not be read. A folder is one failure; its dumps are analysed together."""
    evidence: list[Evidence] = []
    problems: list[str] = []
    traces: list[RankTrace] = []
    torn: list[Unreadable] = []
    for file in _files(path, problems):
        try:
            if path.is_dir() and named_as_dump(file.name) and _dump(file, traces, torn):
                continue
            if source == "auto" and (written := _error_file(file, signatures, node, now)):
                evidence.extend(written)
                continue
            evidence.extend(_read(file, signatures, now, source, node))
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
        except UserError as error:
            problems.append(error.message)
    if traces:
        evidence.append(_hang(analyse(traces, torn), path, now))
    return evidence, problems


def _dump(file: Path, traces: list[RankTrace], torn: list[Unreadable]) -> bool:
    """Whether the file is a flight-recorder dump, readable or not."""
    if file.stat().st_size > DUMP_BYTES:
        return False
    found = read_dump(file.read_bytes(), str(file))
    if isinstance(found, RankTrace):
        traces.append(found)
    elif isinstance(found, Unreadable):
        torn.append(found)
    return found is not None


def _error_file(file: Path, signatures: Signatures, node: str | None, now: datetime) -> list[Evidence]:
    """What torchelastic's error file of one worker says; nothing where the file is none."""
    if not file.name.endswith(".json") or not file.is_file() or file.stat().st_size > ERROR_FILE_BYTES:
        return []
    content = file.read_bytes()
    if not content.lstrip().startswith(b'{"message"'):
        return []
    found = read_error_file(content, Where(node=node, path=str(file)), signatures, EPOCH, now)
    return [] if any(item.kind == Kind.UNREADABLE for item in found) else found  # then it is a log of JSON lines


def _hang(finding: HangFinding, path: Path, now: datetime) -> Evidence:
    """What the dumps of all ranks show, as one evidence."""
    return Evidence(
        id=stable_id("flight-recorder", path, finding.kind, finding.culprit_ranks, finding.sequence),
        at=now,
        seen_at=now,
        source=Source.FLIGHT_RECORDER,
        kind="hang",
        where=Where(rank=finding.culprit_ranks[0] if finding.culprit_ranks else None, path=str(path)),
        text=finding.explanation,
        data={
            "kind": finding.kind,
            "collective": finding.collective,
            "sequence": finding.sequence,
            "confidence": finding.confidence,
            "ranks": ",".join(map(str, finding.culprit_ranks[:64])),
        },
    )


def _files(path: Path, problems: list[str]) -> Iterator[Path]:
    """The files of a path in a stable order, without following links out of it."""
    if str(path) == "-":
        yield path
        return
    if not path.exists():
        problems.append(f"{path}: no such file or folder")
        return
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            file = Path(folder) / name
            if not file.is_symlink() and file.is_file():
                count += 1
                if count > FILES_IN_FOLDER:
                    problems.append(f"{path}: more than {FILES_IN_FOLDER} files; the rest was not read")
                    return
                yield file
    if not count:
        problems.append(f"{path}: a folder without a readable file")


def _source(file: Path, told: str) -> Source:
    named = {"job": Source.JOB_LOG, "kernel": Source.KERNEL, "slurm": Source.SLURM, "dcgm": Source.DCGM}
    if told in named:
        return named[told]
    for pattern, source in ((_KERNEL_NAME, Source.KERNEL), (_SLURM_NAME, Source.SLURM), (_DCGM_NAME, Source.DCGM)):
        if pattern.search(file.name):
            return source
    return Source.JOB_LOG


def _read(file: Path, signatures: Signatures, now: datetime, told: str, node: str | None) -> list[Evidence]:
    """Evidence of one file in constant memory: step lines beyond the first and last few are dropped as they come."""
    reader = LogReader(signatures, source=_source(file, told), where=Where(node=node, path=str(file)), own_times=True)
    kept: list[Evidence] = []
    steps: deque[Evidence] = deque(maxlen=KEEP_STEPS)
    for block in _blocks(file):
        _keep(reader.feed(block, now), kept, steps)
    _keep(reader.finish(now), kept, steps)
    return _in_order([*kept, *steps], now)


def _in_order(items: list[Evidence], now: datetime) -> list[Evidence]:
    """Times that do not contradict the order of the lines; a line without a time has that of the line before it."""
    items.sort(key=lambda item: item.line or 0)
    stamped = [item.at for item in items if item.at != now]
    if not stamped:
        return items
    current = stamped[0]
    timed = []
    for item in items:
        current = max(current, item.at) if item.at != now else current
        timed.append(replace(item, at=current))
    return timed


def _keep(found: list[Evidence], kept: list[Evidence], steps: deque[Evidence]) -> None:
    for item in found:
        if item.kind == Kind.STEP:
            steps.append(item)
        elif item.kind not in _PROGRESS:
            kept.append(item)


def _blocks(file: Path) -> Iterator[bytes]:
    """Blocks of a file, a FIFO or standard input; a FIFO that stays silent past its deadline ends.

    Raises:
        UserError: a device or socket; binary data.
    """
    if str(file) == "-":
        while block := os.read(0, BLOCK):
            yield block
        return
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UserError(f"{file}: neither a file nor a pipe", fix="give a log file or a folder")
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if stat.S_ISFIFO(mode) else 0))
    try:
        first = True
        while True:
            if stat.S_ISFIFO(mode) and not select.select([descriptor], [], [], READ_DEADLINE_S)[0]:
                raise UserError(f"{file}: nobody wrote into this pipe for {READ_DEADLINE_S:g} s", fix="give a file")
            block = os.read(descriptor, BLOCK)
            if not block:
                return
            if first and _binary(block):
                raise UserError(f"{file}: binary, not a log", fix="give text; for dumps use `sentinel hang`")
            first = False
            if stat.S_ISREG(mode) and not block.strip(b"\0"):
                if not _past_hole(descriptor):
                    return
                continue
            yield block
    finally:
        os.close(descriptor)


def _past_hole(descriptor: int) -> bool:
    """Go on where a sparse file holds data again; False where only a hole is left."""
    try:
        os.lseek(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_DATA)
    except OSError as error:
        return error.errno != errno.ENXIO  # a file system without holes is read to its end
    return True


def _binary(block: bytes) -> bool:
    """Mostly control bytes: a dump, an archive, a checkpoint. Invalid UTF-8 and runs of zeros alone are still a log."""
    sample = block.replace(b"\0", b"")[:8192]
    control = sum(sample.count(bytes([byte])) for byte in (*range(1, 9), *range(14, 27), *range(28, 32)))
    return control > max(8, len(sample) // 20)
