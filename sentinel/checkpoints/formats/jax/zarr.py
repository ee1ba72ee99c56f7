"""Arrays in zarr, version 2 and 3: a folder with ``.zarray`` or ``zarr.json`` and one file per chunk.

A chunk that is missing reads as zeros, so every chunk of the grid must be there. Orbax without OCDBT and older Megatron keep
their arrays so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from sentinel.checkpoints.files import Broken, NotKnown, Tree, opened
from sentinel.checkpoints.formats.dcp_parts.ends import check_frames
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.formats.jax.ocdbt import INDEX_BYTES, Span, check_tails, crc32c
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.tensors import MOST_DIMENSIONS
from sentinel.text import visible

V2, V3 = ".zarray", "zarr.json"
_JSON_BYTES = 1 << 20
_MOST_CHUNKS = 300_000
_EMPTY = 2**64 - 1  # the place of a chunk that was not stored


def arrays(tree: Tree) -> list[str]:
    """The folders that hold an array."""
    return sorted({name.rpartition("/")[0] for name in tree.files if name.rpartition("/")[2] in (V2, V3)})


def check(tree: Tree, folder: str, *, all_stored: bool) -> list[str]:
    """The chunk files of one array, each there and looking as its compressor leaves it.

    ``all_stored``: chunks of nothing but the fill value were stored too; else a missing one may be one of these.
    """
    prefix = f"{folder}/" if folder else ""
    meta = prefix + (V2 if prefix + V2 in tree.files else V3)
    try:
        told = json_files.read(tree, meta, _JSON_BYTES)
    except ValueError:
        raise Broken(f"{visible(meta)} is not JSON (cut short or damaged)") from None
    if not isinstance(told, dict):
        raise Broken(f"{visible(meta)} describes no array")
    if told.get("node_type") == "group":
        return []
    try:
        shape = _lengths(told["shape"])
        names, plain_bytes = (_version2 if meta.endswith(V2) else _version3)(told, shape)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        raise Broken(f"{visible(meta)} describes no array") from None
    chunks = [prefix + name for name in names]
    for name in chunks:
        entry = tree.files.get(name)
        if entry is None:
            reason = f"{visible(name)}, a chunk of an array, is missing: it would be read as {told.get('fill_value')}"
            raise Broken(reason) if all_stored or told.get("fill_value") is None else NotKnown(reason)
        _check_chunk(tree, name, entry.size, plain_bytes)
        if _is_zstd(told):
            with opened(tree.path(name), name) as handle:
                check_frames(handle, Item("chunk", name, 0, entry.size, False))
            check_tails(tree, [Span(name, 0, entry.size, value=True)])
        elif _is_sharded(told):
            _check_index(tree, name, entry.size)
    return chunks


def chunk_names(told: object, *, version: int) -> list[str]:
    """The names of the chunks of an array that is described so, below the array's own.

    Raises:
        ValueError: that describes no array. NotKnown: it has more chunks than are looked at.
    """
    try:
        if not isinstance(told, dict):
            raise ValueError("no table")
        shape = _lengths(told["shape"])
        names, _ = (_version2 if version == 2 else _version3)(told, shape)
        return list(names)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError("describes no array") from error


def _check_chunk(tree: Tree, name: str, size: int, plain_bytes: int | None) -> None:
    if plain_bytes is not None:
        if size != plain_bytes:
            raise Broken(f"{visible(name)}: {size} bytes, a chunk has {plain_bytes}")
        return
    with opened(tree.path(name), name) as handle:
        head = handle.read(0, min(16, size))
    if not head.strip(b"\0"):
        raise Broken(f"{visible(name)}: " + ("zeros" if head else "empty"))


def _is_zstd(told: dict[str, object]) -> bool:
    compressor = told.get("compressor")
    return isinstance(compressor, dict) and compressor.get("id") == "zstd" and not told.get("filters")


def _is_sharded(told: dict[str, object]) -> bool:
    """Whether each file is a shard of one chunk with its index, and the index's CRC-32C, at the end, as Orbax has it."""
    codecs = told.get("codecs")
    last = codecs[0] if isinstance(codecs, list) and len(codecs) == 1 else None
    settings = last.get("configuration") if isinstance(last, dict) and last.get("name") == "sharding_indexed" else None
    if not isinstance(settings, dict) or settings.get("index_location", "end") != "end":
        return False
    grid = told.get("chunk_grid")
    outer = grid.get("configuration") if isinstance(grid, dict) else None
    names = [codec.get("name") for codec in settings.get("index_codecs", []) if isinstance(codec, dict)]
    whole = isinstance(outer, dict) and outer.get("chunk_shape") == settings.get("chunk_shape")
    return whole and names == ["bytes", "crc32c"]


def _check_index(tree: Tree, name: str, size: int) -> None:
    with opened(tree.path(name), name) as handle:
        index = handle.read(max(0, size - INDEX_BYTES), min(size, INDEX_BYTES))
    if len(index) < INDEX_BYTES or crc32c(index[:-4]) != int.from_bytes(index[-4:], "little"):
        raise Broken(f"{visible(name)}: its index is damaged (cut short?)")
    offset, length = int.from_bytes(index[:8], "little"), int.from_bytes(index[8:16], "little")
    if offset != _EMPTY and (offset or length != size - INDEX_BYTES):
        raise Broken(f"{visible(name)}: {size} bytes, its index says {length} at {offset} and nothing else")


Names = tuple[Iterable[str], int | None]


def _version2(told: dict[str, object], shape: list[int]) -> Names:
    """The names of the chunks, and how long each is where it is not compressed."""
    cut = _lengths(told["chunks"])
    separator = _separator(told.get("dimension_separator", "."))
    plain = None if told.get("compressor") or told.get("filters") else math.prod(cut) * _item_bytes(str(told["dtype"]))
    if not shape:
        return ["0"], plain
    return (separator.join(map(str, place)) for place in _grid(shape, cut)), plain


def _version3(told: dict[str, object], shape: list[int]) -> Names:
    cut = _lengths(told["chunk_grid"]["configuration"]["chunk_shape"])  # type: ignore[index]
    encoding = told.get("chunk_key_encoding")
    settings = encoding.get("configuration", {}) if isinstance(encoding, dict) else {}
    old = isinstance(encoding, dict) and encoding.get("name") == "v2"
    separator = _separator(settings.get("separator", "." if old else "/"))
    if not shape:
        return ["0" if old else "c"], None
    places = (separator.join(map(str, place)) for place in _grid(shape, cut))
    return places if old else (f"c{separator}{place}" for place in places), None


def _separator(value: object) -> str:
    """ValueError for another than the two of zarr's specifications: it is in every name, once for each dimension."""
    if value not in (".", "/"):
        raise ValueError("no separator")
    return str(value)


def _lengths(value: object) -> list[int]:
    """ValueError where these are no lengths: each is a whole number that fits 64 bits."""
    lengths = value if isinstance(value, list) else []
    if lengths != value or len(lengths) > MOST_DIMENSIONS:
        raise ValueError("no shape")
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in lengths):
        raise ValueError("no shape")
    return lengths


def _grid(shape: list[int], cut: list[int]) -> Iterable[tuple[int, ...]]:
    counts = [-(-length // step) for length, step in zip(shape, cut, strict=True)]
    if math.prod(counts) > _MOST_CHUNKS:
        raise NotKnown(f"an array of {math.prod(counts)} chunks, more than this reader looks at")
    return itertools.product(*map(range, counts))


def _item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else int(dtype.lstrip("<>|=")[1:])
