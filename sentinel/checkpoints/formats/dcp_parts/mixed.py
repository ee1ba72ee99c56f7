"""Shards that are not those of this save, or not those of this rank.

Each shard's own checksums match, and DCP records neither step nor rank in a shard. What gives it away: training changes
the weights and moments of every rank in every step, so a shard that is bit for bit that of another step, while the shards
beside it are not, was not written by this save; and two parts of one tensor have not the same numbers on two ranks. The
CRC-32s in the archives' directories tell, without reading the payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import neighbours
from sentinel.checkpoints.formats.dcp_parts.pieces import Item, volume
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.content import Role, averages_squares, role_of
from sentinel.checkpoints.parsing.floats import FloatScan, Look
from sentinel.checkpoints.reading import open_archive
from sentinel.text import visible

_NEIGHBOURS = 4
_SAMPLE = 3  # pieces of a file that are compared first
_SMALL = 4  # elements; what is smaller may well stay the same
_COPIED = re.compile(r"expert|moe", re.IGNORECASE)  # layers that training may begin with as copies of one another
_FIRST_MOMENT, _SECOND_MOMENT = ".exp_avg", ".exp_avg_sq"  # of Adam and its kin
_STEP = ".step"
_OFTEN_IDLE = re.compile(r"expert|moe|emb", re.IGNORECASE)  # rows and layers that no token may have reached for long
_COMPARED = 4096  # parameters whose numbers are compared with one another
_ENDS = 8  # parameters at either end of a shard that are compared: a save is written from one end to the other
_START_BYTES = 4096  # of a piece: whether it is one number again and again

Differ = Callable[[str, str, str], bool]


def compare(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where some of these shards are those of a step beside this one and others are not."""
    del buffer
    all_learn = lru_cache(partial(_all_learn, tree, files))
    for folder in neighbours(tree.root, _NEIGHBOURS):
        same: list[str] = []
        other = 0
        for name, items in files.items():
            alike = _alike(tree, name, items, folder)
            half = _half_of(tree, name, items, folder, all_learn) if alike is False else None
            if half:
                raise NotKnown(
                    f"{visible(name)}: {visible(half[0])} is that of {visible(folder.name)}, {visible(half[1])} is not:"
                    " two saves mixed"
                )
            if alike:
                same.append(name)
            other += alike is False
        if same and other:
            raise NotKnown(
                f"{visible(same[0])} is bit for bit that of {visible(folder.name)}, other shards are not: two saves mixed"
            )


def refuse_twins(tree: Tree, files: Mapping[str, Sequence[Item]], differ: Differ, buffer: bytearray) -> None:
    """`NotKnown` where a shard holds the numbers of another one: copied over it, or written twice.

    ``differ(file, other, tensor)``: whether the two hold different parts of that tensor; copies of one part are no damage.
    """
    del buffer
    seen: dict[tuple[object, ...], list[str]] = {}
    for name, items in files.items() if len(files) > 1 else ():
        telling = _of_one_rank(items)
        if not telling:
            continue
        with opened(tree.path(name), name) as mine:
            sums = [_sums(mine, item) for item in telling[:_SAMPLE]]
            if None in sums:
                continue
            sample = [(item.offset, *(found or {}).items()) for item, found in zip(telling, sums, strict=False)]
            twins = seen.setdefault((mine.size, *sample), [])
            for twin in twins:
                theirs = _of_one_rank(files[twin])
                pairs = list(zip(telling, theirs, strict=False))
                # Other tensors of the same numbers are no replicas of one part.
                if not all(one.name != two.name or differ(twin, name, one.name) for one, two in pairs):
                    continue
                with opened(tree.path(twin), twin) as other:
                    same = len(theirs) == len(telling) and all(
                        _sums(mine, one) == _sums(other, two) for one, two in pairs[_SAMPLE:]
                    )
                if same and not all(_constant(mine, item) for item in telling):
                    raise NotKnown(f"{visible(name)} holds the numbers of {visible(twin)}: a shard is there twice")
        twins.append(name)


def refuse_copies(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`NotKnown` where two matrices have the same moments: training gives no two of them the same gradients.

    Vectors may have the same (two biases that are added), and tied weights are kept with one state.
    """
    del buffer
    seen: dict[tuple[object, ...], str] = {}
    for name, items in files.items():
        with opened(tree.path(name), name) as handle:
            for one in parameters(items).values():
                for item in (one.first, one.second):
                    if item is None or item.size is None or len(item.size) < 2 or min(item.size) < 2:
                        continue
                    sums = _sums(handle, item)
                    if sums is None:
                        return
                    other = seen.setdefault((item.dtype, item.size, *sums.values()), item.name)
                    if other != item.name and not _constant(handle, item):
                        raise NotKnown(
                            f"{visible(item.name)} holds the numbers of {visible(other)}: a tensor is there twice"
                        )
                if len(seen) > _COMPARED:
                    return


def refuse_negative_squares(tree: Tree, files: Mapping[str, Sequence[Item]], buffer: bytearray) -> None:
    """`Broken` where what is named an average of squares begins with negative numbers: another's under its name.

    Nothing but their names in the metadata, which has no checksum, tells a matrix's two moments apart.
    """
    del buffer
    looked_at = 0
    for name, items in files.items():
        squares = [item for item in _telling(items) if averages_squares(item.name.split("."))]
        if not squares or looked_at > _COMPARED:
            continue
        looked_at += len(squares)
        with opened(tree.path(name), name) as handle:
            for item in squares:
                scan = FloatScan(Look(item.dtype, squares=True))
                scan.feed(memoryview(_start(handle, item)))
                if scan.negative:
                    raise Broken(
                        f"{visible(name)}: {visible(item.name)}: {scan.finding}: another's numbers", "checksum"
                    )


def _of_one_rank(items: Sequence[Item]) -> list[Item]:
    """The tensors that tell one rank's shard from another's, the largest first: the optimizer's, where it has any."""
    telling = _telling(items)
    moments = [item for item in telling if role_of(item.name.split(".")) is Role.OPTIMIZER]
    return moments or [item for item in telling if not _COPIED.search(item.name)]


def _constant(handle: Handle, item: Item) -> bool:
    """Whether a piece begins with one number again and again: a state that was just made is the same everywhere."""
    start = _start(handle, item)
    return start == start[:8] * (len(start) // 8)


def _start(handle: Handle, item: Item) -> bytes:
    """The first numbers of a piece of one tensor."""
    for record in _archive(handle, item).records.values():
        if "/data/" in record.name:
            return handle.read(item.offset + record.data, min(record.size, _START_BYTES) // 8 * 8)
    return b""


def _telling(items: Sequence[Item]) -> list[Item]:
    found = [i for i in items if i.plain and i.size and volume(i.size) >= _SMALL and "float" in i.dtype]
    return sorted(found, key=lambda item: -item.length)


def _alike(tree: Tree, name: str, items: Sequence[Item], folder: Path) -> bool | None:
    """Whether all tensors of this shard are those of the shard of the other step; None where it has none to compare."""
    telling = _telling(items)
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
    tree: Tree, name: str, items: Sequence[Item], folder: Path, all_learn: Callable[[], bool]
) -> tuple[str, str] | None:
    """What of a shard is as in the other step, and what is not though it must be; None where that is nothing.

    A step changes a parameter, both its moments and the count of its steps, or none of them.
    """
    found = sorted(parameters(items).values(), key=lambda one: one.first.offset)
    try:
        with opened(folder / name, name) as other, opened(tree.path(name), name) as mine:
            if other.size != mine.size:
                return None
            moved: list[tuple[bool, str]] = []
            for one in found[:_ENDS] + found[_ENDS:][-_ENDS:]:
                same = {item.name: _sums(mine, item) == _sums(other, item) for item in one.all()}
                if _constant(mine, one.first):
                    continue
                if same[one.first.name]:
                    changed = next((item.name for item in one.all() if not same[item.name]), None)
                    if changed:
                        return one.first.name, changed
                    continue
                kept = [item for item in (one.step, one.second) if item and same[item.name]]
                if kept and one.exact and (kept[0] is one.step or not _constant(mine, kept[0])):
                    return kept[0].name, one.first.name
                if one.weight is not None and one.exact and not _OFTEN_IDLE.search(one.weight.name):
                    moved.append((not same[one.weight.name], one.weight.name))
            still = [weight for has_moved, weight in moved if not has_moved]
            if still and len(still) < len(moved) and all_learn():
                return still[0], next(weight for has_moved, weight in moved if has_moved)
    except (NotKnown, Broken):
        pass  # not there, not readable or cut otherwise: nothing to compare with
    return None


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a shard holds of one parameter. ``first``, ``second``: Adam's moments."""

    first: Item
    second: Item | None
    step: Item | None
    weight: Item | None

    def all(self) -> list[Item]:
        return [item for item in (self.first, self.second, self.step, self.weight) if item is not None]

    @property
    def exact(self) -> bool:
        """Whether the type is so fine that a step changes every one of them; half of it rounds small changes away."""
        return all(item.dtype in ("float32", "float64") for item in self.all())


def parameters(items: Sequence[Item]) -> dict[str, Parameter]:
    """The parameters whose first moment lies in this shard, by the name of their state."""
    pieces = {item.name: item for item in _telling(items)}
    counts = {item.name: item for item in items if item.plain and item.size == () and item.name.endswith(_STEP)}
    tails = {other.partition(".")[2]: other for other in pieces if role_of(other.split(".")) is Role.MODEL}
    found: dict[str, Parameter] = {}
    for moment, first in pieces.items():
        if moment.endswith(_FIRST_MOMENT):
            state = moment.removesuffix(_FIRST_MOMENT)
            weight = next((pieces[tails[tail]] for tail in _tails(state) if tail in tails), None)
            second, step = pieces.get(state + _SECOND_MOMENT), counts.get(state + _STEP)
            found[state] = Parameter(first, second, step, weight)
    return found


def _all_learn(tree: Tree, files: Mapping[str, Sequence[Item]]) -> bool:
    """Whether the learning rates are known, and none of them is 0: then a parameter whose moments change does, too."""
    values: list[object] = []
    for name, items in files.items():
        rates = [item for item in items if item.plain and item.size is None and item.name.endswith(".lr")]
        if rates:
            with opened(tree.path(name), name) as handle:
                for item in rates[: 2 * _ENDS]:
                    piece = handle.read(item.offset, min(item.length, _START_BYTES))
                    found = open_archive(lambda at, n, p=piece: p[at : at + n], len(piece), handle.name)  # type: ignore[misc]
                    values.append(found.pickled.value)
    return bool(values) and all(type(value) is float and value > 0 for value in values)


def _tails(name: str) -> Iterator[str]:
    """The names that it ends with, the longest first: ``state.net.0.weight``, ``net.0.weight``, ..."""
    while name:
        name = name.partition(".")[2]
        yield name


def _archive(handle: Handle, item: Item) -> zips.Archive:
    return zips.parse(lambda at, count: handle.read(item.offset + at, count), item.length, handle.name)


def _sums(handle: Handle, item: Item) -> dict[str, int] | None:
    """The recorded checksums of a piece's numbers; None where the job switched them off."""
    archive = _archive(handle, item)
    if not archive.has_checksums:
        return None
    return {r.name: r.crc for r in archive.records.values() if "/data/" in r.name}
