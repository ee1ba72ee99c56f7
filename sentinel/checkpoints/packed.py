"""A listing in one short text, for evidence: compressed, the newest steps first, within bounds both ways. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace

from sentinel.checkpoints.records import Part

MOST_BYTES = 96 << 10  # of the text
MOST_PLAIN_BYTES = 4 << 20  # of what is unpacked: it came over the network
MOST_OBJECTS = 50_000  # objects and lists in it: an empty one takes 3 bytes there, and twenty times as many in memory
# What a listing costs follows from what was sent for it. A part takes some 12 bytes of text at the least, for 20 values and
# as many bytes as its path is long.
_PLAIN_BYTES, _PLAIN_BYTES_EACH = 64 << 10, 200  # of any listing, and more for each byte of its text
_VALUES, _VALUES_EACH = 2000, 6
_LEVEL = 6


def pack(parts: Sequence[Part], most_bytes: int = MOST_BYTES) -> str:
    """As many parts as fit, highest steps first; what does not fit alone goes without its files, as not known.

    Each part is compressed at most twice, with its files and without: a user's process may list thousands.
    """
    most = most_bytes // 5 * 4  # compressed: base 85 makes five bytes of four
    machine, done, ending = zlib.compressobj(_LEVEL), bytearray(), zlib.compress(b"[]")
    separator, plain, objects, values = b"[", 0, 0, 0
    for part in sorted(parts, key=lambda part: -1 if part.step is None else part.step, reverse=True):
        bare = replace(part, has={}, needs={}, coverage={}, valid=None, reason="listed without its files: too many")
        for kept in (part, bare):
            raw = separator + json.dumps(kept.to_json(), separators=(",", ":")).encode()
            longer = machine.copy()
            added = longer.compress(raw)
            ended = longer.copy()
            closed = ended.compress(b"]") + ended.flush()
            size = len(done) + len(added) + len(closed)
            counted = (objects + _objects(raw), values + raw.count(b","))
            if size <= most and plain + len(raw) < _most_plain_bytes(size // 4 * 5) and _few(*counted, size // 4 * 5):
                break
        else:
            break
        machine, ending, separator, plain, (objects, values) = longer, closed, b",", plain + len(raw), counted
        done += added
    return base64.b85encode(bytes(done) + ending).decode()


def _most_plain_bytes(text_bytes: int) -> int:
    return min(MOST_PLAIN_BYTES, _PLAIN_BYTES + _PLAIN_BYTES_EACH * text_bytes)


def _objects(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[")


def _few(objects: int, values: int, text_bytes: int) -> bool:
    return objects <= MOST_OBJECTS and values <= _VALUES + _VALUES_EACH * text_bytes


def unpack(text: str) -> list[Part]:
    """The inverse of ``pack``. ValueError for anything else."""
    if len(text) > 4 * MOST_BYTES:
        raise ValueError("a listing that is too long")
    try:
        machine = zlib.decompressobj()
        raw = machine.decompress(base64.b85decode(text), _most_plain_bytes(len(text)))
        if not machine.eof:  # cut off, or longer than may be
            raise ValueError("a listing that is torn, or too long when unpacked")
        if not _few(_objects(raw), raw.count(b","), len(text)):
            raise ValueError("a listing of too many parts")
        listing = json.loads(raw)
    except (zlib.error, binascii.Error, RecursionError) as error:
        raise ValueError(f"no packed listing: {error!s:.100}") from error
    if not isinstance(listing, list) or not all(isinstance(part, dict) for part in listing):
        raise ValueError("no packed listing: not a list of parts")
    return [Part.from_json(part) for part in listing]
