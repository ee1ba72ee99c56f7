"""What the counts of steps that an optimizer keeps in a shard tell of its save, beside the names of the saves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from sentinel.checkpoints.files import Broken, NotKnown, Tree, Unread, opened
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.formats.dcp_parts.trained import count_of
from sentinel.checkpoints.parsing.content import Role, role_of
from sentinel.checkpoints.steps import step_in, step_of

_COUNTS = 8  # of one save that are read


def refuse_all(
    tree: Tree,
    files: Mapping[str, Sequence[Item]],
    alike: Mapping[str, bool | None],
    folder: Path,
    beside: Sequence[Path],
) -> None:
    """`NotKnown` where all shards are those of another step, and the optimizer has made the steps that are named there.

    Of two models in one save one may rest, and a save right after another one has trained nothing either.
    """
    here, there = step_in(str(tree.root)), step_in(str(folder))
    if not any(alike.values()) or False in alike.values() or here is None or there is None or abs(here - there) <= 1:
        return
    try:
        counts = {item: made for item in _steps(files) if (made := _count(tree.root, item)) is not None}
        if not counts or _is_one_of_several(tree.root):
            return
        item = max(counts, key=lambda item: counts[item])  # layers that were frozen for a while have made fewer
        is_named = _is_named(counts[item], item, there, folder, beside)
        explained = not is_named or begun_anew(tree, item, folder, beside)
    except Unread:  # what it counts there may be what explains it
        return
    if not explained:
        raise NotKnown(
            f"its shards are bit for bit those of step {there}, and its optimizer has made {counts[item]:.0f} steps:"
            " two saves mixed"
        )


def _steps(files: Mapping[str, Sequence[Item]]) -> list[Item]:
    """Some of the counts of steps that an optimizer keeps in these shards."""
    found = (i for items in files.values() for i in items if i.plain and i.size == () and i.name.endswith(".step"))
    return list(islice((item for item in found if role_of(item.name.split(".")) is Role.OPTIMIZER), _COUNTS))


def _is_one_of_several(root: Path) -> bool:
    """Whether another folder of the same save holds such a checkpoint, too, or that cannot be seen."""
    if step_of(root.name) is not None:
        return False
    try:
        with os.scandir(root.parent) as entries:
            return any(_holds_metadata(Path(entry.path)) for entry in entries if entry.name != root.name)
    except OSError:
        return True


def _holds_metadata(folder: Path) -> bool:
    """Raises `OSError` where that cannot be seen."""
    try:
        os.lstat(folder / ".metadata")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_named(made: float, item: Item, there: int, folder: Path, beside: Sequence[Path]) -> bool:
    """Whether the step that this folder names is what an optimizer of that count has made, by itself or by a third save."""
    if made == there:
        return True
    for third in (other for other in beside if other != folder):
        theirs, named = _count(third, item), step_in(str(third))
        if theirs is not None and named is not None and theirs != made and theirs - made == named - there:
            return True
    return False


def begun_anew(tree: Tree, step: Item, folder: Path, beside: Sequence[Path]) -> bool:
    """Whether the same count of steps in the other save is explained by an optimizer that was made anew between them.

    Made anew at every save it has counted the same in them all. Made anew once it counts on from there: the count here is
    as far from that of a third save as the names say, or is the step of the name.
    """
    mine, here = _count(tree.root, step), step_in(str(tree.root))
    if mine is None:
        return False
    if mine == here:
        return True
    for third in (other for other in beside if other != folder):
        theirs, there = _count(third, step), step_in(str(third))
        if theirs == mine:
            return True
        if theirs is not None and here is not None and there is not None and theirs - mine == there - here:
            return True
    return False


def _count(folder: Path, step: Item) -> float | None:
    try:
        with opened(folder / step.file, step.file) as handle:
            return count_of(handle, step)
    except Unread:
        raise  # what it counts there may explain what is held against this save
    except (NotKnown, Broken):
        return None
