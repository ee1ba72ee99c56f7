"""Shards of a distributed checkpoint whose tensors were serialised as safetensors (``SerializationFormat.SAFETENSORS``).

Such a file holds the pieces that are bytes, each an archive as usual, and behind them one safetensors file with all
tensors of the shard. The metadata gives each tensor the place where that begins, and its plain size as the length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.checkpoints.files import Broken, Tree, opened
from sentinel.checkpoints.formats import safetensors_file
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.reading import Work
from sentinel.text import visible


@dataclass(frozen=True, slots=True)
class Blob:
    """The safetensors part of one shard; ``works`` look at its floats. It has no checksum."""

    works: list[Work]


class Without(Mapping[str, Sequence[Item]]):
    """The pieces of every shard, without those that lie in safetensors parts."""

    def __init__(self, files: Mapping[str, Sequence[Item]], blobs: Mapping[str, Blob]) -> None:
        self._files = files
        self._blobs = blobs

    def __getitem__(self, name: str) -> Sequence[Item]:
        items = self._files[name]
        return [item for item in items if item.size is None] if name in self._blobs else items

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def find(tree: Tree, name: str, items: Sequence[Item], ask: Ask) -> Blob | None:
    """The safetensors part of that shard, held against its metadata; None where it has none."""
    tensors = [item for item in items if item.size is not None]
    if not tensors or len({item.offset for item in tensors}) > 1:
        return None
    start = tensors[0].offset
    shown = visible(name)
    if sum(item.length for item in items if item.size is None) != start:
        return None
    with opened(tree.path(name), name) as handle:
        if handle.size < start + 10 or handle.read(start + 8, 1) != b"{":
            return None
        table = safetensors_file.read_table(handle, start, handle.size)
    held = {key: (dtype, shape) for key, _, _, dtype, shape in table.spans}
    for item in tensors:
        if item.name not in held:
            raise Broken(f"{shown}: {visible(item.name)} named by its metadata is not in it")
        dtype, shape = held.pop(item.name)
        if shape != item.size or safetensors_file.torch_type(dtype) not in (item.dtype, ""):
            raise Broken(f"{shown}: {visible(item.name)} is not what its metadata says")
    if held:
        raise Broken(f"{shown}: {visible(min(held))} is not named by its metadata")
    return Blob(safetensors_file.scans(tree, name, table) if ask.level == "content" else [])
