"""What ``sentinel classify`` reads: files, pipes and folders, in constant memory, into evidence."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sentinel.cli.offline.log_blocks import NoLog
from sentinel.cli.offline.parallel_logs import Log, may_be_parted, on_all_cores, read_parts, read_whole, together
from sentinel.cli.offline.progress_bar import byte_bar
from sentinel.errors import UserError
from sentinel.evidence.logs.error_file import read_error_file
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

if TYPE_CHECKING:
    from sentinel.classify.hang.analyse import HangFinding
    from sentinel.model.collectives import RankTrace, Unreadable


class _Read(NamedTuple):
    """Of one file."""

    evidence: list[Evidence]
    problem: str = ""  # why it could not be read
    left_out: str = ""  # why it is no log
    written: bool = True  # whether there is anything in it but white space and zeros


class Found(NamedTuple):
    """Of one path."""

    evidence: list[Evidence]
    problems: list[str]  # what could not be read
    empty: bool  # everything was read, and nothing is written in any of it
    left_out: list[
        str
    ]  # what is no log, or lies behind a link; empty where nothing else was read: then it is a problem


FILES_IN_FOLDER = 4096  # of one failure; more is not one failure's folder

# Names that a machine gives its own logs. Content never makes a file trusted: a program can print anything.
_KERNEL_NAME = re.compile(r"(?i)^(?:dmesg|kern(?:el)?[._-]?log|kmsg|messages|syslog|journal(?:ctl)?)\b")
_SLURM_NAME = re.compile(r"(?i)^slurm(?:ctld|d|dbd)\b")
_DCGM_NAME = re.compile(r"(?i)^(?:dcgm|nv-hostengine|fabricmanager)")
ERROR_FILE_BYTES = 1 << 20  # of one worker's error file
EPOCH = datetime(1970, 1, 2, tzinfo=UTC)
DUMP_BYTES = 1 << 28  # of one flight-recorder dump


def read_path(
    path: Path, signatures: Signatures, now: datetime, *, source: str = "auto", node: str | None = None
) -> Found:
    """Evidence of one path. A folder is one failure; its dumps are analysed together."""
    evidence: list[Evidence] = []
    problems: list[str] = []
    traces: list[RankTrace] = []
    torn: list[Unreadable] = []
    logs: list[Path] = []
    left_out: list[str] = []
    for file in _files(path, problems, left_out):
        try:
            if not (path.is_dir() and _dump(file, traces, torn)):
                logs.append(file)
        except OSError as error:
            problems.append(_unreadable(file, error))
    read = partial(_read_file, signatures=signatures, now=now, source=source, node=node)
    written, some = bool(traces or torn or not logs), bool(traces)
    for found in _read_all(logs, read):
        evidence.extend(found.evidence)
        problems.extend([found.problem] if found.problem else [])
        left_out.extend([found.left_out] if found.left_out else [])
        written = written or found.written
        some = some or not (found.problem or found.left_out)
    if traces:
        from sentinel.classify.hang.analyse import analyse

        evidence.append(_hang(analyse(traces, torn), path, now))
    else:
        problems += [f"{dump.source}: {dump.reason}" for dump in torn]
    if not some:
        problems, left_out = problems + left_out, []
    return Found(evidence, problems, not written, left_out)


def _read_all(logs: list[Path], read: Callable[[Path], _Read]) -> Iterator[_Read]:
    """What each log says, in order: large ones in parts on all cores, the others beside each other if they are worth it."""
    whole = [file for file in logs if not may_be_parted(file)]
    if not together(whole):
        yield from map(read, logs)
        return
    with byte_bar(f"{len(whole)} logs", sum(map(_size, whole))) as advance:
        early: dict[Path, _Read] = {}
        for file, answer in zip(whole, on_all_cores(read, whole), strict=True):
            early[file] = answer
            advance(_size(file))
    for file in logs:
        yield early[file] if file in early else read(file)


def _read_file(file: Path, signatures: Signatures, now: datetime, source: str, node: str | None) -> _Read:
    """Evidence of one file, or why it could not be read."""
    try:
        written = _error_file(file, signatures, node, now) if source == "auto" else []
        return _Read(written) if written else _read(file, signatures, now, source, node)
    except OSError as error:
        return _Read([], _unreadable(file, error))
    except NoLog as error:
        return _Read([], left_out=error.message)
    except UserError as error:
        return _Read([], error.message)


def _unreadable(file: Path, error: OSError) -> str:
    return f"{file}: {error.strerror or error}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # gone meanwhile


def _dump(file: Path, traces: list[RankTrace], torn: list[Unreadable]) -> bool:
    """Whether the file is a flight-recorder dump, readable or not."""
    from sentinel.cli.offline.hang_input import dump_of
    from sentinel.evidence.nccl.flight_recorder import named_as_dump
    from sentinel.model.collectives import RankTrace, Unreadable

    if not named_as_dump(file.name) or file.stat().st_size > DUMP_BYTES:
        return False
    found = dump_of(file.read_bytes(), str(file))
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


def _files(path: Path, problems: list[str], left_out: list[str] | None = None) -> Iterator[Path]:
    """The files of a path in a stable order, without following links out of it; these are ``left_out``."""
    if str(path) == "-":
        yield path
        return
    try:
        if not path.exists():
            problems.append(f"{path}: no such file or folder")
            return
        is_folder = path.is_dir()
    except OSError as error:
        problems.append(_unreadable(path, error))
        return
    if not is_folder:
        yield path
        return
    others: list[str] = [] if left_out is None else left_out
    count = 0
    for folder, names, files in os.walk(path, onerror=lambda error: problems.append(_of_folder(error))):
        others += filter(None, (_not_followed(Path(folder) / name, path) for name in sorted(names)))
        names.sort()
        for name in sorted(files):
            file = Path(folder) / name
            try:
                mode = file.lstat().st_mode
            except OSError as error:
                problems.append(_unreadable(file, error))
                continue
            if stat.S_ISREG(mode):
                count += 1
                if count > FILES_IN_FOLDER:
                    problems.append(f"{path}: more than {FILES_IN_FOLDER} files; the rest was not read")
                    return
                yield file
            else:
                others += filter(None, (_not_followed(file, path) or _no_file(file, mode),))
    if not count and not others and not problems:
        problems.append(f"{path}: a folder without a readable file")


def _of_folder(error: OSError) -> str:
    return f"{error.filename}: {error.strerror or error}"


def _not_followed(path: Path, root: Path) -> str:
    """What is told of a link; empty of one to what lies in the same folder, and is read there."""
    if not path.is_symlink() or (path.exists() and path.resolve().is_relative_to(root.resolve())):
        return ""
    return f"{path}: a symbolic link, not followed"


def _no_file(path: Path, mode: int) -> str:
    return "" if stat.S_ISLNK(mode) else f"{path}: no regular file"


def source_of(file: Path, told: str = "auto") -> Source:
    """Who wrote the file: as was told, else by its name."""
    named = {"job": Source.JOB_LOG, "kernel": Source.KERNEL, "slurm": Source.SLURM, "dcgm": Source.DCGM}
    if told in named:
        return named[told]
    for pattern, source in ((_KERNEL_NAME, Source.KERNEL), (_SLURM_NAME, Source.SLURM), (_DCGM_NAME, Source.DCGM)):
        if pattern.search(file.name):
            return source
    return Source.JOB_LOG


def _read(file: Path, signatures: Signatures, now: datetime, told: str, node: str | None) -> _Read:
    """Evidence of one file in constant memory; of step lines only the last few. A large file is read by all cores."""
    log = Log(file, source_of(file, told), node)
    parted = may_be_parted(file)
    found, written = (read_parts(log, signatures, now), True) if parted else read_whole(log, signatures, now)
    return _Read(in_order(found, now), written=written)


def in_order(items: list[Evidence], now: datetime) -> list[Evidence]:
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
