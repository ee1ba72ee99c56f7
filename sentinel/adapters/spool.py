"""Evidence that waits for the daemon, on disk: in order, bounded, at least once.

A spool is a folder of segment files, named by the number of their first item; a line is
``<crc32 of the rest, 8 hex digits> <number> <value> <json>``. A process that was killed leaves at most one torn line at
the end of a segment: it is dropped and counted, and a new segment is begun. What the daemon acknowledged is behind the
cursor, a small file replaced atomically; an acknowledgement whose cursor was not written any more is only sent again.

Full: the oldest items of the lowest value go first, and are counted. A disk that cannot be written keeps evidence in
memory (bounded, counted) so that the daemon still gets it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

MEMORY_ITEMS = 10_000  # kept in memory while the disk cannot be written


class Value(IntEnum):
    """What goes first when the spool is full."""

    LOW = 0  # progress: the next one replaces it
    NORMAL = 1
    HIGH = 2  # hardware: it decides


@dataclass
class _Segment:
    path: Path
    first: int
    size: int = 0
    counts: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Item:
    number: int
    value: Value
    content: Any  # JSON


class Spool:
    """One spool; safe for several threads that append and one that reads.

    Args:
        folder: made when it is missing.
        limit_bytes: what its files may take together.
        segment_bytes: size at which a new file is begun.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = 64 << 20, segment_bytes: int = 256 << 10) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.segment_bytes = segment_bytes
        self.dropped = 0  # items given up because the spool was full, since this process began
        self.corrupt = 0  # lines that could not be read back
        self.write_errors = 0
        self.last_error = ""
        self._lock = threading.Condition()
        self._segments: deque[_Segment] = deque()
        self._memory: deque[Item] = deque()
        self._fd: int | None = None  # of the newest segment
        self._cursor = 0  # items below it are acknowledged
        self._next = 1
        self._pending = 0
        self._in_flight: list[Item] = []
        self._closed = False
        self._load()

    # ---------------------------------------------------------------------------------------------------- writing

    def append(self, content: Any, value: Value = Value.NORMAL) -> int:
        """Keep one item and return its number. Never blocks on the daemon and never raises for a full or broken disk."""
        with self._lock:
            item = Item(self._next, value, content)
            self._next += 1
            self._pending += 1
            line = _line(item)
            if self._memory or not self._write(line, item):
                self._keep_in_memory(item)
            self._shrink()
            self._lock.notify_all()
            return item.number

    def _write(self, line: bytes, item: Item) -> bool:
        try:
            if self._fd is None:
                self._begin(item.number)
            assert self._fd is not None
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, "written only in part")
        except OSError as error:
            self._failed(error)
            return False
        segment = self._segments[-1]
        segment.size += len(line)
        segment.counts[item.value] += 1
        if segment.size >= self.segment_bytes:
            self._end()
        return True

    def _failed(self, error: OSError) -> None:
        self.write_errors += 1
        self.last_error = f"{self.folder}: {error.strerror}"
        self._end()  # a line may be torn: go on in a new segment

    def _keep_in_memory(self, item: Item) -> None:
        if len(self._memory) >= MEMORY_ITEMS:
            worst = min(self._memory, key=lambda kept: (kept.value, kept.number))
            self._memory.remove(worst)
            self._lost(1)
        self._memory.append(item)

    def flush_memory(self) -> None:
        """Write what had to stay in memory, when the disk takes it again."""
        with self._lock:
            while self._memory:
                item = self._memory[0]
                if item.number > self._cursor and not self._write(_line(item), item):
                    return
                self._memory.popleft()

    def _begin(self, number: int) -> None:
        path = self.folder / f"{number:020d}.seg"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path, number))

    def _end(self) -> None:
        if self._fd is not None:
            descriptor, self._fd = self._fd, None
            with contextlib.suppress(OSError):  # counted when it was written
                os.close(descriptor)

    # ---------------------------------------------------------------------------------------------------- reading

    @property
    def pending(self) -> int:
        return self._pending

    def wait(self, timeout_s: float) -> bool:
        """Until something is pending, or the time is over, or the spool was closed. True when something is pending."""
        with self._lock:
            if not self._pending and not self._closed:
                self._lock.wait(timeout_s)
            return self._pending > 0

    def batch(self, size: int) -> list[Item]:
        """The oldest items not acknowledged; the same ones again until they are."""
        with self._lock:
            if not self._in_flight:
                for item in self._unacknowledged():
                    self._in_flight.append(item)
                    if len(self._in_flight) >= size:
                        break
                if not self._in_flight:
                    self._pending = 0  # what was counted turned out to be unreadable
            return list(self._in_flight)

    def acknowledge(self, number: int) -> None:
        """All items up to this number have arrived."""
        with self._lock:
            if number <= self._cursor:
                return
            self._pending = max(0, self._pending - sum(1 for item in self._in_flight if item.number <= number))
            self._in_flight = [item for item in self._in_flight if item.number > number]
            self._cursor = number
            while self._memory and self._memory[0].number <= number:
                self._memory.popleft()
            while self._segments and self._last(0) <= number:
                if len(self._segments) == 1:
                    self._end()
                self._segments.popleft().path.unlink(missing_ok=True)
            self._save_cursor()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()
            self._lock.notify_all()

    def _last(self, index: int) -> int:
        """Highest number that the segment at this place can hold."""
        if index + 1 < len(self._segments):
            return self._segments[index + 1].first - 1
        return (self._memory[0].number if self._memory else self._next) - 1

    def _unacknowledged(self) -> Iterator[Item]:
        for segment in list(self._segments):
            yield from (item for item in self._items(segment.path) if item.number > self._cursor)
        yield from (item for item in list(self._memory) if item.number > self._cursor)

    def _items(self, path: Path) -> Iterator[Item]:
        try:
            with path.open("rb") as stream:
                for line in stream:
                    item = _item(line)
                    if item is None:
                        self.corrupt += 1
                    else:
                        yield item
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"

    # ---------------------------------------------------------------------------------------------------- bounds

    def _shrink(self) -> None:
        """Down to the limit: the lowest value first, the oldest of it first; never what is in flight."""
        excess = sum(segment.size for segment in self._segments) - self.limit_bytes
        if excess <= 0:
            return
        excess += self.limit_bytes // 10  # not again at once
        guarded = {item.number for item in self._in_flight}
        for value in Value:
            for segment in list(self._segments):
                if excess <= 0:
                    return
                if segment.counts[value] and not (self._fd is not None and segment is self._segments[-1]):
                    excess -= self._thin(segment, value, guarded)

    def _thin(self, segment: _Segment, value: Value, guarded: set[int]) -> int:
        """Rewrite a segment without the items up to this value; returns bytes gained."""
        kept = [
            item
            for item in self._items(segment.path)
            if item.number > self._cursor and (item.value > value or item.number in guarded)
        ]
        before, unread = segment.size, sum(segment.counts.values())
        content = b"".join(map(_line, kept))
        temporary = segment.path.with_suffix(".tmp")
        try:
            if kept:
                temporary.write_bytes(content)
                temporary.replace(segment.path)
            else:
                segment.path.unlink(missing_ok=True)
                self._segments.remove(segment)
        except OSError as error:
            self.last_error = f"{segment.path}: {error.strerror}"
            return 0
        segment.size = len(content)
        segment.counts = Counter(item.value for item in kept)
        self._lost(unread - len(kept))
        return before - segment.size

    def _lost(self, count: int) -> None:
        self.dropped += count
        self._pending = max(0, self._pending - count)

    # ---------------------------------------------------------------------------------------------------- restart

    def _load(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        self._cursor = self._read_cursor()
        last = self._cursor
        for path in sorted(self.folder.glob("*.seg")):
            counts: Counter[int] = Counter()
            highest = 0
            for item in self._items(path):
                highest = max(highest, item.number)
                if item.number > self._cursor:
                    counts[item.value] += 1
            if not counts:
                path.unlink(missing_ok=True)
            else:
                self._segments.append(_Segment(path, int(path.stem), path.stat().st_size, counts))
                self._pending += sum(counts.values())
            last = max(last, highest)
        self._next = last + 1

    def _read_cursor(self) -> int:
        try:
            number = json.loads((self.folder / "cursor").read_bytes())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            self.corrupt += 1
            return 0  # everything is sent again, and dropped by id
        return number if isinstance(number, int) else 0

    def _save_cursor(self) -> None:
        temporary = self.folder / "cursor.tmp"
        try:
            temporary.write_text(f"{self._cursor}\n", encoding="ascii")
            temporary.replace(self.folder / "cursor")
        except OSError as error:
            self.write_errors += 1
            self.last_error = f"{temporary}: {error.strerror}"


def _line(item: Item) -> bytes:
    content = json.dumps(item.content, separators=(",", ":"))
    rest = f"{item.number} {int(item.value)} {content}".encode()
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def _item(line: bytes) -> Item | None:
    """None for a torn or damaged line."""
    crc, _, rest = line.rstrip(b"\n").partition(b" ")
    try:
        if not line.endswith(b"\n") or int(crc, 16) != zlib.crc32(rest):
            return None
        number, value, content = rest.split(b" ", 2)
        return Item(int(number), Value(int(value)), json.loads(content))
    except ValueError:
        return None
