"""A listing in one short text, for evidence: compressed, the newest steps first, within bounds both ways. Pure."""

from __future__ import annotations

import base64
import binascii
import bisect
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
    """As many parts as fit, highest steps first; what does not fit alone goes without its files, as not known."""
    ordered = sorted(parts, key=lambda part: -1 if part.step is None else part.step, reverse=True)
    if len(text := _pack(ordered)) <= most_bytes:
        return text
    # As many as fit whole are found in a few attempts: one for each part would take minutes for thousands.
    whole = bisect.bisect_right(range(len(ordered)), most_bytes, key=lambda count: len(_pack(ordered[:count]))) - 1
    kept = ordered[: max(0, whole)]
    text = _pack(kept)
    for part in ordered[len(kept) :]:
        longer = _pack([*kept, part])
        if len(longer) > most_bytes:
            bare = replace(part, has={}, needs={}, coverage={}, valid=None, reason="listed without its files: too many")
            longer = _pack([*kept, bare])
            if len(longer) > most_bytes:
                break
            kept.append(bare)
        else:
            kept.append(part)
        text = longer
    return text


def _pack(parts: Sequence[Part]) -> str:
    raw = json.dumps([part.to_json() for part in parts], separators=(",", ":")).encode()
    return base64.b85encode(zlib.compress(raw, _LEVEL)).decode()


def unpack(text: str) -> list[Part]:
    """The inverse of ``pack``. ValueError for anything else."""
    if len(text) > 4 * MOST_BYTES:
        raise ValueError("a listing that is too long")
    try:
        machine = zlib.decompressobj()
        most = min(MOST_PLAIN_BYTES, _PLAIN_BYTES + _PLAIN_BYTES_EACH * len(text))
        raw = machine.decompress(base64.b85decode(text), most)
        if not machine.eof:  # cut off, or longer than may be
            raise ValueError("a listing that is torn, or too long when unpacked")
        if raw.count(b"{") + raw.count(b"[") > MOST_OBJECTS or raw.count(b",") > _VALUES + _VALUES_EACH * len(text):
            raise ValueError("a listing of too many parts")
        listing = json.loads(raw)
    except (zlib.error, binascii.Error, RecursionError) as error:
        raise ValueError(f"no packed listing: {error!s:.100}") from error
    if not isinstance(listing, list) or not all(isinstance(part, dict) for part in listing):
        raise ValueError("no packed listing: not a list of parts")
    return [Part.from_json(part) for part in listing]
