"""Queues evidence for the daemon on disk: in order, bounded, delivered at least once.

A spool is a folder of segment files, named by the number of their first item; a line is
``<crc32 of the rest, 8 hex digits> <number> <value> <json>``. A process that was killed leaves at most one torn line at
the end of a segment: it is dropped and counted, and a new segment is begun. What the daemon acknowledged is behind the
cursor, a small file replaced atomically; an acknowledgement whose cursor was not written any more is only sent again.

Full: the oldest items of the lowest value go first, and are counted. A disk that cannot be written keeps evidence in
memory (bounded, counted) so that the daemon still gets it.

One thread of the spool's own touches the disk; whoever calls waits for it ``patience_s`` at most, and not at all while an
earlier write still hangs. So a disk that hangs stops neither those who append nor the sender: what came in lately is sent
from memory. Only a backlog that is on the hanging disk alone waits for it (``stuck_s`` says since when).

What can be lost: when the process is killed, nothing that ``append`` returned in time for. When power fails, what came in
the last ``sync_s``, and of what has high value the last 50 ms.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from sentinel.text import json_with_bytes

MEMORY_ITEMS = 10_000  # kept in memory while the disk cannot be written
RECENT_ITEMS = 1_000  # written ones that are kept in memory as well, until they are acknowledged
HIGH_SYNC_S = 0.05  # hardware evidence and a power failure come together; a burst of it shares one sync
IDLE_S = 10.0  # after which the thread ends until there is something to do


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
        sync_s: how long an item may stay in the kernel's memory alone; below 0 it is never forced to the disk.
        patience_s: how long a caller waits for the disk.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int = 64 << 20,
        segment_bytes: int = 256 << 10,
        sync_s: float = 5.0,
        patience_s: float = 2.0,
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.segment_bytes = segment_bytes
        self.sync_s = sync_s
        self.patience_s = patience_s
        self.dropped = 0  # items given up because the spool was full, since this process began
        self.corrupt = 0  # lines that could not be read back
        self.write_errors = 0
        self._lock = threading.Condition()  # never held while the disk is touched
        self._recent: deque[Item] = deque()  # the newest items not acknowledged, without gaps
        self._written = 0  # items up to this number are on disk, or were given up
        self._backlog_to = 0  # up to this number there may be items that are on disk alone
        self._cursor = 0  # items up to it are acknowledged
        self._next = 1
        self._pending = 0
        self._in_flight: list[Item] = []
        self._closed = False
        # Asked of the thread, and what it is at.
        self._refused = False  # the disk did; not tried again before flush_memory
        self._cleaned = 0  # cursor as the disk has it
        self._wanted = 0  # size of a batch to be read back
        self._busy_since_s: float | None = None
        # The thread's own.
        self._segments: deque[_Segment] = deque()
        self._fd: int | None = None  # of the newest segment
        self._sync_at_s: float | None = None  # when what was written has to be on the disk
        self._thread: threading.Thread | None = None
        self._load()

    # ---------------------------------------------------------------------------------------------------- callers

    def append(self, content: Any, value: Value = Value.NORMAL) -> int:
        """Keep one item and return its number. Never blocks on the daemon and never raises for a full or broken disk."""
        with self._lock:
            item = Item(self._next, value, content)
            self._next += 1
            self._pending += 1
            self._recent.append(item)
            self._bound()
            self._ask(lambda: self._written >= item.number or self._refused)
            return item.number

    def flush_memory(self) -> None:
        """Write what had to stay in memory, when the disk takes it again."""
        with self._lock:
            if self._refused:
                self._refused = False
                self._ask(lambda: not self._has_new() or self._refused)

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def acknowledged(self) -> int:
        """Items up to this number are with the daemon, or were given up."""
        with self._lock:
            return self._cursor if self._pending else self._next - 1

    @property
    def stuck_s(self) -> float:
        """For how long the disk has not answered; 0 when nothing is asked of it."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def wait(self, timeout_s: float) -> bool:
        """Until something is pending, or the time is over, or the spool was closed. True when something is pending."""
        with self._lock:
            if not self._pending and not self._closed:
                self._lock.wait_for(lambda: self._pending or self._closed, timeout_s)
            return self._pending > 0

    def batch(self, size: int) -> list[Item]:
        """The oldest items not acknowledged; the same ones again until they are. None while the disk hangs with them."""
        with self._lock:
            if not self._in_flight:
                if self._cursor < self._backlog_to:
                    self._wanted = size
                    self._ask(lambda: not self._wanted)
                    self._wanted = 0
                if self._cursor >= self._backlog_to and not self._in_flight:
                    newer = (item for item in self._recent if item.number > self._cursor)
                    self._in_flight = list(itertools.islice(newer, size))
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
            while self._recent and self._recent[0].number <= number:
                self._recent.popleft()
            self._ask(lambda: self._cleaned >= number)

    def close(self) -> None:
        """Write what there is and end; a disk that hangs is left behind."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._thread is None, self.patience_s)

    def _ask(self, done: Callable[[], bool]) -> None:
        """Wake the thread, and wait for it within reason. The lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
            self._thread.start()
        self._lock.notify_all()
        if self.stuck_s < self.patience_s:
            self._lock.wait_for(done, self.patience_s)

    def _bound(self) -> None:
        """Keep memory bounded. The lock is held."""
        while len(self._recent) > RECENT_ITEMS and self._recent[0].number <= self._written:
            self._backlog_to = self._recent.popleft().number
        unwritten = self._next - 1 - self._written
        if unwritten > MEMORY_ITEMS and len(self._recent) > MEMORY_ITEMS:
            kept = {item.number for item in self._in_flight}
            candidates = (item for item in self._recent if item.number > self._written and item.number not in kept)
            self._recent.remove(min(candidates, key=lambda item: (item.value, item.number)))
            self._lost(1)

    # ---------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        """Do what is asked, until nothing is."""
        try:
            while self._next_turn():
                with self._lock:
                    new = [] if self._refused else [item for item in self._recent if item.number > self._written]
                    cursor, wanted = self._cursor, self._wanted
                self._write_all(new)
                self._sync_when_due()
                if cursor > self._cleaned:
                    self._clean(cursor)
                if wanted:
                    self._read_back(wanted, cursor)
                self._shrink()
        finally:  # also after an error of our own: the next caller begins another one
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread, self._busy_since_s = None, None

    def _next_turn(self) -> bool:
        """Wait until something is asked. False when the thread shall end; it is not ours any more then."""
        with self._lock:
            self._busy_since_s = None
            self._lock.notify_all()
            due_s = self._until_sync_s()
            self._lock.wait_for(lambda: self._asked() or self._closed, IDLE_S if due_s is None else due_s)
            if self._asked() or due_s is not None:
                self._sync_at_s = time.monotonic() if self._closed and due_s is not None else self._sync_at_s
                self._busy_since_s = time.monotonic()
                return True
            if self._closed:
                self._end()
            self._thread = None
            self._lock.notify_all()
            return False

    def _asked(self) -> bool:
        return (self._has_new() and not self._refused) or self._cursor > self._cleaned or self._wanted > 0

    def _has_new(self) -> bool:
        return bool(self._recent) and self._recent[-1].number > self._written

    def _write_all(self, items: Sequence[Item]) -> None:
        for item in items:
            done = self._write(_line(item), item)
            with self._lock:
                self._refused = not done
                self._written = item.number if done else self._written
            if not done:
                return
        with self._lock:
            self._bound()
            self._lock.notify_all()

    def _write(self, line: bytes, item: Item) -> bool:
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
        segment = self._segments[-1]
        segment.size += len(line)
        segment.counts[item.value] += 1
        if segment.size >= self.segment_bytes:
            self._sync()
            self._end()
        return True

    def _until_sync_s(self) -> float | None:
        """None when nothing has to be forced to the disk."""
        if self._sync_at_s is None or self.sync_s < 0:
            return None
        return max(0.0, self._sync_at_s - time.monotonic())

    def _sync_when_due(self) -> None:
        if self._until_sync_s() == 0.0:
            self._sync()

    def _sync(self) -> None:
        if self._fd is None or self._sync_at_s is None or self.sync_s < 0:
            return
        self._sync_at_s = None
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._failed()

    def _failed(self) -> None:
        self.write_errors += 1
        self._end()  # a line may be torn: go on in a new segment

    def _begin(self, number: int) -> None:
        path = self.folder / f"{number:020d}.seg"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path, number))

    def _end(self) -> None:
        self._sync_at_s = None
        if self._fd is not None:
            descriptor, self._fd = self._fd, None
            with contextlib.suppress(OSError):  # counted when it was written
                os.close(descriptor)

    def _clean(self, cursor: int) -> None:
        """Forget on disk what is acknowledged."""
        while self._segments and self._last(0) <= cursor:
            if len(self._segments) == 1:
                self._end()
            self._remove(self._segments.popleft().path)
        self._save_cursor(cursor)
        with self._lock:
            self._cleaned = cursor

    def _read_back(self, size: int, cursor: int) -> None:
        """The oldest items that are on disk alone."""
        last = self._backlog_to
        old = (item for segment in list(self._segments) for item in self._items(segment.path))
        found = list(itertools.islice((item for item in old if cursor < item.number <= last), size))
        with self._lock:
            if cursor == self._cursor:
                self._in_flight = found
                if not found:
                    self._backlog_to = min(self._backlog_to, cursor)
                    self._pending = sum(1 for item in self._recent if item.number > cursor)
            self._wanted = 0

    def _last(self, index: int) -> int:
        """Highest number that the segment at this place can hold."""
        if index + 1 < len(self._segments):
            return self._segments[index + 1].first - 1
        return self._written

    def _items(self, path: Path) -> Iterator[Item]:
        try:
            with path.open("rb") as stream:
                for line in stream:
                    item = _item(line)
                    if item is None:
                        self.corrupt += 1
                    else:
                        yield item
        except OSError:
            self.corrupt += 1

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # it is tried again at the next start
            path.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------------- bounds

    def _shrink(self) -> None:
        """Down to the limit: the lowest value first, the oldest of it first; never what is in flight."""
        excess = sum(segment.size for segment in self._segments) - self.limit_bytes
        if excess <= 0:
            return
        excess += self.limit_bytes // 10  # not again at once
        with self._lock:
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
        through = self._last(self._segments.index(segment))
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
            return 0
        segment.size = len(content)
        segment.counts = Counter(item.value for item in kept)
        with self._lock:
            self._lost(unread - len(kept))
            left = {item.number for item in kept}
            self._recent = deque(
                item for item in self._recent if not segment.first <= item.number <= through or item.number in left
            )
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
        self._written = self._backlog_to = last
        self._cleaned = self._cursor

    def _read_cursor(self) -> int:
        try:
            number = json_with_bytes((self.folder / "cursor").read_bytes())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            self.corrupt += 1
            return 0  # everything is sent again, and dropped by id
        return number if isinstance(number, int) else 0

    def _save_cursor(self, cursor: int) -> None:
        temporary = self.folder / "cursor.tmp"
        try:
            temporary.write_text(f"{cursor}\n", encoding="ascii")
            temporary.replace(self.folder / "cursor")
        except OSError:
            self.write_errors += 1


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
