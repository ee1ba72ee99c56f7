"""Blocks of what ``sentinel classify`` reads: files, parts of files, pipes, standard input."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import UserError

BLOCK = 1 << 19  # bytes read at a time: small enough for the processor's cache
READ_DEADLINE_S = 30.0  # for a FIFO that nobody writes to


def blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Blocks of a file, a FIFO or standard input; a FIFO that stays silent past its deadline ends.

    Of a regular file also the part from ``start`` to ``end`` alone.

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
        first = not start
        if start:
            os.lseek(descriptor, start, os.SEEK_SET)
        while True:
            if stat.S_ISFIFO(mode) and not select.select([descriptor], [], [], READ_DEADLINE_S)[0]:
                raise UserError(f"{file}: nobody wrote into this pipe for {READ_DEADLINE_S:g} s", fix="give a file")
            left = BLOCK if end is None else min(BLOCK, end - os.lseek(descriptor, 0, os.SEEK_CUR))
            block = os.read(descriptor, left) if left > 0 else b""
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
    return next_data(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR)) is not None


def next_data(descriptor: int, start: int) -> int | None:
    """Where a sparse file holds data again at or behind ``start``; None where only a hole is left."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else start  # a file system without holes is read to its end


def _binary(block: bytes) -> bool:
    """Mostly control bytes: a dump, an archive, a checkpoint. Invalid UTF-8 and runs of zeros alone are still a log."""
    sample = block.replace(b"\0", b"")[:8192]
    control = sum(sample.count(bytes([byte])) for byte in (*range(1, 9), *range(14, 27), *range(28, 32)))
    return control > max(8, len(sample) // 20)
