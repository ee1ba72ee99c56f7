"""Shards of two saves in one folder.

Each shard's own checksums match, and DCP records no step in a shard. What gives it away: training changes the weights
and moments of every rank in every step, so a shard that is bit for bit that of another step, while the shards beside it
are not, was not written by this save. The CRC-32s in the archives' directories tell, without reading the payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened, visible
from sentinel.checkpoints.formats.base import neighbours
from sentinel.checkpoints.formats.dcp_parts.pieces import Item, volume
from sentinel.checkpoints.parsing import zips

_NEIGHBOURS = 4
_SAMPLE = 3  # pieces of a file that are compared first
_SMALL = 4  # elements; what is smaller may well stay the same


def compare(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where some of these shards are those of a step beside this one and others are not."""
    del buffer
    if len(files) < 2:
        return
    for folder in neighbours(tree.root, _NEIGHBOURS):
        same: list[str] = []
        other = 0
        for name, items in files.items():
            alike = _alike(tree, name, items, folder)
            if alike:
                same.append(name)
            other += alike is False
        if same and other:
            raise NotKnown(
                f"{visible(same[0])} is bit for bit that of {visible(folder.name)}, other shards are not: two saves mixed"
            )


def _alike(tree: Tree, name: str, items: Sequence[Item], folder: Path) -> bool | None:
    """Whether all tensors of this shard are those of the shard of the other step; None where it has none to compare."""
    telling = [i for i in items if i.plain and i.size and volume(i.size) >= _SMALL and "float" in i.dtype]
    if not telling:
        return None
    telling.sort(key=lambda item: -item.length)
    try:
        with opened(folder / name, name) as other:
            if other.size != tree.files[name].size:
                return False
            with opened(tree.path(name), name) as mine:
                sample, rest = telling[:_SAMPLE], telling[_SAMPLE:]
                return all(_sums(mine, item) == _sums(other, item) for part in (sample, rest) for item in part)
    except (NotKnown, Broken):
        return False  # not there, not readable or not whole: then it is not the same


def _sums(handle: Handle, item: Item) -> dict[str, int]:
    def read(at: int, count: int) -> bytes:
        return handle.read(item.offset + at, count)

    archive = zips.parse(read, item.length, handle.name)
    return {r.name: r.crc for r in archive.records.values() if "/data/" in r.name}
