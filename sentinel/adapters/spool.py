"""Queues evidence for the daemon on disk: in order, bounded, delivered at least once.

Here is what is pending, and who waits for what; how it lies on the disk, ``spool_files`` knows. An acknowledgement that the
disk did not get any more is only sent again.

Full: the oldest items of the lowest value go first, and are counted. A disk that cannot be written keeps evidence in
memory (bounded, counted) so that the daemon still gets it.

One thread of the spool's own touches the disk; whoever calls waits for it ``patience_s`` at most, and not at all while an
earlier write still hangs. So a disk that hangs stops neither those who append nor the sender: what came in lately is sent
from memory. Only a backlog that is on the hanging disk alone waits for it (``stuck_s`` says since when).

What can be lost: when the process is killed, nothing that ``append`` returned in time for. When power fails, what came in
the last ``sync_s``, and of what has high value the last 50 ms.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sentinel.adapters.spool_files import Item, SpoolFiles, Value

MEMORY_ITEMS = 10_000  # kept in memory while the disk cannot be written
RECENT_ITEMS = 1_000  # written ones that are kept in memory as well, until they are acknowledged
IDLE_S = 10.0  # after which the thread ends until there is something to do


class Spool:
    """One spool; safe for several threads that append and one that reads.

    Args:
        folder: made when it is missing.
        limit_bytes: what its files may take together.
        segment_bytes, sync_s: as of ``SpoolFiles``.
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
        self.patience_s = patience_s
        self.dropped = 0  # items given up because the spool was full, since this process began
        self._files = SpoolFiles(folder, segment_bytes, sync_s)  # from here on the thread's own
        self._lock = threading.Condition()  # never held while the disk is touched
        self._recent: deque[Item] = deque()  # the newest items not acknowledged, without gaps
        self._written = self._files.last  # items up to this number are on disk, or were given up
        self._backlog_to = self._written  # up to this number there may be items that are on disk alone
        self._cursor = self._files.cursor  # items up to it are acknowledged
        self._next = self._written + 1
        self._pending = self._files.found
        self._in_flight: list[Item] = []
        self._closed = False
        # Asked of the thread, and what it is at.
        self._refused = False  # the disk did; not tried again before flush_memory
        self._cleaned = self._cursor  # as the disk has it
        self._wanted = 0  # size of a batch to be read back
        self._busy_since_s: float | None = None
        self._thread: threading.Thread | None = None

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
    def corrupt(self) -> int:
        """Lines that could not be read back, since this process began."""
        return self._files.corrupt

    @property
    def write_errors(self) -> int:
        """Requests that the disk refused, since this process began."""
        return self._files.write_errors

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
                if self._closed or self._files.until_sync_s() == 0.0:
                    self._files.sync()
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
            due_s = self._files.until_sync_s()
            self._lock.wait_for(lambda: self._asked() or self._closed, IDLE_S if due_s is None else due_s)
            if self._asked() or due_s is not None:
                self._busy_since_s = time.monotonic()
                return True
            if self._closed:
                self._files.end()
            self._thread = None
            self._lock.notify_all()
            return False

    def _asked(self) -> bool:
        return (self._has_new() and not self._refused) or self._cursor > self._cleaned or self._wanted > 0

    def _has_new(self) -> bool:
        return bool(self._recent) and self._recent[-1].number > self._written

    def _write_all(self, items: Sequence[Item]) -> None:
        for item in items:
            done = self._files.write(item)
            with self._lock:
                self._refused = not done
                self._written = item.number if done else self._written
            if not done:
                return
        with self._lock:
            self._bound()
            self._lock.notify_all()

    def _clean(self, cursor: int) -> None:
        """Forget on disk what is acknowledged."""
        self._files.acknowledge(cursor)
        with self._lock:
            self._cleaned = cursor

    def _read_back(self, size: int, cursor: int) -> None:
        """The oldest items that are on disk alone."""
        last = self._backlog_to
        old = (item for item in self._files.items() if cursor < item.number <= last)
        found = list(itertools.islice(old, size))
        with self._lock:
            if cursor == self._cursor:
                self._in_flight = found
                if not found:
                    self._backlog_to = min(self._backlog_to, cursor)
                    self._pending = sum(1 for item in self._recent if item.number > cursor)
            self._wanted = 0

    def _shrink(self) -> None:
        """Down to the limit, but for what is in flight. Lost is what the files had and nobody has any more."""
        for gone in self._files.shrink(self.limit_bytes, self._needed):
            with self._lock:
                sent = {item.number for item in self._in_flight}  # meanwhile
                self._lost(sum(1 for number in gone if number > self._cursor and number not in sent))
                self._recent = deque(item for item in self._recent if item.number not in gone)

    def _needed(self) -> tuple[int, set[int]]:
        with self._lock:
            return self._cursor, {item.number for item in self._in_flight}

    def _lost(self, count: int) -> None:
        self.dropped += count
        self._pending = max(0, self._pending - count)
