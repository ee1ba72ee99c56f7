"""Finds what an ended job left in its user's files: flight-recorder dumps, torchelastic's error files, the end of its log.

Runs as the job's user, in the collector's process that may hang. Bounded in files, bytes and time, and in the directory
entries of each place: one that is full (a /tmp with the files of a thousand jobs) hides nothing that lies in another.
Links are not followed; in a world-writable folder only the user's own files count; files older than the job are
ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.log_path import of_ended
from sentinel.evidence.nccl.flight_recorder import named_as_dump, rank_of_name, read_dump
from sentinel.evidence.nccl.flight_recorder_wire import to_wire
from sentinel.model.collectives import RankTrace, Unreadable

# PyTorch's default prefixes of dump files: 2.12 and older, and newer.
PREFIXES = ("/tmp/nccl_trace_rank_", "/tmp/torch/comm_lib_trace_rank_")  # noqa: S108 - looked into, not written
HOME_PREFIX = ".cache/torch/comm_lib_trace_rank_"
ELASTIC = ("/tmp/torchelastic_",)  # noqa: S108
WORKER = re.compile(r"/attempt_\d{1,6}/\d{1,6}/error\.json$")
SHARED = re.compile(r"^(nfs\d?|lustre|gpfs|mmfs|beegfs|ceph|fuse\..*|wekafs|cifs|smb3?|afs|panfs|pvfs2|9p|gluster.*)$")
SKIPPED = frozenset({"__pycache__", "node_modules", "wandb", "site-packages", "tb", "tensorboard"})
DEPTH = 4  # levels of folders searched below a work folder
ENTRIES = 20_000  # most directory entries read below one place
_NAMED = 3  # places that are named as cut off
FULL_BYTES = 1 << 20  # with less left to users a file system is full: what a write needs beside its own bytes differs
CLOCK_S = 2.0  # how far a file server's clock may be behind

Tell = Callable[[Mapping[str, Any], bytes], None]


@dataclass
class Limits:
    """Limits of one search."""

    files: int  # most files whose content is kept
    dumps: int  # most dumps that are parsed
    file_bytes: int
    total_bytes: int
    until_s: float  # monotonic
    kept: int = 0
    bytes: int = 0
    read: int = 0
    seen: set[tuple[int, int]] = field(default_factory=set)
    listed: dict[str, list[str]] = field(default_factory=dict)  # paths in folders in which names are looked for
    cut: dict[str, None] = field(default_factory=dict)  # places with more than ENTRIES, in the order of the search

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.until_s


@dataclass
class _Place:
    """A folder that is listed, or the top of a tree that is searched."""

    path: str
    limits: Limits
    entries: int = 0

    @property
    def over(self) -> bool:
        return self.entries > ENTRIES or self.limits.late

    def count(self) -> None:
        self.entries += 1
        if self.entries > ENTRIES:
            self.limits.cut[self.path] = None


def look(arguments: Mapping[str, Any], tell: Tell) -> None:
    """Search everywhere, for dumps first; call ``tell`` with a header and the content to keep of each file."""
    began_s = float(arguments["began_s"]) - CLOCK_S
    limits = Limits(
        files=int(arguments["files"]),
        dumps=int(arguments["dumps"]),
        file_bytes=int(arguments["file_bytes"]),
        total_bytes=int(arguments["total_bytes"]),
        until_s=time.monotonic() + float(arguments["look_s"]),
    )
    uid, first = int(arguments["uid"]), arguments["first"] is True
    places: Mapping[str, list[str]] = arguments["places"]
    for prefix in dict.fromkeys((*places.get("dumps", ()), *PREFIXES, *_home_prefixes(uid, places))):
        for path in _named(prefix, limits, first):
            _dump(path, uid, began_s, limits, tell)
    for path in _error_files(places, limits, first):
        _error_file(path, uid, began_s, limits, tell)
    work = str(arguments.get("work_dir") or "")
    if work.startswith("/") and _ours(work, first):
        for path in _below(work, _Place(work, limits), 0):
            if path.endswith("/error.json"):
                _error_file(path, uid, began_s, limits, tell)
            elif named_as_dump(path) and rank_of_name(path) is not None:
                _dump(path, uid, began_s, limits, tell)
    if first and arguments.get("log"):
        _log(arguments, uid, tell)
    if limits.cut:
        where = ", ".join([*limits.cut][:_NAMED]) + (", ..." if len(limits.cut) > _NAMED else "")
        tell({"note": f"more than {ENTRIES} files and folders below {where}: the rest was not looked at"}, b"")
    if limits.late:
        tell({"note": f"looking took longer than {arguments['look_s']} s: the rest was not looked at"}, b"")


# ------------------------------------------------------------------------------------------------------- where to look


def _home_prefixes(uid: int, places: Mapping[str, list[str]]) -> Iterator[str]:
    import pwd

    for cache in places.get("caches", ()):
        yield f"{cache}/torch/comm_lib_trace_rank_"
    homes = list(places.get("homes", ()))
    with contextlib.suppress(KeyError):  # this node does not know the user, and so no home folder
        homes.append(pwd.getpwuid(uid).pw_dir)
    for home in dict.fromkeys(homes):
        yield f"{home}/{HOME_PREFIX}"


def _named(prefix: str, limits: Limits, first: bool) -> Iterator[str]:
    """Files whose path begins with ``prefix``."""
    folder, _, name = prefix.rpartition("/")
    if not folder.startswith("/") or not _ours(folder, first):
        return
    if folder not in limits.listed:
        limits.listed[folder] = [entry.path for entry in _entries(folder, _Place(folder, limits))]
    yield from (path for path in limits.listed[folder] if path.rpartition("/")[2].startswith(name))


def _error_files(places: Mapping[str, list[str]], limits: Limits, first: bool) -> Iterator[str]:
    named = places.get("errors", ())
    yield from named
    # Files beside them belong to the other workers of this node.
    for run in dict.fromkeys(path.rsplit("/", 3)[0] for path in named if WORKER.search(path)):
        if _ours(run, first):
            yield from (found for found in _below(run, _Place(run, limits), DEPTH - 2) if WORKER.search(found))
    for prefix in (*ELASTIC, *(f"{folder}/torchelastic_" for folder in places.get("temporary", ()))):
        for path in _named(prefix, limits, first):
            if not os.path.islink(path):  # noqa: PTH114
                yield from (found for found in _below(path, _Place(path, limits), 0) if WORKER.search(found))


def _below(folder: str, place: _Place, depth: int) -> Iterator[str]:
    """Files below a folder, ``depth`` levels deep; links are not followed."""
    folders = []
    for entry in _entries(folder, place):
        try:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path
        except OSError:
            continue  # gone meanwhile
    for path in folders if depth < DEPTH else ():
        name = path.rpartition("/")[2]
        if name not in SKIPPED and not name.startswith("."):
            yield from _below(path, place, depth + 1)


def _entries(folder: str, place: _Place) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                place.count()
                if place.over:
                    break
                found.append(entry)
    except OSError:
        return []  # missing, or not accessible to the user: it has no file of the job
    return sorted(found, key=lambda entry: entry.name)


def _ours(folder: str, first: bool) -> bool:
    """Whether this node reads the folder: shared file systems are read by the job's first node, local ones by each."""
    return first or not SHARED.match(file_system(folder))


def file_system(folder: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system of a folder, e.g. ``nfs4``; empty if it is not known."""
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        words = line.split(" ")
        if len(words) > 4 and words[2] == wanted and "-" in words:
            return words[words.index("-") + 1]
    return ""


# --------------------------------------------------------------------------------------------------------- what is read


def _open(path: str, uid: int, began_s: float, limits: Limits) -> tuple[int, os.stat_result] | None:
    """Open a file of the job; None if it is not one, or was opened before by another path."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino)
    anybodys = os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH  # noqa: PTH116, PTH120
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_mtime < began_s
        or (anybodys and status.st_uid != uid)
        or key in limits.seen
    ):
        os.close(descriptor)
        return None
    limits.seen.add(key)
    return descriptor, status


def _read(descriptor: int, most: int) -> bytes:
    parts = []
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        while most > 0 and (part := stream.read(min(most, 1 << 20))):
            parts.append(part)
            most -= len(part)
    return b"".join(parts)


def _content(path: str, uid: int, began_s: float, limits: Limits, tell: Tell) -> tuple[bytes, os.stat_result] | None:
    opened = _open(path, uid, began_s, limits)
    if opened is None:
        return None
    try:
        return _read(opened[0], limits.file_bytes), opened[1]
    except OSError as error:
        tell({"note": f"{path}: {error.strerror}"}, b"")
        return None


def _kept(header: dict[str, Any], data: bytes, status: os.stat_result, limits: Limits, tell: Tell) -> None:
    """Report the file, with its content while the limits allow."""
    fits = limits.kept < limits.files and limits.bytes + len(data) <= limits.total_bytes
    limits.kept += fits
    limits.bytes += len(data) if fits else 0
    # A user sets the times of files, and may to one that no calendar has.
    changed = datetime.fromtimestamp(min(status.st_mtime, time.time()), UTC).isoformat()
    tell({**header, "size": status.st_size, "changed": changed, "whole": fits and status.st_size == len(data)},
         data if fits else b"")  # fmt: skip


def _dump(path: str, uid: int, began_s: float, limits: Limits, tell: Tell) -> None:
    if limits.read >= limits.dumps:
        return
    found = _content(path, uid, began_s, limits, tell)
    if found is None:
        return
    dump = read_dump(found[0], path)
    if isinstance(dump, (RankTrace, Unreadable)):
        limits.read += 1
        _kept({"kind": "dump", "path": path, "dump": to_wire(dump)}, *found, limits, tell)


def _error_file(path: str, uid: int, began_s: float, limits: Limits, tell: Tell) -> None:
    found = _content(path, uid, began_s, limits, tell)
    if found is not None:
        _kept({"kind": "error", "path": path}, *found, limits, tell)


def _log(arguments: Mapping[str, Any], uid: int, tell: Tell) -> None:
    """Report the end of the job's log."""
    pattern, most = str(arguments["log"]), int(arguments["log_bytes"])
    try:
        began_s = float(arguments.get("began_s") or 0.0)
        path = of_ended(pattern, uid, int(arguments["job"]), int(arguments["attempt"]), began_s)
        if path is None:
            return
        with Path(path).open("rb") as stream:
            if os.fstat(stream.fileno()).st_uid != uid:
                return  # replaced by another file meanwhile
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - most))
            data = stream.read(most)
            full = _is_full(stream.fileno())
    except OSError as error:
        tell({"note": f"{pattern}: {error.strerror}"}, b"")
        return
    tell({"kind": "log", "path": path, "size": size, "whole": len(data) == size}, data)
    if full:  # the program could not write there why it failed
        tell({"kind": "full", "path": path}, b"")


def _is_full(descriptor: int) -> bool:
    """Whether a user can write nothing more to the file system of this file. Quotas show only where it counts them."""
    try:
        told = os.fstatvfs(descriptor)
    except OSError:
        return False
    no_blocks = told.f_blocks > 0 and told.f_bavail * told.f_frsize < FULL_BYTES
    return no_blocks or (told.f_files > 0 and told.f_favail == 0)
