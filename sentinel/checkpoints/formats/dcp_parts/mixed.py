"""Shards that are not those of this save, or not those of this rank.

Each shard's own checksums match, and DCP records neither step nor rank in a shard. What gives it away: training changes
the weights and moments of every rank in every step, so a shard that is bit for bit that of another step, while the shards
beside it are not, was not written by this save; and two parts of one tensor have not the same numbers on two ranks. The
CRC-32s in the archives' directories tell, without reading the payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import neighbours
from sentinel.checkpoints.formats.beside import far_saves
from sentinel.checkpoints.formats.dcp_parts import counted
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.formats.dcp_parts.trained import (
    Parameter,
    archive_of,
    count_of,
    must_have_moved,
    parameters,
    rates,
    start_of,
    start_of_numbers,
    telling_items,
)
from sentinel.checkpoints.parsing.content import Role, averages_squares, role_of
from sentinel.checkpoints.parsing.floats import FloatScan, Look
from sentinel.text import visible

_NEIGHBOURS = 4
_COPIED = re.compile(r"expert|moe", re.IGNORECASE)  # layers that training may begin with as copies of one another
_OFTEN_IDLE = re.compile(r"expert|moe|emb", re.IGNORECASE)  # rows and layers that no token may have reached for long
_COMPARED = 4096  # parameters whose numbers are compared with one another
_ENDS = 8  # parameters at either end of a shard that are compared: a save is written from one end to the other

Differ = Callable[[str, str, str], bool]


def compare(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where some of these shards are those of a step beside this one and others are not."""
    del buffer
    beside = neighbours(tree.root, _NEIGHBOURS)
    for folder in beside:
        alike = {name: _alike(tree, name, items, folder) for name, items in files.items()}
        for name in (name for name, same in alike.items() if same is False):
            half = _half_of(tree, files, name, folder, beside)
            if half:
                raise NotKnown(
                    f"{visible(name)}: {visible(half[0])} is that of {visible(folder.name)}, {visible(half[1])} is not:"
                    " two saves mixed"
                )
        _refuse_some(alike, folder)
        counted.refuse_all(tree, files, alike, folder, beside)
    for folder, copies in far_saves.perhaps_copies(tree, list(files), _NEIGHBOURS):
        if any(_alike(tree, name, files[name], folder) for name in copies):
            alike = {name: _alike(tree, name, items, folder) for name, items in files.items()}
            _refuse_some(alike, folder)
            counted.refuse_all(tree, files, alike, folder, beside)


def _refuse_some(alike: Mapping[str, bool | None], folder: Path) -> None:
    same = [name for name, is_same in alike.items() if is_same]
    if same and False in alike.values():
        raise NotKnown(
            f"{visible(same[0])} is bit for bit that of {visible(folder.name)}, other shards are not: two saves mixed"
        )


def refuse_two_counts(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where each shard's counts of steps are one number, and they are not the same number in all shards.

    A parameter is spread over the ranks, and one of them keeps its count: which of them says nothing about how often it
    was trained. Layers that were frozen for a while count less, and did so in a save beside; where each rank has layers of
    its own, nothing follows.
    """
    del buffer
    counts = _counts_in(tree.root, files)
    if not _are_split(counts):
        return
    spread = {name: {item.name.rpartition(".")[0] for item in telling_items(files[name])} for name in files}
    for name, count in counts.items():
        for other in (other for other, theirs in counts.items() if theirs.keys().isdisjoint(count.keys())):
            shared = any(state in spread[other] for states in count.values() for state in states)
            if shared and not any(
                _are_split(_counts_in(folder, files)) for folder in neighbours(tree.root, _NEIGHBOURS)
            ):
                low, high = sorted((min(count), min(counts[other])))
                raise NotKnown(
                    f"{visible(name)} and {visible(other)} count different steps ({low:.0f} and {high:.0f}): two saves mixed"
                )


def _counts_in(root: Path, files: Mapping[str, Sequence[Item]]) -> dict[str, dict[float, list[str]]]:
    """Of each shard that has several: a count of steps -> the states that have made so many."""
    found: dict[str, dict[float, list[str]]] = {}
    for name, items in files.items():
        steps = [i for i in items if i.plain and i.size == () and i.name.endswith(".step")]
        steps = [item for item in steps if role_of(item.name.split(".")) is Role.OPTIMIZER][:_ENDS]
        try:
            with opened(root / name, name) as handle:
                for item in steps if len(steps) > 1 else ():
                    count = count_of(handle, item)
                    if count is not None:
                        found.setdefault(name, {}).setdefault(count, []).append(item.name.rpartition(".")[0])
        except (NotKnown, Broken):
            continue  # not there, not readable or cut otherwise: nothing to compare with
    return found


def _are_split(counts: Mapping[str, Mapping[float, object]]) -> bool:
    return all(len(count) == 1 for count in counts.values()) and len({min(count) for count in counts.values()}) > 1


def refuse_twins(tree: Tree, files: Mapping[str, Sequence[Item]], differ: Differ, buffer: bytearray) -> None:
    """`NotKnown` where a shard holds the numbers of another one: copied over it, or written twice.

    ``differ(file, other, tensor)``: whether the two hold different parts of that tensor; copies of one part are no damage.
    """
    del buffer
    seen: dict[tuple[object, ...], list[str]] = {}
    beside = neighbours(tree.root, _NEIGHBOURS)
    for name, items in files.items() if len(files) > 1 else ():
        telling = _of_one_rank(items)
        if not telling:
            continue
        with opened(tree.path(name), name) as mine:
            sums = _sums(mine, telling[0])
            if sums is None:
                continue
            twins = seen.setdefault((mine.size, telling[0].offset, *sums.items()), [])
            for twin in twins:
                theirs = _of_one_rank(files[twin])
                pairs = list(zip(telling, theirs, strict=False))
                # Other tensors of the same numbers are no replicas of one part.
                if not all(one.name != two.name or differ(twin, name, one.name) for one, two in pairs):
                    continue
                with opened(tree.path(twin), twin) as other:
                    if len(theirs) == len(telling):
                        same = all(_sums(mine, one) == _sums(other, two) for one, two in pairs[1:])
                    else:  # what lies there in one of them may be no tensor that tells
                        same = _same_at(mine, other, [*telling, *theirs])
                renamed = [pair for pair in pairs if pair[0].name != pair[1].name]
                if same and len(renamed) == len(pairs) and any(_all_same_in(at, pairs) for at in beside):
                    continue  # each rank keeps a copy under names of its own, in every save
                if same and not all(_constant(mine, item) for item in telling):
                    raise NotKnown(f"{visible(name)} holds the numbers of {visible(twin)}: a shard is there twice")
        twins.append(name)


def _same_at(mine: Handle, other: Handle, items: Sequence[Item]) -> bool:
    """Whether two shards hold the same at the places of these pieces."""
    try:
        return all(_sums(mine, item) == _sums(other, item) for item in items)
    except (NotKnown, Broken):
        return False


def refuse_copies(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where two matrices have the same moments, and training did not give them the same.

    Matrices that are added (``A x + B x``), and copies that each rank keeps under a name of its own, have the same
    gradients: then all their moments are the same, and so they are in the saves beside.
    """
    del buffer
    seen: dict[tuple[object, ...], tuple[Parameter, Item]] = {}
    for name, items in files.items():
        with opened(tree.path(name), name) as handle:
            for one in parameters(items).values():
                for item in (one.first, one.second):
                    if item is None or item.size is None or len(item.size) < 2 or min(item.size) < 2:
                        continue
                    sums = _sums(handle, item)
                    if sums is None:
                        return
                    twin, theirs = seen.setdefault((item.dtype, item.size, *sums.values()), (one, item))
                    if theirs.name == item.name or _constant(handle, item):
                        continue
                    pairs = [(item, theirs)]
                    if one.first.size == twin.first.size and one is not twin:
                        pairs = [(a, b) for a, b in ((one.first, twin.first), (one.second, twin.second)) if a and b]
                    if not _are_usual(tree, pairs):
                        raise NotKnown(
                            f"{visible(item.name)} holds the numbers of {visible(theirs.name)}: a tensor is there twice"
                        )
                if len(seen) > _COMPARED:
                    return


def _are_usual(tree: Tree, pairs: Sequence[tuple[Item, Item]]) -> bool:
    """Whether the two of each pair are the same here, and in the nearest save beside where that can be seen."""
    if not all(_same_in(tree.root, one, two) for one, two in pairs):
        return any(_all_same_in(folder, pairs) for folder in neighbours(tree.root, _NEIGHBOURS))
    return next(
        (seen for folder in neighbours(tree.root, _NEIGHBOURS) if (seen := _all_same_in(folder, pairs)) is not None),
        True,
    )


def _all_same_in(folder: Path, pairs: Sequence[tuple[Item, Item]]) -> bool | None:
    same = [_same_in(folder, one, two) for one, two in pairs]
    return None if None in same else all(same)


def _same_in(folder: Path, one: Item, two: Item) -> bool | None:
    """Whether two pieces of a save hold the same numbers; None where they cannot be read there."""
    try:
        with opened(folder / one.file, one.file) as mine, opened(folder / two.file, two.file) as theirs:
            return _sums(mine, one) == _sums(theirs, two)
    except (NotKnown, Broken):
        return None


def refuse_negative_squares(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`Broken` where what is named an average of squares begins with negative numbers: another's under its name.

    Nothing but their names in the metadata, which has no checksum, tells a matrix's two moments apart.
    """
    del buffer
    looked_at = 0
    for name, items in files.items():
        squares = [
            item
            for item in telling_items(items)
            if averages_squares(path := item.name.split(".")) and role_of(path) is Role.OPTIMIZER
        ]
        if not squares or looked_at > _COMPARED:
            continue
        looked_at += len(squares)
        with opened(tree.path(name), name) as handle:
            for item in squares:
                scan = FloatScan(Look(item.dtype, squares=True))
                scan.feed(memoryview(start_of_numbers(handle, item)))
                if scan.negative:
                    raise Broken(
                        f"{visible(name)}: {visible(item.name)}: {scan.finding}: another's numbers", "checksum"
                    )


def _of_one_rank(items: Sequence[Item]) -> list[Item]:
    """The tensors that tell one rank's shard from another's, the largest first: the optimizer's, where it has any."""
    telling = telling_items(items)
    moments = [item for item in telling if role_of(item.name.split(".")) is Role.OPTIMIZER]
    return moments or [item for item in telling if not _COPIED.search(item.name)]


def _constant(handle: Handle, item: Item) -> bool:
    """Whether a piece begins with one number again and again: a state that was just made is the same everywhere."""
    start = start_of(handle, item)
    return start == start[:8] * (len(start) // 8)


def _alike(tree: Tree, name: str, items: Sequence[Item], folder: Path) -> bool | None:
    """Whether all tensors of this shard are those of the shard of the other step; None where it has none to compare."""
    telling = telling_items(items)
    if not telling:
        return None
    try:
        with opened(folder / name, name) as other:
            if other.size != tree.files[name].size:
                return False
            with opened(tree.path(name), name) as mine:
                if _sums(mine, telling[0]) is None:
                    return None
                return all(_sums(mine, item) == _sums(other, item) for item in telling)
    except (NotKnown, Broken):
        return False  # not there, not readable or not whole: then it is not the same


def _half_of(
    tree: Tree, files: Mapping[str, Sequence[Item]], name: str, folder: Path, beside: Sequence[Path]
) -> tuple[str, str] | None:
    """What of a shard is as in the other step, and what is not though it must be; None where that is nothing.

    A step changes a parameter, both its moments and the count of its steps, or none of them.
    """
    found = sorted(parameters(files[name]).values(), key=lambda one: one.first.offset)
    try:
        with opened(folder / name, name) as other, opened(tree.path(name), name) as mine:
            if other.size != mine.size:
                return None
            still: list[Parameter] = []
            moved = ""
            for one in found[:_ENDS] + found[_ENDS:][-_ENDS:]:
                same = {item.name: _sums(mine, item) == _sums(other, item) for item in one.all()}
                if _constant(mine, one.first):
                    continue
                if same[one.first.name]:
                    changed = next((item.name for item in one.all() if not same[item.name]), None)
                    if changed:
                        return one.first.name, changed
                    continue
                if (
                    one.step
                    and one.exact
                    and same[one.step.name]
                    and not counted.begun_anew(tree, one.step, folder, beside)
                ):
                    return one.step.name, one.first.name
                if one.second and one.exact and same[one.second.name] and not _constant(mine, one.second):
                    return one.second.name, one.first.name
                if one.weight is not None and one.exact and not _OFTEN_IDLE.search(one.weight.name):
                    still += [one] if same[one.weight.name] else []
                    moved = moved or ("" if same[one.weight.name] else one.weight.name)
            rate = min([*_rates(tree, files, folder), *_rates(tree, files)], default=0.0) if still and moved else 0.0
            for one in still if moved else ():
                # Whichever of the two is the later one, its last step is one of those between them.
                if one.weight and all(must_have_moved(handle, one, rate) for handle in (mine, other)):
                    return one.weight.name, moved
    except (NotKnown, Broken):
        pass  # not there, not readable or cut otherwise: nothing to compare with
    return None


def _rates(tree: Tree, files: Mapping[str, Sequence[Item]], folder: Path | None = None) -> list[float]:
    """The learning rates of this save, or of one beside it; 0 where they are not known."""
    return rates(folder or tree.root, files) or [0.0]


def _sums(handle: Handle, item: Item) -> dict[str, int] | None:
    """The recorded checksums of a piece's numbers; None where the job switched them off."""
    archive = archive_of(handle, item)
    if not archive.has_checksums:
        return None
    return {r.name: r.crc for r in archive.records.values() if "/data/" in r.name}
