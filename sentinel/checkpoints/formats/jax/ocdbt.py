"""OCDBT, the key-value store that tensorstore keeps Orbax's arrays in: which bytes of which files it refers to.

A manifest names the root of a B-tree; nodes and values lie in data files. Manifest and nodes carry their length and a
CRC-32C, and are compressed with zstd as a rule: without the zstandard library they cannot be read. Source of the layout:
tensorstore's documentation of the format.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.text import visible

_MANIFEST = 0x0CDB3A2A
_NODE = 0x0CDB20DE
_MOST_BYTES = 64 << 20  # of one manifest or node when decompressed
# As they are stored. A manifest names some dozens of places; tensorstore splits nodes of more than 8 MiB.
_MOST_MANIFEST_BYTES, _MOST_NODE_BYTES = 4 << 20, 16 << 20
_MOST_SUMMED_BYTES = 64 << 20  # of one store: the checksum is computed byte by byte, at 7 MiB a second
_MOST_NODES = 20_000
_MOST_HELD_BYTES = 512 << 20  # of keys, and of values that lie in nodes: a key says only how it differs from the last
_ENTRY_BYTES = 128  # of what is kept of one of them beside its bytes: 4 million chunks
_HEAD = 512  # bytes of a value that are looked at
_TAIL = 64  # bytes of its end
FRAME = b"\x28\xb5\x2f\xfd"  # of zstd
_MOST_BLOCKS = 1 << 16  # of one frame that are looked at
_STORED, _REPEATED, _COMPRESSED, _RESERVED = range(4)  # blocks of a frame; the first are kept as they are
_STORED_ZEROS = 1024  # and a 16th of the block: more zeros than that at its end would have been compressed
INDEX_BYTES = 20  # of a shard of zarr with one chunk: where it lies, how long it is, and the CRC-32C of these
_LOOKED_AT = 64
_HEADER = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one data file that the store refers to."""

    file: str
    offset: int
    length: int
    value: bool = False  # what somebody stored, not a node of the tree
    key: bytes = b""  # of a value


class _Memory:
    """What may still be taken into memory of one store, whose few bytes may stand for any number of long keys, and read of
    it: a file may be long without taking any disk, and a node may be named many times."""

    def __init__(self) -> None:
        self.left = _MOST_HELD_BYTES
        self.unsummed = _MOST_SUMMED_BYTES

    def read(self, count: int, most: int, what: str) -> None:
        """`NotKnown` for ``count`` bytes of one manifest or node where ``most`` is, or what is left of all."""
        self.unsummed -= count
        if count > most or self.unsummed < 0:
            raise NotKnown(f"{what}: {count} bytes, more than this reader takes")

    def take(self, count: int, what: str) -> None:
        self.left -= count
        if self.left < 0:
            raise NotKnown(f"{what}: more keys than this reader takes")


class _Body:
    """The fields of a manifest or node, in their order."""

    def __init__(self, data: bytes, what: str, memory: _Memory | None = None) -> None:
        self.data = data
        self.at = 0
        self.what = what
        self.memory = memory or _Memory()

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise Broken(f"{self.what}: ends in the middle of a field")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise Broken(f"{self.what}: a damaged number")

    def numbers(self, count: int) -> list[int]:
        if count > len(self.data) - self.at:
            raise Broken(f"{self.what}: more fields than bytes")
        return [self.number() for _ in range(count)]

    def files(self, base: str) -> list[tuple[str, str]]:
        """The table of data files: (base path, path), each below ``base``."""
        count = self.number()
        prefixes = [0, *self.numbers(count - 1)] if count else []
        suffixes = self.numbers(count)
        bases = self.numbers(count)
        found: list[tuple[str, str]] = []
        before = b""
        for prefix, suffix, own in zip(prefixes, suffixes, bases, strict=True):
            self.memory.take(_ENTRY_BYTES + len(base) + min(prefix, len(before)) + suffix, self.what)
            before = before[:prefix] + self.take(suffix)
            path = before.decode("utf-8", "surrogateescape")
            if path.startswith("/") or ".." in path.split("/") or "\0" in path:
                raise Broken(f"{self.what}: refers to a file outside")
            found.append((base + before[:own].decode("utf-8", "surrogateescape"), base + path))
        return found

    def keys(self, start: bytes, prefixes: list[int], suffixes: list[int]) -> list[bytes]:
        """Each shares its first bytes with the one before; all of a node begin with ``start``, which is not repeated."""
        found: list[bytes] = []
        before = b""
        for prefix, suffix in zip(prefixes, suffixes, strict=False):
            self.memory.take(_ENTRY_BYTES + len(start) + min(prefix, len(before)) + suffix, self.what)
            before = before[:prefix] + self.take(suffix)
            found.append(start + before)
        return found

    def file(self, table: list[tuple[str, str]], index: int) -> tuple[str, str]:
        if index >= len(table):
            raise Broken(f"{self.what}: refers to a file that it does not name")
        return table[index]


def spans(tree: Tree, manifest: str = "manifest.ocdbt", inline: dict[bytes, bytes] | None = None) -> Iterator[Span]:
    """Every stretch that the newest version of the store in that folder refers to; each node is checked on the way.

    ``inline`` is filled with the values that lie in the nodes themselves, by their keys.
    """
    memory = _Memory()
    with opened(tree.path(manifest), manifest) as handle:
        body = _body(handle, 0, handle.size, _MANIFEST, visible(manifest), memory)
    body.take(16)  # of the store
    if body.number() != 0:
        raise NotKnown(f"{body.what}: a store with numbered manifests, which Orbax does not write")
    body.numbers(2)
    body.take(1)
    if body.number() == 1:
        body.take(4)  # the level of compression
    table = body.files("")
    count = body.number()
    if not count:
        raise Broken(f"{body.what}: a store without a version: nothing was committed")
    body.numbers(count)  # generations
    heights = list(body.take(count))
    places = [body.numbers(count) for _ in range(3)]
    base, file = body.file(table, places[0][-1])
    # A node's key is what those in it begin with.
    pending = [(Span(file, places[1][-1], places[2][-1]), base, heights[-1])]
    looked = 0
    while pending:
        span, base, height = pending.pop()
        looked += 1
        if looked > _MOST_NODES:
            raise NotKnown(f"{body.what}: more than {_MOST_NODES} nodes")
        yield span
        for below, inner, deeper in _node(tree, span, base, height, inline, memory):
            if deeper < 0:
                yield below
            else:
                pending.append((below, inner, deeper))


def _node(
    tree: Tree, span: Span, base: str, height: int, inline: dict[bytes, bytes] | None, memory: _Memory
) -> Iterator[tuple[Span, str, int]]:
    """(stretch, base path, height of the node there; -1 for a value) of all that one node refers to."""
    what = visible(span.file)
    check_span(tree, span)
    with opened(tree.path(span.file), span.file) as handle:
        body = _body(handle, span.offset, span.length, _NODE, what, memory)
    if body.take(1)[0] != height:
        raise Broken(f"{what}: a node of another height than its parent says")
    table = body.files(base)
    count = body.number()
    prefixes = [0, *body.numbers(count - 1)]
    suffixes = body.numbers(count)
    if height:
        shared = body.numbers(count)
        keys = body.keys(span.key, prefixes, suffixes)
        files, offsets, lengths = (body.numbers(count) for _ in range(3))
        for key, common, file, offset, length in zip(keys, shared, files, offsets, lengths, strict=True):
            inner, path = body.file(table, file)
            yield Span(path, offset, length, key=span.key + key[len(span.key) :][:common]), inner, height - 1
        return
    keys = body.keys(span.key, prefixes, suffixes)
    lengths = body.numbers(count)
    kinds = body.take(count)
    outside = [(key, length) for key, length, kind in zip(keys, lengths, kinds, strict=True) if kind == 1]
    files, offsets = body.numbers(len(outside)), body.numbers(len(outside))
    for file, offset, (key, length) in zip(files, offsets, outside, strict=True):
        yield Span(body.file(table, file)[1], offset, length, value=True, key=key), base, -1
    for key, length, kind in zip(keys, lengths, kinds, strict=True):
        if kind != 1 and inline is not None:
            memory.take(length, what)
            inline[key] = body.take(length)


def check_span(tree: Tree, span: Span) -> None:
    """`Broken` where the file is not there or too short."""
    entry = tree.files.get(span.file)
    if entry is None:
        raise Broken(f"{visible(span.file)} is referred to, but not there")
    if span.offset + span.length > entry.size:
        raise Broken(
            f"{visible(span.file)}: {entry.size} bytes, {span.offset + span.length} are referred to (truncated)"
        )


def check_not_zeros(tree: Tree, values: Iterable[Span]) -> None:
    """`NotKnown` for a data file of which every value begins with zeros.

    That is what a lost write leaves. Nodes have checksums, values have none; arrays of zeros look the same where the job
    switched compression off.
    """
    zeros: dict[str, bool] = {}
    for span in values:
        if zeros.get(span.file, True):
            with opened(tree.path(span.file), span.file) as handle:
                zeros[span.file] = not handle.read(span.offset, min(span.length, _HEAD)).strip(b"\0")
    for file in sorted(file for file, only in zeros.items() if only):
        raise NotKnown(f"{visible(file)}: every value in it begins with zeros: a lost write, or arrays of zeros")


def check_tails(tree: Tree, values: Iterable[Span]) -> None:
    """`NotKnown` for a data file whose last long value ends with zeros that nothing wrote: the end of a write that was lost.

    The last byte of a compressed block of zstd is none; a block that is stored as it is may end so, but with few zeros
    only. A shard of zarr ends with its index, as the others in the store do.
    """
    last: dict[str, Span] = {}
    for span in (values := list(values)):
        long = span.length >= 2 * _TAIL  # what is shorter may be all zeros
        if long and (span.file not in last or last[span.file].offset < span.offset):
            last[span.file] = span
    for file, span in sorted(last.items()):
        with opened(tree.path(file), file) as handle:
            tail = handle.read(span.offset + span.length - _TAIL, _TAIL)
            zeros, unindexed = (not end.strip(b"\0") for end in (tail, tail[-INDEX_BYTES:]))
            lost = zeros and (
                _ends_lost(handle, span) or (_begins_with_zeros(handle, span) and _has_frames(tree, values))
            )
            if lost or (unindexed and _has_shards(tree, values)):
                raise NotKnown(f"{visible(file)}: its last value ends with zeros: a lost write?")


def _begins_with_zeros(handle: Handle, span: Span) -> bool:
    return not handle.read(span.offset, len(FRAME)).strip(b"\0")


def _has_frames(tree: Tree, values: list[Span]) -> bool:
    """Whether one of the first values is compressed, as then all arrays of the store are."""
    for span in values[:_LOOKED_AT]:
        with opened(tree.path(span.file), span.file) as handle:
            if span.length > len(FRAME) and handle.read(span.offset, len(FRAME)) == FRAME:
                return True
    return False


def _has_shards(tree: Tree, values: list[Span]) -> bool:
    """Whether one of the first values is a shard of one chunk with its index and the index's CRC-32C at the end."""
    for span in values[:_LOOKED_AT]:
        if span.length > INDEX_BYTES:
            with opened(tree.path(span.file), span.file) as handle:
                index = handle.read(span.offset + span.length - INDEX_BYTES, INDEX_BYTES)
            if index.strip(b"\0") and crc32c(index[:-4]) == int.from_bytes(index[-4:], "little"):
                return True
    return False


def _ends_lost(handle: Handle, span: Span) -> bool:
    """Whether zeros at the end of a value of one frame of zstd are none of its own.

    They end a compressed block, or its last block is lost, or they are so many that they would have been compressed.
    """
    head = handle.read(span.offset, 5)
    if head[:4] != FRAME:
        return False
    flags, end = head[4], span.offset + span.length
    single, summed = flags >> 5 & 1, 4 * (flags >> 2 & 1)
    at = span.offset + 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    for _ in range(_MOST_BLOCKS):
        if at + 3 > end:
            return True
        told = int.from_bytes(handle.read(at, 3), "little")
        last, kind, size = told & 1, told >> 1 & 3, told >> 3
        if kind == _RESERVED:
            return False
        at += 3 + (1 if kind == _REPEATED else size)
        if last and kind == _STORED and at + summed == end and size >= _STORED_ZEROS:
            return not handle.read(at - max(_STORED_ZEROS, size // 16), max(_STORED_ZEROS, size // 16)).strip(b"\0")
        if last:
            return at > end or (kind == _COMPRESSED and at + summed == end)
    return False


def _body(handle: Handle, offset: int, length: int, magic: int, what: str, memory: _Memory) -> _Body:
    """The body of a manifest or node. How it begins is looked at before all of it is read."""
    head = handle.read(offset, min(length, 18))
    if len(head) < 18 or _HEADER.unpack_from(head)[0] != magic:
        raise Broken(f"{what}: does not start as it should" + (" (zeros)" if not head.strip(b"\0") else ""))
    if int.from_bytes(head[4:12], "little") != length:
        raise Broken(f"{what}: {length} bytes, it says {int.from_bytes(head[4:12], 'little')} of itself")
    memory.read(length, _MOST_MANIFEST_BYTES if magic == _MANIFEST else _MOST_NODE_BYTES, what)
    return _Body(_unpacked(handle.read(offset, length), what), what, memory)


def _unpacked(data: bytes, what: str) -> bytes:
    """What stands in a manifest or node behind its length, if its checksum is right."""
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise Broken(f"{what}: CRC-32C differs")
    body = _Body(data[:-4], what)
    body.take(12)
    body.number()  # version of the format
    method = body.number()
    if method == 0:
        return data[body.at : -4]
    if method != 1:
        raise NotKnown(f"{what}: compressed by a method that this reader does not know")
    return inflate(data[body.at : -4], _MOST_BYTES, what)


def inflate(data: bytes, most: int, what: str) -> bytes:
    """What a frame of zstd holds. `NotKnown` without the library, or for more than ``most`` bytes."""
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise NotKnown(f"{what}: compressed; with the zstandard library (pip install zstandard) it is read") from None
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if most < size < zstandard.CONTENTSIZE_UNKNOWN:
            raise NotKnown(f"{what}: {size} bytes when decompressed, more than this reader takes")
        return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=most))
    except zstandard.ZstdError as error:
        if _is_longer(zstandard, data, most):
            raise NotKnown(f"{what}: more than {most} bytes when decompressed, more than this reader takes") from None
        raise Broken(f"{what}: damaged zstd data ({error!s:.80})") from None


def _is_longer(zstandard: Any, data: bytes, most: int) -> bool:
    """Whether a frame of zstd, which need not say how long its content is, holds more than ``most`` bytes."""
    left = most
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MOST_BYTES).stream_reader(data) as reader:
            while left >= 0 and (piece := reader.read(1 << 20)):
                left -= len(piece)
    except zstandard.ZstdError:
        return False
    return left < 0


def _table() -> tuple[int, ...]:
    values = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        values.append(value)
    return tuple(values)


_CRC32C = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), byte by byte: manifests and nodes are small."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
