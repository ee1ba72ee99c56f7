"""The files of a spool: items in segments, and the cursor up to which they are acknowledged. For one thread at a time.

A segment is named by the number of its first item; a line is
``<crc32 of the rest, 8 hex digits> <number> <value> <json>``. A process that was killed leaves at most one torn line at the
end of a segment: it is dropped and counted, and a new segment is begun. The cursor is a small file, replaced atomically.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from sentinel.text import json_with_bytes

HIGH_SYNC_S = 0.05  # hardware evidence and a power failure come together; a burst of it shares one sync


class Value(IntEnum):
    """What goes first when the spool is full."""

    LOW = 0  # progress: the next one replaces it
    NORMAL = 1
    HIGH = 2  # hardware: it decides


@dataclass(frozen=True, slots=True)
class Item:
    number: int
    value: Value
    content: Any  # JSON


@dataclass
class _Segment:
    path: Path
    first: int
    size: int = 0
    counts: Counter[int] = field(default_factory=Counter)  # of its items by value; some may be acknowledged by now
    corrupt: int = 0  # lines that were found damaged: each counts once, however often the file is read


class SpoolFiles:
    """A folder with the segments and the cursor.

    Args:
        folder: made when it is missing.
        segment_bytes: size at which a new file is begun.
        sync_s: how long an item may stay in the kernel's memory alone; below 0 it is never forced to the disk.
    """

    def __init__(self, folder: Path, segment_bytes: int, sync_s: float) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.sync_s = sync_s
        self.corrupt = 0  # lines that could not be read back
        self.write_errors = 0
        self.last = 0  # number of the newest item that was written
        self.found = 0  # items that were there at the start, and not acknowledged
        self._segments: deque[_Segment] = deque()
        self._fd: int | None = None  # of the newest segment
        self._sync_at_s: float | None = None  # when what was written has to be on the disk
        self.cursor = self._load()  # as the disk has it

    # ---------------------------------------------------------------------------------------------------- writing

    def write(self, item: Item) -> bool:
        """Add an item. False when the disk refuses; the next one begins a new file, since a line may be torn."""
        line = _line(item)
        try:
            if self._fd is None:
                self._begin(item.number)
            assert self._fd is not None
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, "written only in part")
        except OSError:
            self._failed()
            return False
        wait_s = min(self.sync_s, HIGH_SYNC_S) if item.value is Value.HIGH else self.sync_s
        due_s = time.monotonic() + wait_s
        self._sync_at_s = due_s if self._sync_at_s is None else min(self._sync_at_s, due_s)
        self.last = item.number
        segment = self._segments[-1]
        segment.size += len(line)
        segment.counts[item.value] += 1
        if segment.size >= self.segment_bytes:
            self.sync()
            self.end()
        return True

    def until_sync_s(self) -> float | None:
        """Seconds until ``sync`` is due; None when nothing has to be forced to the disk."""
        if self._sync_at_s is None or self.sync_s < 0:
            return None
        return max(0.0, self._sync_at_s - time.monotonic())

    def sync(self) -> None:
        """Force to the disk what was written."""
        if self._fd is None or self._sync_at_s is None or self.sync_s < 0:
            return
        self._sync_at_s = None
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._failed()

    def end(self) -> None:
        """Close the newest segment: the next item begins another one."""
        self._sync_at_s = None
        if self._fd is not None:
            descriptor, self._fd = self._fd, None
            with contextlib.suppress(OSError):  # counted when it was written
                os.close(descriptor)

    def _failed(self) -> None:
        self.write_errors += 1
        self.end()

    def _begin(self, number: int) -> None:
        if self._segments and not self._segments[-1].size:  # a try that failed: no item, but perhaps part of a line
            self._segments[-1].path.unlink(missing_ok=True)
            self._segments.pop()
        path = self.folder / f"{number:020d}.seg"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path, number))

    # ---------------------------------------------------------------------------------------------------- reading

    def items(self) -> Iterator[Item]:
        """All that can be read, in order."""
        for segment in list(self._segments):
            yield from self._items(segment)

    def _items(self, segment: _Segment) -> Iterator[Item]:
        damaged = 0
        try:
            with segment.path.open("rb") as stream:
                for line in stream:
                    item = _item(line)
                    if item is not None:
                        yield item
                        continue
                    damaged += 1
                    self._damaged(segment, damaged)
        except OSError:
            self._damaged(segment, damaged + 1)

    def _damaged(self, segment: _Segment, count: int) -> None:
        if count > segment.corrupt:
            segment.corrupt = count
            self.corrupt += 1

    # ---------------------------------------------------------------------------------------------------- removing

    def acknowledge(self, cursor: int) -> None:
        """Forget what is acknowledged: whole segments, and where the others are read from."""
        while self._segments and self._last_of(0) <= cursor:
            if len(self._segments) == 1:
                self.end()
            with contextlib.suppress(OSError):  # it is tried again at the next start
                self._segments.popleft().path.unlink(missing_ok=True)
        temporary = self.folder / "cursor.tmp"
        try:
            temporary.write_text(f"{cursor}\n", encoding="ascii")
            temporary.replace(self.folder / "cursor")
        except OSError:
            self.write_errors += 1
        self.cursor = cursor

    def shrink(self, limit_bytes: int, needed: Callable[[], tuple[int, Collection[int]]]) -> Iterator[set[int]]:
        """Down to the limit: the lowest value first, the oldest of it first. Yields what each rewritten file has lost.

        Args:
            needed: up to which number items are acknowledged, and numbers of later ones that have to stay.
        """
        excess = sum(segment.size for segment in self._segments) - limit_bytes
        if excess <= 0:
            return
        excess += limit_bytes // 10  # not again at once
        for value in Value:
            for segment in list(self._segments):
                if excess <= 0:
                    return
                if segment.counts[value] and not (self._fd is not None and segment is self._segments[-1]):
                    before = segment.size
                    yield self._thin(segment, value, *needed())
                    excess -= before - segment.size

    def _thin(self, segment: _Segment, value: Value, cursor: int, stay: Collection[int]) -> set[int]:
        """Rewrite a segment without the items up to this value, and without those that are acknowledged; returns the numbers
        of the former. None goes where the disk refuses."""
        items = [item for item in self._items(segment) if item.number > cursor]
        kept = [item for item in items if item.value > value or item.number in stay]
        content = b"".join(map(_line, kept))
        temporary = segment.path.with_suffix(".tmp")
        try:
            if kept:
                temporary.write_bytes(content)
                temporary.replace(segment.path)
            else:
                segment.path.unlink(missing_ok=True)
                self._segments.remove(segment)
        except OSError:
            return set()
        segment.size, segment.corrupt = len(content), 0
        segment.counts = Counter(item.value for item in kept)
        return {item.number for item in items} - {item.number for item in kept}

    def _last_of(self, index: int) -> int:
        """Highest number that the segment at this place can hold."""
        if index + 1 < len(self._segments):
            return self._segments[index + 1].first - 1
        return self.last

    # ---------------------------------------------------------------------------------------------------- restart

    def _load(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        self.last = cursor = self._read_cursor()
        for path in sorted(self.folder.glob("*.seg")):
            segment = _Segment(path, int(path.stem))
            for item in self._items(segment):
                self.last = max(self.last, item.number)
                if item.number > cursor:
                    segment.counts[item.value] += 1
            if not segment.counts:
                path.unlink(missing_ok=True)
            else:
                segment.size = path.stat().st_size
                self._segments.append(segment)
                self.found += sum(segment.counts.values())
        return cursor

    def _read_cursor(self) -> int:
        try:
            number = json_with_bytes((self.folder / "cursor").read_bytes())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            self.corrupt += 1
            return 0  # everything is sent again, and dropped by id
        return number if isinstance(number, int) else 0


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
        return Item(int(number), Value(int(value)), json_with_bytes(content))
    except ValueError:
        return None
