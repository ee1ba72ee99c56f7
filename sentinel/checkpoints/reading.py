"""Reads and checks the bytes: spans of files, with a few threads and reused buffers.

zlib and the reads let other threads run, so the speed is that of the disk or of CRC-32 on all cores. Memory is bounded
by threads x buffer, whatever the size of the files.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sentinel.checkpoints.files import Broken, Handle, NotKnown, TooLarge, Unsummed, opened
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.content import Role, looks_of
from sentinel.checkpoints.parsing.floats import FloatScan, Look
from sentinel.checkpoints.parsing.tensors import Pickled, read_pickle
from sentinel.inert_pickle import PickleTooLarge
from sentinel.text import visible

T = TypeVar("T")

_BUFFER_BYTES = 1 << 20
_END_BYTES = 4 << 10  # of an archive: its headers are in the first, its directory in the last
BATCH_BYTES = 32 << 20  # what one piece of work takes on
PICKLE_LIMIT_BYTES = 48 << 20
MOST_RECORDS = 1_000_000  # of all archives of a checkpoint together: 0.4 GB while it is checked

Progress = Callable[[int], None]


def threads_for(level: str) -> int:
    """Structural checks wait for answers of the file system; the others compute and read, in turn, on every core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 8 if level == "structural" else min(max(4, 2 * cores), 32)


@dataclass(frozen=True, slots=True)
class Work:
    """Something to check: ``run`` raises `Broken` or `NotKnown`, or returns."""

    bytes: int
    run: Callable[[bytearray], None]


def run_all(works: Iterable[Work], threads: int, progress: Progress | None = None, *, manifest: bool = False) -> None:
    """Do all of it. The first `Broken` ends it; a `NotKnown` is raised only if nothing was broken.

    ``manifest``: a manifest covers all files, so that it is no matter where they record no checksum of their own.
    """
    local = threading.local()

    def one(work: Work) -> int:
        buffer = getattr(local, "buffer", None)
        if buffer is None:
            buffer = local.buffer = bytearray(_BUFFER_BYTES)
        work.run(buffer)
        return work.bytes

    doubt: NotKnown | None = None
    with ThreadPoolExecutor(max_workers=threads) as pool:
        waiting: set[Future[int]] = set()
        source = iter(works)
        more = True
        while more or waiting:
            while more and len(waiting) < threads * 4:
                work = next(source, None)
                if work is None:
                    more = False
                else:
                    waiting.add(pool.submit(one, work))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    size = future.result()
                except NotKnown as error:
                    doubt = doubt or (None if manifest and isinstance(error, Unsummed) else error)
                except Broken:
                    for other in waiting:
                        other.cancel()
                    raise
                else:
                    if progress:
                        progress(size)
    if doubt:
        raise doubt


@dataclass(frozen=True, slots=True)
class Opened:
    """An archive whose structure was checked, with its data.pkl read. ``looks``: what of each storage must be finite."""

    archive: zips.Archive
    pickled: Pickled
    looks: Mapping[str, Sequence[Look]] = field(default_factory=dict)


@dataclass(slots=True)
class Held:
    """What is held of a checkpoint's archives until its check ends.

    ``files``: what was found of each file that has several names, by its inode: hundreds of names may cost no disk.
    """

    records: int = 0
    files: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def add(self, archive: zips.Archive, what: str) -> None:
        """`NotKnown` where it is more than is held of one checkpoint."""
        self.records += len(archive.records)
        if self.records > MOST_RECORDS:
            raise NotKnown(f"{what}: with it more than {MOST_RECORDS} records in one checkpoint: too many to look at")


def open_archive(
    read: zips.Reader, length: int, what: str, role: Role | None = None, *, program: bool = False
) -> Opened:
    """Directory, headers, data.pkl, and that every storage is there in its length. No checksum yet.

    ``role``: what the archive holds, as far as its name says; None where its numbers are not to be looked at.
    ``program``: it is TorchScript's, whose code is compressed; `NotKnown` where other data is, too.
    """
    archive = zips.parse(read, length, what, program=program)
    zips.refuse_to_inflate(archive, what)
    record = archive.get("data.pkl")
    if record is None:
        raise Broken(f"{what}: an archive without data.pkl")
    if record.size > PICKLE_LIMIT_BYTES:
        raise TooLarge(f"{what}: data.pkl of {record.size} bytes, more than this reader takes")
    data = read(record.data, record.size)
    if zlib.crc32(data) != record.crc and archive.has_checksums:
        raise Broken(f"{what}: data.pkl: CRC-32 differs", "structural")
    try:
        pickled = _read_again(data) if len(data) <= _END_BYTES else read_pickle(data, what)
    except Broken:
        read_pickle(data, what)  # the same, with the name of the file in its reason
        raise
    except PickleTooLarge as error:
        raise TooLarge(f"{what}: data.pkl: {error}") from None
    for key, storage in pickled.storages.items():
        held = archive.get(f"data/{key}")
        if held is None:
            raise Broken(f"{what}: record data/{visible(key)} is missing")
        if held.size != storage.bytes:
            raise Broken(f"{what}: data/{visible(key)} has {held.size} bytes, {storage.bytes} are needed")
    return Opened(archive, pickled, looks_of(pickled, role) if role is not None else {})


@lru_cache(maxsize=256)
def _read_again(data: bytes) -> Pickled:
    """Pieces of one shape have one data.pkl, byte for byte: it is read once."""
    return read_pickle(data, "")


def check_slice(
    handle: Handle,
    offset: int,
    length: int,
    *,
    buffer: bytearray,
    what: str,
    looks: Callable[[Pickled], Mapping[str, Sequence[Look]]] | None = None,
    agree: Callable[[Pickled], None] | None = None,
) -> None:
    """Check one archive inside a file: all records' CRC-32, and the floats that ``looks`` names."""
    piece = Slice(handle, offset, length)
    found = open_archive(piece.read, length, what)
    if agree:
        agree(found.pickled)
    if looks:
        found = replace(found, looks=looks(found.pickled))
    check_records(piece, found, records=list(found.archive.records.values()), buffer=buffer, what=what)
    if not found.archive.has_checksums:
        raise Unsummed(f"{what}: no checksum recorded (the job switched CRC-32 off)")


class Source(Protocol):
    """Something that is read at offsets: a file, or a slice of one."""

    def read(self, offset: int, length: int) -> bytes: ...

    def into(self, view: memoryview, offset: int) -> None: ...


class Slice:
    """A span of an open file whose two ends, where an archive keeps all but its payload, are read once."""

    __slots__ = ("_handle", "_head", "_offset", "_tail", "_tail_at")

    def __init__(self, handle: Handle, offset: int, length: int) -> None:
        self._handle = handle
        self._offset = offset
        self._head = handle.read(offset, min(length, _END_BYTES))
        self._tail_at = max(len(self._head), length - _END_BYTES)
        self._tail = handle.read(offset + self._tail_at, length - self._tail_at)

    def read(self, offset: int, length: int) -> bytes:
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        if offset >= self._tail_at:
            return self._tail[offset - self._tail_at : offset - self._tail_at + length]
        return self._handle.read(self._offset + offset, length)

    def into(self, view: memoryview, offset: int) -> None:
        self._handle.into(view, self._offset + offset)


def check_records(source: Source, found: Opened, *, records: list[zips.Record], buffer: bytearray, what: str) -> None:
    """CRC-32 of these records, where it is recorded, and the floats that are to be looked at, in one pass."""
    prefix = f"{found.archive.prefix}/data/"
    summed = found.archive.has_checksums
    for record in records:
        looks = found.looks.get(record.name[len(prefix) :], ()) if record.name.startswith(prefix) else ()
        scans = [FloatScan(look) for look in looks]
        if not summed and not scans:
            continue
        crc = (
            _inflated_crc(source, record, what)
            if record.deflated
            else span_crc(source, record.data, record.size, buffer, scans)
        )
        if summed and crc != record.crc:
            raise Broken(f"{what}: {visible(record.name)}: CRC-32 differs", "checksum")
        for scan in scans:
            if scan.finding:
                raise Broken(f"{what}: {visible(record.name)}: {scan.finding} in a {scan.dtype} tensor", "content")


def _inflated_crc(source: Source, record: zips.Record, what: str) -> int:
    """CRC-32 of what was compressed, a piece at a time. `Broken` where it does not inflate to the length that is stated.

    Only code and what is for debugging it is compressed (`zips.refuse_to_inflate`), so no floats are looked at here.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    at, end = record.data, record.data + record.packed
    crc = size = 0
    rest = b""
    try:
        while not stream.eof and size <= record.size:
            if not rest and at < end:
                rest = source.read(at, min(_BUFFER_BYTES, end - at))
                at += len(rest)
            plain = stream.decompress(rest, _BUFFER_BYTES)
            rest = stream.unconsumed_tail
            if not plain and not rest and at >= end:
                break  # it ends early
            size += len(plain)
            crc = zlib.crc32(plain, crc)
    except zlib.error:
        size = -1
    if size != record.size or not stream.eof or stream.unused_data or at < end:
        raise Broken(f"{what}: {visible(record.name)}: its compressed bytes are damaged", "checksum")
    return crc


def span_crc(source: Source, offset: int, length: int, buffer: bytearray, scans: Sequence[FloatScan] = ()) -> int:
    """CRC-32 of a span, the floats looked at on the way. zlib and the reads let other threads run."""
    if length <= _END_BYTES:
        small = source.read(offset, length)
        for scan in scans:
            scan.feed(memoryview(small))
        return zlib.crc32(small)
    crc = 0
    view = memoryview(buffer)
    while length > 0:
        piece = view[: min(length, len(buffer))]
        source.into(piece, offset)
        crc = zlib.crc32(piece, crc)
        for scan in scans:
            scan.feed(piece)
        offset += len(piece)
        length -= len(piece)
    return crc


def batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[tuple[list[T], int]]:
    """``items`` in order, as many together as one piece of work takes on, with their bytes in all."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def archive_works(path: Path, name: str, found: Opened) -> Iterator[Work]:
    """The records of one torch.save file as pieces of work."""
    if not found.archive.has_checksums and not found.looks:
        return
    for batch, _ in batches(found.archive.records.values(), lambda record: record.size):
        yield _records_work(path, name, found, batch)


def _records_work(path: Path, name: str, found: Opened, records: list[zips.Record]) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(path, name) as handle:
            check_records(handle, found, records=records, buffer=buffer, what=visible(name))

    return Work(sum(record.size for record in records), run)
