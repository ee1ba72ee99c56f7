"""What a shard holds of the parameters that an optimizer trains, and what its last step did to them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.files import Broken, Handle, NotKnown, opened
from sentinel.checkpoints.formats.dcp_parts.pieces import Item, volume
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.content import Role, is_average, role_of
from sentinel.checkpoints.parsing.tensors import ITEM_BYTES
from sentinel.checkpoints.reading import open_archive

FIRST_MOMENT, SECOND_MOMENT = ".exp_avg", ".exp_avg_sq"  # of Adam and its kin
_STEP = ".step"
_SMALL = 4  # elements; what is smaller may well stay the same
_START_BYTES = 4096  # of a piece that are looked at
_MOST_RATES = 4096  # learning rates that are read: of each parameter where groups are flattened
_EPSILON = 1e-6  # Adam's, as large as anybody's for sure: a larger one makes steps smaller
_CLEARLY = 8.0  # times the distance of two numbers: so far a step must lead to be seen for sure
_BITS = {"float32": 24, "float64": 53}
_WHOLE = {"int64": "<q", "int32": "<i", "float32": "<f", "float64": "<d"}


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
    pieces = {item.name: item for item in telling_items(items)}
    counts = {item.name: item for item in items if item.plain and item.size == () and item.name.endswith(_STEP)}
    tails: dict[str, list[str]] = {}
    for other in pieces:
        # An average of the weights goes on where a weight is frozen: it is no weight.
        if role_of(other.split(".")) is Role.MODEL and not is_average(other.split(".")):
            tails.setdefault(other.partition(".")[2], []).append(other)
    found: dict[str, Parameter] = {}
    for moment, first in pieces.items():
        if moment.endswith(FIRST_MOMENT):
            state = moment.removesuffix(FIRST_MOMENT)
            named = next((tails[tail] for tail in _tails(state) if tail in tails), [])
            weight = pieces[named[0]] if len(named) == 1 else None  # of several it is not known which is trained
            second, step = pieces.get(state + SECOND_MOMENT), counts.get(state + _STEP)
            found[state] = Parameter(first, second, step, weight)
    return found


def _tails(name: str) -> Iterator[str]:
    """The names that it ends with, the longest first: ``state.net.0.weight``, ``net.0.weight``, ..."""
    while name:
        name = name.partition(".")[2]
        yield name


def rates(root: Path, files: Mapping[str, Sequence[Item]]) -> list[float]:
    """The learning rates that a save of these files keeps; none where one of them is not read."""
    values: list[object] = []
    for name, items in files.items():
        found = [item for item in items if item.name.endswith(".lr")]
        if not found:
            continue
        if len(values) + len(found) > _MOST_RATES or not all(item.plain and item.size is None for item in found):
            return []
        try:
            with opened(root / name, name) as handle:
                for item in found:
                    piece = handle.read(item.offset, min(item.length, _START_BYTES))
                    opened_piece = open_archive(lambda at, n, p=piece: p[at : at + n], len(piece), handle.name)  # type: ignore[misc]
                    values.append(opened_piece.pickled.value)
        except (NotKnown, Broken):
            return []
    known = [value for value in values if type(value) is float]
    return known if len(known) == len(values) else []


def must_have_moved(handle: Handle, one: Parameter, rate: float) -> bool:
    """Whether the last step, at that learning rate, moved most of these weights by more than rounding takes away."""
    if one.weight is None or one.second is None:
        return False
    weights, firsts, seconds = (_numbers(handle, item) for item in (one.weight, one.first, one.second))
    if not weights or not len(weights) == len(firsts) == len(seconds):
        return False
    moved = 0
    for weight, first, second in zip(weights, firsts, seconds, strict=True):
        if second >= 0 and math.isfinite(weight):
            apart = math.ldexp(1.0, math.frexp(weight)[1] - _BITS[one.weight.dtype])
            moved += rate * abs(first) / (math.sqrt(second) + _EPSILON) > _CLEARLY * apart
    return 2 * moved > len(weights)


def count_of(handle: Handle, item: Item) -> float | None:
    """The number in a piece of one number; None where it is of another type."""
    layout = _WHOLE.get(item.dtype)
    values = struct.iter_unpack(layout, start_of_numbers(handle, item)) if layout else iter(())
    return next((float(value[0]) for value in values), None)


def start_of(handle: Handle, item: Item) -> bytes:
    """The first bytes of what is stored of one tensor, in whole units of 4: its numbers, or what packs them."""
    return _start(handle, item, 0)


def start_of_numbers(handle: Handle, item: Item) -> bytes:
    """The first numbers of a piece, as the type that is described; none where the tensor packs them (8-bit states)."""
    return _start(handle, item, ITEM_BYTES[item.dtype] * volume(item.size or ()))


def _start(handle: Handle, item: Item, at_least: int) -> bytes:
    for record in archive_of(handle, item).records.values():
        if "/data/" in record.name:
            length = min(record.size, _START_BYTES) if record.size >= at_least else 0
            return handle.read(item.offset + record.data, length // 4 * 4)
    return b""


def _numbers(handle: Handle, item: Item) -> list[float]:
    width, letter = {"float32": (4, "f"), "float64": (8, "d")}[item.dtype]
    data = start_of_numbers(handle, item)
    return list(struct.unpack(f"<{len(data) // width}{letter}", data))


def archive_of(handle: Handle, item: Item) -> zips.Archive:
    return zips.parse(lambda at, count: handle.read(item.offset + at, count), item.length, handle.name)


def telling_items(items: Sequence[Item]) -> list[Item]:
    found = [i for i in items if i.plain and i.size and volume(i.size) >= _SMALL and "float" in i.dtype]
    return sorted(found, key=lambda item: -item.length)
