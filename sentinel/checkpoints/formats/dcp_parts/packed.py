"""Pieces whose tensor is of a class of its own and packs its numbers: optimizer states of torchao, in 8 bits or less.

The metadata describes such a tensor as it appears (float32, its shape); stored are the tensors that it is made of: codes,
scales, a table. Its pickle states what it appears as, and that is held against the metadata.
"""

from __future__ import annotations

from collections.abc import Container

from sentinel.checkpoints.files import Broken, Tree, opened
from sentinel.checkpoints.formats.dcp_parts.metadata import Metadata
from sentinel.checkpoints.formats.dcp_parts.pieces import Item, Shape, volume
from sentinel.checkpoints.parsing import pickle_names
from sentinel.checkpoints.parsing.tensors import ITEM_BYTES, Pickled, integers
from sentinel.checkpoints.reading import Slice, open_archive
from sentinel.checkpoints.records import Level
from sentinel.inert_pickle import Name, Opaque
from sentinel.text import visible

_LOOKED_AT = 2048  # tensors of which a structural check reads the pickle of one piece; the other levels read all pieces


def check_short(tree: Tree, metadata: Metadata, serialised: Container[str], share: int = 1) -> None:
    """`Broken` where a piece is too short for the numbers that are described and is no tensor that packs them.

    ``serialised``: files whose tensors are no archives of torch. ``share``: how many metadata describe the save, of each of
    which that part of the pieces is looked at, and one at least.
    """
    by_file: dict[str, list[Item]] = {}
    for item in metadata.pieces.short(lambda file: file in tree.files, max(1, _LOOKED_AT // share)):
        by_file.setdefault(item.file, []).append(item)
    for file, items in by_file.items():
        with opened(tree.path(file), file) as handle:
            for item in items:
                what = f"{handle.name}: {visible(item.name)}"
                if file in serialised:
                    raise Broken(_cannot_hold(item, what))
                piece = Slice(handle, item.offset, item.length)
                agree(item, what, open_archive(piece.read, item.length, what).pickled, "structural")


def agree(item: Item, what: str, pickled: Pickled, level: Level = "checksum") -> None:
    """What the piece says of itself is what the metadata says of it; to load it runs nothing."""
    pickle_names.judge(pickled.names, what)
    if item.size is None:
        return
    if not isinstance(pickled.value, Opaque):
        if item.length < volume(item.size) * ITEM_BYTES[item.dtype]:
            raise Broken(_cannot_hold(item, what), level)
        return
    stated = _stated(pickled.value)
    if stated is None and len(pickled.tensors) == 1:
        stated = (pickled.tensors[0].dtype, pickled.tensors[0].size)
    if stated is None:
        return
    dtype, size = stated
    if dtype != item.dtype:
        raise Broken(f"{what}: stored as {visible(dtype)}, the metadata says {item.dtype}", level)
    if size != item.size:
        raise Broken(f"{what}: stored with shape {size}, the metadata says {item.size}", level)


def _cannot_hold(item: Item, what: str) -> str:
    return f"{what}: {item.length} bytes cannot hold {item.size} of {item.dtype}"


def _stated(value: Opaque) -> tuple[str, Shape] | None:
    """The type and the shape that a tensor of a class of its own states; None for others."""
    if value.name != "_rebuild_from_type_v2" or len(value.args) < 3:
        return None
    maker, _, stated = value.args[:3]
    if not isinstance(maker, Name) or maker.name != "_rebuild_wrapper_subclass":
        return None
    if not isinstance(stated, tuple) or len(stated) < 3 or not isinstance(stated[1], Name):
        return None
    size = integers(stated[2])
    return None if size is None else (stated[1].name, size)
