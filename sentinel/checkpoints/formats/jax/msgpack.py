"""flax's msgpack: one file with the state as nested tables, arrays as extension type 1. It has no checksum.

The file is walked without building anything: every length must lie inside, and it must end where its one value ends.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

NAME = "flax_msgpack"
UNSUFFIXED = re.compile(r"checkpoint_\d+")  # of flax.training.checkpoints, which names its file like a folder
_FIXED = {
    0xC0: 0,
    0xC2: 0,
    0xC3: 0,
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
}
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_MOST_VALUES = 5_000_000

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    if len(tree.files) != 1:
        return False
    (name,) = tree.files
    if name.endswith(".msgpack"):
        return True
    if not tree.single or not UNSUFFIXED.fullmatch(name) or not tree.files[name].size:
        return False
    with opened(tree.path(name), name) as handle:
        return 0x81 <= handle.read(0, 1)[0] <= 0x8F  # a table with something in it: 0x80 begins a pickle, too


def check(tree: Tree, ask: Ask) -> Finding:
    del ask
    refuse_links(tree)
    (name,) = tree.files
    with opened(tree.path(name), name) as handle:
        _walk(handle)
    step = step_of(name)
    return Finding(step=number_of(name) if step is None else step, unsummed=[name], unread=f"arrays in {NAME}")


def _walk(handle: Handle) -> None:
    what = visible(handle.name)
    position, left, seen = 0, 1, 0
    window, base = b"", 0
    while left:
        seen += 1
        if seen > _MOST_VALUES:
            raise NotKnown(f"{what}: more than {_MOST_VALUES} values, more than this reader looks at")
        if position >= handle.size:
            raise Broken(f"{what}: ends before its value does (truncated)")
        if not base <= position <= base + len(window) - 6 or not window:
            base, window = position, handle.read(position, min(65536, handle.size - position))
        head = window[position - base : position - base + 6]
        size, items = _size(head, what)
        position += size
        left += items - 1
        if position > handle.size:
            raise Broken(f"{what}: a value reaches beyond its end (truncated)")
    if position != handle.size:
        raise Broken(f"{what}: {handle.size - position} bytes after its value")


def _size(head: bytes, what: str) -> tuple[int, int]:
    """(bytes of this value without those inside, values inside)."""
    code = head[0]
    if code < 0x80 or code >= 0xE0:
        return 1, 0
    if code < 0x90:
        return 1, 2 * (code & 15)
    if code < 0xA0:
        return 1, code & 15
    if code < 0xC0:
        return 1 + (code & 31), 0
    if code in _FIXED:
        return 1 + _FIXED[code], 0
    if code in _FIXED_EXTENSIONS:
        return 2 + _FIXED_EXTENSIONS[code], 0
    if code in _LENGTHS:
        width = _LENGTHS[code]
        return 1 + width + int.from_bytes(head[1 : 1 + width], "big"), 0
    if code in _EXTENSIONS:
        width = _EXTENSIONS[code]
        return 2 + width + int.from_bytes(head[1 : 1 + width], "big"), 0
    if code in (0xDC, 0xDD, 0xDE, 0xDF):
        width = 2 if code in (0xDC, 0xDE) else 4
        count = int.from_bytes(head[1 : 1 + width], "big")
        return 1 + width, count * (2 if code >= 0xDE else 1)
    raise Broken(f"{what}: a byte that begins no value")
