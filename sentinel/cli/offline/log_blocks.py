"""Blocks of what ``sentinel classify`` reads: files, parts of files, pipes, standard input."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import UserError
from sentinel.given_files import BLOCK, opened

_COMPRESSED = {b"\x1f\x8b": "zcat", b"BZh": "bzcat", b"\xfd7zXZ\0": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat"}


class NoLog(UserError):
    """Of a file that is no text: in a folder of logs it may well lie."""


def blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Blocks of a file, a FIFO or standard input; a FIFO that stays silent past its deadline ends.

    Of a regular file also the part from ``start`` to ``end`` alone.

    Raises:
        UserError: a device or socket; binary (`NoLog`) or compressed data.
    """
    if str(file) == "-":
        while block := os.read(0, BLOCK):
            yield block
        return
    with opened(file) as given:
        first = not start
        if start:
            os.lseek(given.descriptor, start, os.SEEK_SET)
        while True:
            left = BLOCK if end is None else min(BLOCK, end - os.lseek(given.descriptor, 0, os.SEEK_CUR))
            block = given.read(left) if left > 0 else b""
            if not block:
                return
            if first:
                _require_text(file, block)
            first = False
            if not given.is_pipe and not block.strip(b"\0"):
                if not _past_hole(given.descriptor):
                    return
                continue
            yield block


def _require_text(file: Path, block: bytes) -> None:
    """
    Raises:
        NoLog: the beginning of a file is binary.
        UserError: it is compressed.
    """
    tool = next((tool for magic, tool in _COMPRESSED.items() if block.startswith(magic)), None)
    if tool is not None:
        raise UserError(f"{file}: compressed ({tool} unpacks it)", fix=f"{tool} FILE | sentinel classify -")
    if _binary(block):
        raise NoLog(f"{file}: binary, not a log", fix="give text; for dumps use `sentinel hang`")


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
