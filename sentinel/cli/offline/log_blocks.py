"""Blocks of what ``sentinel classify`` reads: files, parts of files, pipes, standard input."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from sentinel.errors import UserError
from sentinel.evidence.logs.prefixes import time_of
from sentinel.given_files import BLOCK, opened

_COMPRESSED = {
    re.compile(rb"\x1f\x8b"): "zcat",
    re.compile(rb"BZh[1-9]1AY&SY"): "bzcat",  # a word may begin with its first three letters
    re.compile(rb"\xfd7zXZ\0"): "xzcat",
    re.compile(rb"\x28\xb5\x2f\xfd"): "zstdcat",
}

_HEAD_BYTES, _HEAD_LINES = 1 << 14, 64  # in which a log that is newest first shows it
_TURNED_BYTES = 64 << 20  # of a larger one no line is held back
_TIME_WITHIN = 48  # bytes of a line
_DIFFERENT = 3  # times that fall: two may be two writers'


class NoLog(UserError):
    """Of a file that is no text: in a folder of logs it may well lie."""


def blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Blocks of a file, a FIFO or standard input; a FIFO that stays silent past its deadline ends.

    Of a regular file also the part from ``start`` to ``end`` alone.

    Raises:
        UserError: a device or socket; binary (`NoLog`) or compressed data.
    """
    if str(file) == "-":
        _refuse_device()
        first = True
        while block := os.read(0, BLOCK):
            if first:
                _require_text(file, block)
            first = False
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


def oldest_first(given: Iterator[bytes]) -> tuple[Iterator[bytes], int]:
    """A log whose newest line is the first (``journalctl -r``, Loki, Kibana), turned round: the blocks, and how many lines
    were turned; 0 where it is any other log, and the blocks are as they came.

    Only where each line begins with a full time and none is later than that of the line before: where clocks or writers
    differ, the order of the lines says more. Of other logs only the first lines are looked at.
    """
    first = b""
    while len(first) <= _HEAD_BYTES and (block := next(given, b"")):  # a pipe gives little at a time
        first += block
    head = first[:_HEAD_BYTES].split(b"\n")[:_HEAD_LINES]
    if not _newest_first(head[:-1] if len(first) > _HEAD_BYTES or len(head) == _HEAD_LINES else head):
        return chain([first], given), 0
    content = bytearray(first)
    while len(content) <= _TURNED_BYTES and (block := next(given, b"")):
        content += block
    lines = bytes(content).removesuffix(b"\n").split(b"\n")
    if len(content) > _TURNED_BYTES or not _newest_first(lines):
        return chain([bytes(content)], given), 0
    return iter([b"\n".join([*reversed(lines), b""])]), len(lines)


def _newest_first(lines: Sequence[bytes]) -> bool:
    """Whether the full times that begin the lines fall; what journalctl puts between them (``-- Boot ... --``) has none."""
    before, different = None, 1
    for line in lines:
        if not line.strip() or line.startswith(b"-- "):
            continue
        at = time_of(line[:_TIME_WITHIN].decode("latin-1"))
        if at is None or (before is not None and at > before):
            return False
        different += before is not None and at < before
        before = at
    return different >= _DIFFERENT


def _refuse_device() -> None:
    """Of standard input: /dev/zero has no end. A terminal has one, and nothing is what a job's output may be led to."""
    status = os.fstat(0)
    if not stat.S_ISCHR(status.st_mode) or os.isatty(0) or status.st_rdev == Path(os.devnull).stat().st_rdev:
        return
    raise UserError("-: a device", fix="give a file or a pipe")


def _require_text(file: Path, block: bytes) -> None:
    """
    Raises:
        NoLog: the beginning of a file is binary.
        UserError: it is compressed.
    """
    tool = next((tool for magic, tool in _COMPRESSED.items() if magic.match(block)), None)
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
