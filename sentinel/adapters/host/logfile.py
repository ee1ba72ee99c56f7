"""Follows a growing log file, also one that appears late, is truncated or is replaced. Returns whole lines only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.errors import Denied, Unavailable

READ_BYTES = 1 << 20
LINE_BYTES = 65536  # a longer line is given in pieces


@dataclass(frozen=True, slots=True)
class Block:
    content: bytes  # whole lines, or a piece of an overlong one
    first_line: int  # number of its first line in this file, from 1
    fresh: bool  # the file is another one, or was truncated: what came before it is over


class LogFile:
    """Follows the file at one path.

    Args:
        cursor: ``cursor`` of an earlier process; lines before it are not given again.
        limit_bytes: of a file that is longer when we first see it, only so many last bytes are read.
        owner: whose file it must be; None: anybody's.
    """

    def __init__(
        self,
        path: str,
        cursor: Mapping[str, Any] | None = None,
        *,
        limit_bytes: int = 8 << 20,
        owner: int | None = None,
    ) -> None:
        self.path = path
        self._owner = owner
        self.skipped_bytes = 0
        self._limit_bytes = limit_bytes
        self._fd: int | None = None
        # Where it stands, also while the file is not open: of which one, and from where it is read on. 0: of none yet.
        known = cursor or {}
        self._inode = int(known.get("inode", 0))
        self._offset = int(known.get("offset", 0))
        self._line = int(known.get("line", 1))
        self._fresh = False

    @property
    def cursor(self) -> dict[str, int]:
        return {"inode": self._inode, "offset": self._offset, "line": self._line}

    @property
    def there(self) -> bool:
        return self._fd is not None

    def read(self) -> Iterator[Block]:
        """Read new lines; none while the file does not exist.

        Raises:
            Denied: it may not be read. Unavailable: it cannot be read.
        """
        try:
            yield from self._read()
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise Denied(f"{self.path}: {error.strerror}") from error
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.path}: {error.strerror}") from error

    def rest(self) -> Block | None:
        """The last line without a newline, once nothing more will be written."""
        if self._fd is None:
            return None
        content = os.pread(self._fd, LINE_BYTES, self._offset)
        if not content:
            return None
        self._offset += len(content)
        return Block(content, self._line, False)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> Iterator[Block]:
        if self._fd is None:
            self._open()
        elif self._moved():
            yield from self._lines()  # what the old file still has
            self.close()
            self._begin(0)
            self._fresh = True
            self._open()
        yield from self._lines()

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        self._fd = descriptor
        status = os.fstat(descriptor)
        if self._owner is not None and status.st_uid != self._owner:
            self.close()
            raise Unavailable(f"{self.path} belongs to uid {status.st_uid}, not to the job's user: not read")
        if self._inode != status.st_ino or self._offset > status.st_size:
            self._fresh = self._fresh or self._inode != 0
            self._begin(status.st_ino)
        if status.st_size - self._offset > self._limit_bytes:
            # A late start on a long log: its beginning is skipped, and counted; line numbers count from here.
            self.skipped_bytes += status.st_size - self._limit_bytes - self._offset
            self._offset = status.st_size - self._limit_bytes

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._line = inode, 0, 1

    def _moved(self) -> bool:
        try:
            status = os.stat(self.path)  # noqa: PTH116 - beside os.open and os.fstat
        except FileNotFoundError:
            return False  # renamed or removed: the open file may still grow until another one takes its name
        return status.st_ino != self._inode

    def _behind_hole(self) -> int:
        """Where bytes that were written begin. A log that was truncated, to rotate it, below a program that does not append
        has a hole as long as it was: zeros that nobody wrote, which take minutes to read."""
        assert self._fd is not None
        try:
            return os.lseek(self._fd, self._offset, os.SEEK_DATA)
        except OSError:  # a hole up to the end, or a file system that does not tell
            return self._offset

    def _lines(self) -> Iterator[Block]:
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            self._offset, self._line, self._fresh = 0, 1, True
        while size > self._offset:
            content = os.pread(self._fd, READ_BYTES, self._offset)
            # Only what reads as zeros: file systems have called a hole what was just written.
            if content.startswith(b"\0") and (data := self._behind_hole()) > self._offset:
                self._offset = data
                continue
            end = content.rfind(b"\n") + 1
            if not end:
                if len(content) < LINE_BYTES:
                    return
                end = len(content)
            block = content[:end]
            first, fresh = self._line, self._fresh
            self._fresh = False
            self._offset += end
            self._line += block.count(b"\n")
            yield Block(block, first, fresh)
