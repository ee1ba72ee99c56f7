"""What a user adds to a finished save of the Trainer or of Accelerate: exports, merged and quantised weights.

Under a name that the libraries do not write, a file that is later than the end of a save is no part of it where the save
is whole without it. An export cannot be told from a file of a callback's that a second save has written over, so that
nothing of the kind makes a save invalid: it is not known where the file was there when the save ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sentinel.checkpoints.files import Broken, Entry, NotKnown, Tree
from sentinel.checkpoints.formats.base import SKEW_S, Finding, neighbours, times_of_a_copy
from sentinel.checkpoints.formats.huggingface import hf_inside, names
from sentinel.text import visible

_STATES = re.compile(r".+\.(?:pt|pth|bin|ckpt|tar|safetensors|index\.json)")
_BESIDE = 2


def check_apart(tree: Tree, marker: str, check: Callable[[Tree], Finding]) -> Finding:
    """Check a save without what was added after its end, which that file marks.

    Raises:
        NotKnown: it is whole only with what came late, or only without; or a part of each save was written once more.
    """
    late = _late(tree, marker)
    if not late:
        return check(tree)
    asked = [marker, *late, *(name for name in tree.files if names.OWN.fullmatch(name))]
    copied = times_of_a_copy(tree, asked)  # then the order of the times says nothing
    rest = tree if copied else _without(tree, late)
    try:
        finding = check(rest)
    except Broken:
        if _is_whole(_without(tree, late) if copied else _in_time(tree, late, marker), check):
            raise NotKnown(f"{_was_late(tree, late[0], marker)}: a part of the save, or added to it?") from None
        raise
    for name in () if copied else late:
        if names.PERHAPS_OWN.fullmatch(name) and _was_there(tree, name, marker):
            raise NotKnown(f"{_was_late(tree, name, marker)}, and was there before: overwritten in place?")
    return finding


def _late(tree: Tree, marker: str) -> list[str]:
    """Files of states that are later than the end, and neither the libraries' nor of the shards that they keep in folders.

    Where a model is kept in shards, what is beside them under the libraries' names may have been made of them.
    """
    end_s = tree.files[marker].mtime_s + SKEW_S
    late = [name for name, entry in tree.files.items() if entry.mtime_s > end_s and _STATES.fullmatch(name)]
    if not late:
        return []
    shards = tuple(f"{folder}/" for folder in hf_inside.folders(tree))
    return [
        name
        for name in late
        if not name.startswith(shards)
        and (not names.OWN_OR_INDEX.fullmatch(name) or (shards and names.WEIGHTS_OR_INDEX.fullmatch(name)))
    ]


def _without(tree: Tree, left_out: list[str]) -> Tree:
    names_out = set(left_out)
    return _with_files(tree, {name: entry for name, entry in tree.files.items() if name not in names_out})


def _in_time(tree: Tree, late: list[str], marker: str) -> Tree:
    """The save as it would be if these files had been written with the others."""
    end_s = tree.files[marker].mtime_s
    return _with_files(tree, tree.files | {name: replace(tree.files[name], mtime_s=end_s) for name in late})


def _with_files(tree: Tree, files: dict[str, Entry]) -> Tree:
    other = Tree(tree.root, files, tree.links, tree.odd, tree.copies)
    other.folders, other.folder_times = tree.folders, tree.folder_times
    return other


def _is_whole(tree: Tree, check: Callable[[Tree], Finding]) -> bool:
    try:
        check(tree)
    except (Broken, NotKnown):
        return False
    return True


def _was_there(tree: Tree, name: str, marker: str) -> bool:
    """Whether a file was there when the save ended: nothing was added to its folder since, or a save beside had it then."""
    changed_s = tree.folder_times.get(name.rpartition("/")[0])
    if changed_s is not None and changed_s <= tree.files[marker].mtime_s + SKEW_S:
        return True
    return any(_written_before(at / name, at / marker) for at in neighbours(tree.root, _BESIDE))


def _written_before(file: Path, marker: Path) -> bool:
    try:
        return file.lstat().st_mtime <= marker.lstat().st_mtime + SKEW_S
    except OSError:
        return False


def _was_late(tree: Tree, name: str, marker: str) -> str:
    after_s = tree.files[name].mtime_s - tree.files[marker].mtime_s
    return f"{visible(name)} was written {after_s:.0f} s after {visible(marker)}"
