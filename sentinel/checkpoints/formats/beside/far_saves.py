"""Looks for copies of a save's files among the saves further back: whoever puts a file back may take it from any save.

A copy has the size of what it was made of and the same bytes, so two places of each file tell nearly always; they are
compared before anything else is read, and kept, since every save of a listing is held against the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from sentinel.checkpoints.files import Entry, NotKnown, Tree, entry_at, opened
from sentinel.checkpoints.formats.base import neighbours

_FAR = 64  # saves beside
_LOOKS = 1024  # files of them that are compared with those of one save
_SAMPLE_BYTES = 4096  # at the end, where archives have the checksums of their records, and in the middle
_KEPT = 8192  # digests of files, 0.3 KB each with the path


def perhaps_copies(tree: Tree, names: Sequence[str], nearest: int) -> Iterator[tuple[Path, list[str]]]:
    """The saves beside this one, but for the ``nearest``, in which some of these files have the same size and the same
    bytes in two places, with the names of those. They are yet to be compared.
    """
    names = [name for name in names if name in tree.files]
    mine: dict[str, bytes | None] = {}
    far = neighbours(tree.root, _FAR)[nearest:] if names else []
    for folder in far[: _LOOKS // max(1, len(names))]:
        found = []
        for name in names:
            other = entry_at(folder / name)
            if other is None or other.size != tree.files[name].size:
                continue
            if name not in mine:
                own = entry_at(tree.path(name))
                mine[name] = None if own is None else _digest(tree.path(name), own)
            if mine[name] is not None and _digest(folder / name, other) == mine[name]:
                found.append(name)
        if found:
            yield folder, found


def _digest(path: Path, entry: Entry) -> bytes | None:
    """Of two places of a file; None where it is not read."""
    try:
        return _digest_once(str(path), entry)
    except NotKnown:
        return None


@lru_cache(maxsize=_KEPT)
def _digest_once(path: str, entry: Entry) -> bytes:
    """Kept while the file does not change: the entry has its size and times."""
    with opened(Path(path), path) as handle:
        size = min(entry.size, handle.size)
        length = min(_SAMPLE_BYTES, size)
        data = handle.read(size - length, length) + handle.read((size - length) // 2, length)
    return blake2b(data, digest_size=16).digest()
