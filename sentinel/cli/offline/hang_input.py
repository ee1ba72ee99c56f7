"""Reads flight-recorder dumps in children: several at once, each dump with a deadline and bounded memory.

A dump is a user's file. One that would take for ever, or all memory, costs its child and is said; the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from sentinel.evidence.nccl.flight_recorder import MAX_BYTES, named_as_dump, rank_of_name, read_dump
from sentinel.model.collectives import GroupTrace, RankTrace, Unreadable

DEADLINE_S = 60.0  # 64 MiB, the most that is read of a dump, takes about a third of it on a slow core
MEMORY_BYTES = 3 << 30  # of address space, besides what a child has from us
FRAMES = 8  # of a call's stack that are shown

Found = RankTrace | Unreadable | None


@dataclass(slots=True)
class _Child:
    process: ForkProcess
    pipe: Connection
    path: Path | None = None  # what it reads now
    until_s: float = 0.0


def read_all(
    files: Sequence[Path], told: Callable[[Path, Found], None], *, workers: int = 0, deadline_s: float = DEADLINE_S
) -> None:
    """``told`` gets each file with what it holds: a dump, why it cannot be read, or None for what is no dump."""
    waiting = list(reversed(files))
    count = min(workers or len(os.sched_getaffinity(0)), len(files))
    children = [_start() for _ in range(count)]
    try:
        while waiting or any(child.path for child in children):
            for index in range(count):
                if children[index].path is None and waiting:
                    children[index] = _given(children[index], waiting.pop(), time.monotonic() + deadline_s)
            busy = [child for child in children if child.path is not None]
            left_s = max(0.0, min(child.until_s for child in busy) - time.monotonic())
            ready = wait([child.pipe for child in busy], timeout=left_s)
            for child in busy:
                if child.pipe in ready:
                    _hear(child, told)
                elif time.monotonic() >= child.until_s:
                    _give_up(child, told, f"not read within {deadline_s:g} s: its reader was ended")
    finally:
        for child in children:
            _end(child)


def _start() -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, ours), daemon=True)
    process.start()
    theirs.close()
    return _Child(process, ours)


def _given(child: _Child, path: Path, until_s: float) -> _Child:
    """A child that reads ``path``: this one, or another in its place if it is gone."""
    if not child.process.is_alive():
        _end(child)
        child = _start()
    child.path, child.until_s = path, until_s
    child.pipe.send(str(path))
    return child


def _end(child: _Child) -> None:
    child.process.kill()
    child.process.join()
    child.pipe.close()


def _hear(child: _Child, told: Callable[[Path, Found], None]) -> None:
    try:
        found: Found = child.pipe.recv()
    except (EOFError, ConnectionError):
        child.process.join()
        _give_up(child, told, f"its reader died ({child.process.exitcode}), most likely for want of memory")
        return
    path, child.path = child.path, None
    if path is not None:
        told(path, found)


def _give_up(child: _Child, told: Callable[[Path, Found], None], reason: str) -> None:
    path, child.path = child.path, None
    child.process.kill()
    child.process.join()
    if path is not None:
        told(path, Unreadable(str(path), rank_of_name(str(path)), reason))


def _work(pipe: Connection, parents: Connection) -> None:
    """The child: paths in, what they hold out."""
    parents.close()
    most = _mapped_bytes() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            file = pipe.recv()
            try:
                found = _read(Path(file))
            except MemoryError:
                found = Unreadable(file, rank_of_name(file), f"takes more than {MEMORY_BYTES >> 20} MiB of memory")
            pipe.send(found)


def _mapped_bytes() -> int:
    """This process's address space now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _read(file: Path) -> Found:
    name = str(file)
    try:
        # Not blocking: a FIFO without a writer would stop us at open.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Unreadable(name, rank_of_name(name), error.strerror or "cannot be opened")
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Unreadable(name, None, "no regular file")
        if status.st_size > MAX_BYTES:
            reason = f"{status.st_size} bytes, more than the {MAX_BYTES} that are read of one dump"
            return Unreadable(name, rank_of_name(name), reason) if named_as_dump(name) else None
        try:
            data = handle.read(MAX_BYTES + 1)
        except OSError as error:
            return Unreadable(name, rank_of_name(name), error.strerror or "cannot be read")
    found = dump_of(data, name)
    return replace(found, groups=tuple(map(_shown, found.groups))) if isinstance(found, RankTrace) else found


def dump_of(data: bytes, name: str) -> Found:
    """The dump in these bytes. One of which neither calls nor states of groups are left tells nothing of its rank."""
    found = read_dump(data, name)
    if isinstance(found, RankTrace) and found.torn and not found.entries and not found.status_known:
        return Unreadable(name, found.rank, f"torn: its {len(data)} bytes end before anything of use")
    return found


def _shown(group: GroupTrace) -> GroupTrace:
    """With as much of the stacks as is shown: thousands of ranks must fit in memory."""
    return replace(group, calls=tuple(replace(call, frames=call.frames[:FRAMES]) for call in group.calls))
