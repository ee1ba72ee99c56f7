"""The kernel's log: /dev/kmsg, or a file to which records of the same form are appended.

A record is ``PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT`` with continuation lines that begin with a space.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import Denied, Unavailable

_RECORD_BYTES = 8192
_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    sequence: int
    at_s: float  # Unix seconds, from the kernel's clock
    priority: int  # syslog level 0..7
    facility: int  # 0 is the kernel itself; user space cannot write that one
    text: str
    since_boot_s: float = 0.0


def boot_id() -> str:
    """Identity of this boot; empty when it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class KernelLog:
    """Reads records after a cursor.

    Args:
        path: the device or a file.
        cursor: what ``cursor`` was in an earlier process; records before it are not given again.
        replay: without a cursor, begin with the oldest record instead of the next one.

    Raises:
        Unavailable: it cannot be opened.
    """

    def __init__(
        self, path: str, cursor: Mapping[str, Any] | None = None, *, replay: bool = False, boot: str = ""
    ) -> None:
        self.path = path
        self.boot = boot
        self.overruns = 0  # times that the kernel threw records away before we read them
        self.unparsable = 0
        self._sequence = -1
        self._due: int | None = None  # number of the record that has to come first, where that is known
        self._offset = 0
        self._inode = 0
        cursor = cursor or {}
        known = bool(cursor) and cursor.get("boot") == boot
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise Denied(f"{path}: {error.strerror}", fix="run the agent as root, or with CAP_SYSLOG") from error
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}") from error
        status = os.fstat(self._fd)
        self.device = stat.S_ISCHR(status.st_mode)
        if self.device:
            # A cursor of another boot: nothing of this boot was read yet, so all of it is new.
            if known:
                self._sequence = int(cursor.get("sequence", -1))
            if self._sequence >= 0 or (cursor and not known):
                self._due = self._sequence + 1
            elif not cursor and not replay:
                os.lseek(self._fd, 0, os.SEEK_END)
        else:
            self._inode = status.st_ino
            if known and cursor.get("inode") == status.st_ino and int(cursor.get("offset", 0)) <= status.st_size:
                self._offset = int(cursor["offset"])
            elif not cursor and not replay:
                self._offset = status.st_size

    @property
    def cursor(self) -> dict[str, Any]:
        made: dict[str, Any] = {"boot": self.boot, "sequence": self._sequence}
        if not self.device:
            made.update(offset=self._offset, inode=self._inode)
        return made

    def wait(self, timeout_s: float, poll_s: float = 0.1) -> None:
        """Wait until there may be something to read; a file is polled every ``poll_s``."""
        if self.device:
            select.select([self._fd], [], [], timeout_s)
            return
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(poll_s, left_s))
            try:
                status = os.stat(self.path)  # noqa: PTH116 - ten times a second
            except OSError:
                return  # reading says what is wrong
            if status.st_size != self._offset or status.st_ino != self._inode:
                return

    def read(self) -> Iterator[Record]:
        """Read all records that are available now.

        Raises:
            Unavailable: it cannot be read any more.
        """
        try:
            yield from self._read_device() if self.device else self._read_file()
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._fd)

    def _read_device(self) -> Iterator[Record]:
        while True:
            try:
                content = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.overruns += 1  # the next read continues with the oldest record that is left
                self._due = None
                continue
            if not content:
                return
            record = self._record(content)
            if record is not None and record.sequence > self._sequence:
                if self._due is not None and record.sequence > self._due:
                    self.overruns += 1  # of what went before it was opened the device says nothing
                self._sequence, self._due = record.sequence, None
                yield record

    def _read_file(self) -> Iterator[Record]:
        status = Path(self.path).stat()
        if status.st_ino != self._inode:
            fresh = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            os.close(self._fd)
            self._fd, self._inode, self._offset = fresh, status.st_ino, 0
        if status.st_size < self._offset:
            self._offset = 0
        while status.st_size > self._offset:
            content = os.pread(self._fd, _FILE_BYTES, self._offset)
            end = content.rfind(b"\n") + 1
            if not end:
                if len(content) < _FILE_BYTES:
                    return  # the line is not whole yet
                end = len(content)
            for line in content[:end].split(b"\n"):
                record = self._record(line) if line[:1] != b" " else None
                if record is not None:
                    self._sequence = record.sequence
                    yield record
            self._offset += end

    def _record(self, content: bytes) -> Record | None:
        head, separator, rest = content.partition(b";")
        parts = head.split(b",")
        try:
            if not separator:
                raise ValueError
            priority, sequence, microseconds = int(parts[0]), int(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            if content.strip():
                self.unparsable += 1
            return None
        text = rest.split(b"\n", 1)[0].decode("utf-8", "replace")
        return Record(sequence, _wall_s(microseconds), priority & 7, priority >> 3, text, microseconds / 1e6)


def _wall_s(microseconds: int) -> float:
    """Unix time of a time since boot; now if that would be in the future."""
    now_s = time.time()
    at_s = now_s - time.clock_gettime(time.CLOCK_MONOTONIC) + microseconds / 1e6
    return min(at_s, now_s)
