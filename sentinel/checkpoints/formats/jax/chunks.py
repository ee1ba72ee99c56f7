"""Which chunks of its arrays a store of OCDBT holds. A chunk that is missing reads as zeros.

Where each process saves to its own node's disk (Orbax's emergency checkpoints) a node's store describes every array whole,
and holds the chunks of that node alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sentinel.checkpoints.files import NotKnown, Tree, opened
from sentinel.checkpoints.formats.jax import zarr
from sentinel.checkpoints.formats.jax.ocdbt import Span
from sentinel.checkpoints.parsing import json_files

_JSON_BYTES = 1 << 20  # of the description of one array
_MOST_CHUNKS = 4_000_000  # of all arrays together: as many as the keys of a store that is read
_NAMES = 64  # arrays of which a node says what it holds


@dataclass(frozen=True, slots=True)
class Stored:
    """How many of an array's chunks are there, and which: ``those`` is the same for two nodes that hold the same."""

    have: int
    need: int
    those: str = ""


def stored(
    tree: Tree, values: Iterable[Span], inline: Mapping[bytes, bytes], described: Iterable[str]
) -> dict[str, Stored]:
    """The arrays of a store by their names, those that are ``described`` and not there with no chunk of one.

    One whose own description is of no foreseen kind is left out: nothing is known of its chunks.

    Raises:
        NotKnown: they have more chunks than are looked at.
    """
    places = {span.key: span for span in values}
    keys = places.keys() | inline.keys()
    found: dict[str, Stored] = {}
    counted = 0
    for name in sorted(described):
        array = name.encode("utf-8", "surrogateescape")
        meta = next((key for end in (zarr.V2, zarr.V3) if (key := array + b"/" + end.encode()) in keys), None)
        if meta is None:
            found[name] = Stored(0, 1)
            continue
        try:
            told = json_files.parse(_value(tree, places, inline, meta), name)
            chunks = zarr.chunk_names(told, version=2 if meta.endswith(zarr.V2.encode()) else 3)
        except (NotKnown, ValueError):
            continue
        counted += len(chunks)
        if counted > _MOST_CHUNKS:
            raise NotKnown(f"arrays of more than {_MOST_CHUNKS} chunks, more than this reader looks at")
        there = [chunk for chunk in chunks if array + b"/" + chunk.encode() in keys]
        those = hashlib.blake2b("\0".join(there).encode(), digest_size=6).hexdigest()
        found[name] = Stored(len(there), len(chunks), those)
    return found


def _value(tree: Tree, places: Mapping[bytes, Span], inline: Mapping[bytes, bytes], key: bytes) -> bytes:
    if key in inline:
        return inline[key]
    span = places[key]
    if span.length > _JSON_BYTES:
        raise NotKnown("a description that is none")
    with opened(tree.path(span.file), span.file) as handle:
        return handle.read(span.offset, span.length)


def coverage(arrays: Mapping[str, Stored]) -> dict[str, tuple[int, int]]:
    """What this node holds of the arrays, to be added up with what others do. A bounded choice that all nodes make alike.

    An array that is not there has no chunks to count: that it is described is one thing, and that it is there another.
    """
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(arrays)[:_NAMES]:
        array, digest = arrays[name], hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        found[f"{bool(array.those)}:there {digest}"] = (int(bool(array.those)), 1)
        if array.those:
            found[f"{array.those}:{digest}"] = (array.have, array.need)
    return found
