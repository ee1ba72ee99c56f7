"""The step that a distributed checkpoint states inside."""

from __future__ import annotations

from sentinel.checkpoints.files import Tree, opened
from sentinel.checkpoints.formats.dcp_parts.metadata import Metadata
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.tensors import ITEM_BYTES
from sentinel.checkpoints.reading import Opened, open_archive
from sentinel.text import visible

_WHOLE = ("int32", "int64")
# Names under which trainers keep the step; one of them is compared with the step of the folder.
_STEP_NAMES = ("train_state.step", "trainer.global_step", "global_step", "state.step", "step", "iteration")


def inner_step(tree: Tree, metadata: Metadata) -> int | None:
    """The step that the training state inside states, where it is kept as a whole number or a tensor of one."""
    items = {name: item for name, item in metadata.named(_STEP_NAMES).items() if not item.size}
    for name in _STEP_NAMES:
        item = items.get(name)
        if item and item.plain and item.length < 1 << 20 and item.file in tree.files:
            with opened(tree.path(item.file), item.file) as handle:
                whole = handle.read(item.offset, item.length)
            if item.size is not None and not zips.looks_like_zip(whole):
                continue  # serialised otherwise
            found = open_archive(lambda at, n: whole[at : at + n], len(whole), f"{visible(item.file)}: {name}")  # noqa: B023
            if type(found.pickled.value) is int:
                return found.pickled.value
            if item.dtype in _WHOLE and (number := _whole_number(whole, found, ITEM_BYTES[item.dtype])) is not None:
                return number
    return None


def _whole_number(piece: bytes, found: Opened, size: int) -> int | None:
    """The number in a tensor of one whole number, as torchtitan kept its step."""
    for record in found.archive.records.values():
        if "/data/" in record.name and record.size == size:
            return int.from_bytes(piece[record.data : record.data + record.size], "little", signed=True)
    return None
