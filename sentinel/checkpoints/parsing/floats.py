"""The search for numbers that cannot be: NaN and infinity in the bytes of tensors, negative ones in averages of squares.

No numpy and no torch: the high bytes of a float tell (exponent all ones), and slicing every n-th byte of a buffer and
searching it for one value runs at memory speed.
"""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

# dtype -> (bytes of one float, values of its high byte that hint at NaN or infinity). A complex number is two floats.
_HINTS: dict[str, tuple[int, bytes]] = {
    "float32": (4, b"\x7f\xff"),
    "complex64": (4, b"\x7f\xff"),
    "float64": (8, b"\x7f\xff"),
    "complex128": (8, b"\x7f\xff"),
    "bfloat16": (2, b"\x7f\xff"),
    "float16": (2, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"),
    "complex32": (2, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"),
    "float8_e4m3fn": (1, b"\x7f\xff"),
    "float8_e5m2": (1, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"),
    "float8_e4m3fnuz": (1, b"\x80"),
    "float8_e5m2fnuz": (1, b"\x80"),
    "float8_e8m0fnu": (1, b"\xff"),
}
_UNSIGNED = ("float8_e8m0fnu",)
_COMPLEX = ("complex64", "complex128", "complex32")
_NEGATIVE_INFINITY = {"float32": b"\x80\xff", "bfloat16": b"\x80\xff", "float16": b"\xfc", "float64": b"\xf0\xff"}
# A mask forbids much of what it covers; a weight that went bad has single infinities at first. A causal mask of two
# positions, the smallest, has a quarter.
_MASK_FRACTION = 0.2


def has_floats(dtype: str) -> bool:
    """Whether a tensor of that type can hold a NaN."""
    return dtype in _HINTS


@dataclass(frozen=True, slots=True)
class View:
    """The elements of a storage that one tensor shows: the first, and for each dimension the length and the stride."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def dense(self) -> tuple[int, int] | None:
        """(first, behind the last) where the view is one stretch without a gap; None where it has gaps."""
        count = 1
        for step, length in sorted(zip(self.stride, self.size, strict=True)):
            if length == 1:
                continue
            if step != count:
                return None
            count *= length
        return self.offset, self.offset + count

    def shows(self, element: int) -> bool:
        """Whether that element of the storage is one of the tensor's."""
        rest = element - self.offset
        if rest < 0:
            return False
        for step, length in sorted(zip(self.stride, self.size, strict=True), reverse=True):
            if step and length > 1:
                rest -= min(rest // step, length - 1) * step
        return rest == 0


@dataclass(frozen=True, slots=True)
class Look:
    """What of one storage is looked at: as which type, through which views (none: all of it), how strictly.

    ``masks``: a tensor of nothing but zeros and negative infinity is an attention mask, which models keep as a buffer;
    ``least``: if at least that share of it is infinite. ``unset``: nothing but one infinity is a buffer not set yet.
    ``infinities``: infinities are what the tensor is for. ``squares``: it averages squares, so that none is negative.
    """

    dtype: str
    views: tuple[View, ...] = ()
    masks: bool = True
    least: float = _MASK_FRACTION
    unset: bool = False
    infinities: bool = False
    squares: bool = False


class FloatScan:
    """Looks through bytes, piece by piece (pieces of whole elements), for numbers that cannot be."""

    def __init__(self, look: Look) -> None:
        self.dtype = look.dtype
        self.nan = False
        self.infinite = False
        self.negative = False
        self._look = look
        self._hint = _HINTS.get(look.dtype)
        self._per_element = 2 if look.dtype in _COMPLEX else 1
        self._position = 0  # floats fed so far
        self._stretches = _stretches(look.views)
        # Through a view with gaps nobody looks: what lies between its elements may be anything.
        self._squares = look.squares and look.dtype not in _UNSIGNED and (not look.views or self._stretches is not None)
        self._mask = look.masks and look.dtype in _NEGATIVE_INFINITY
        self._seen = self._forbidden = 0  # floats, and negative infinities among them
        self._unset = look.unset and self._hint is not None
        self._first = b""
        self._again = 0  # floats that are as the first one

    def feed(self, piece: memoryview) -> None:
        if self._hint is None or self.nan:
            return
        width = self._hint[0]
        first, count = self._position, len(piece) // width
        self._position += count
        if self._stretches is None:
            self._feed(bytes(piece), first)
            return
        for low, high in self._stretches:
            begin = max(low * self._per_element, first) - first
            end = min(high * self._per_element, first + count) - first
            if begin < end:
                self._feed(bytes(piece[begin * width : end * width]), first + begin)

    def _feed(self, data: bytes, first: int) -> None:
        assert self._hint is not None
        width, hints = self._hint
        high = data[width - 1 :: width]  # slicing bytes is five times as fast as slicing a view
        suspicious = (
            any(high.find(hints[i : i + 1]) >= 0 for i in range(len(hints)))
            if len(hints) <= 2
            else len(high.translate(None, hints)) != len(high)
        )
        if suspicious:
            self._find(data, high, first)
        if self._squares and not self.negative and not high.isascii():
            self.negative = _any_negative(self.dtype, data)
        if self._mask:
            self._mask_of(data)
        if self._unset:
            self._unset_in(data, width)

    def _unset_in(self, data: bytes, width: int) -> None:
        self._first = self._first or data[:width]
        count = len(data) // width
        self._unset = _kind(self.dtype, self._first) == "infinity" and data == self._first * count
        self._again += count

    def _find(self, data: bytes, high: bytes, first: int) -> None:
        """Look at floats of which some hint at something."""
        nan, infinite = _kinds(self.dtype, data)
        if self._look.views and self._stretches is None:
            nan, infinite = self._find_shown(data, high, first, (nan, infinite))
        self.nan = self.nan or nan
        self.infinite = self.infinite or infinite

    def _find_shown(self, data: bytes, high: bytes, first: int, present: tuple[bool, bool]) -> tuple[bool, bool]:
        """Which of the two kinds lie in a view that has gaps. Slow, so only what is present is looked for."""
        assert self._hint is not None
        width, hints = self._hint
        wanted = {"nan": present[0], "infinity": present[1] and not self.infinite, "": False}
        found = {"nan": False, "infinity": False}
        for hint in hints:
            at = high.find(hint)
            while at >= 0 and any(wanted.values()):
                kind = _kind(self.dtype, data[at * width : at * width + width])
                element = (first + at) // self._per_element
                if wanted[kind] and any(view.shows(element) for view in self._look.views):
                    found[kind], wanted[kind] = True, False
                at = high.find(hint, at + 1)
        return found["nan"], found["infinity"]

    def _mask_of(self, data: bytes) -> None:
        assert self._hint is not None
        pattern = _NEGATIVE_INFINITY[self.dtype]
        rest = data.translate(None, b"\0")
        count = rest.count(pattern)
        self._seen += len(data) // self._hint[0]
        self._forbidden += count
        self._mask = len(rest) == count * len(pattern)

    @property
    def finding(self) -> str:
        """What is wrong; empty where nothing is."""
        if self.nan:
            return "NaN"
        if self.negative:
            return "a negative average of squares"
        if not self.infinite or self._look.infinities or (self._unset and self._again > 1):
            return ""
        return "" if self._mask and self._forbidden >= self._look.least * self._seen else "infinity"


def _kinds(dtype: str, data: bytes) -> tuple[bool, bool]:
    """Whether there is a NaN, and whether there is an infinity, at the speed of the standard library's loops."""
    width = _HINTS[dtype][0]
    if width >= 4:
        numbers = array.array("f" if width == 4 else "d", data)
        return any(map(math.isnan, numbers)), math.inf in numbers or -math.inf in numbers
    words = {word.to_bytes(width, "little") for word in set(array.array("H" if width == 2 else "B", data))}
    kinds = {_kind(dtype, word) for word in words}
    return "nan" in kinds, "infinity" in kinds


def _any_negative(dtype: str, data: bytes) -> bool:
    """Whether a number is below zero; a negative zero is not."""
    width = _HINTS[dtype][0]
    if width >= 4:
        return min(array.array("f" if width == 4 else "d", data)) < 0
    sign = 1 << (8 * width - 1)
    return any(word > sign for word in set(array.array("H" if width == 2 else "B", data)))


def _kind(dtype: str, raw: bytes) -> str:
    """``nan``, ``infinity``, or empty for a finite number."""
    if dtype in ("float32", "complex64", "float64", "complex128"):
        value = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
        return "nan" if math.isnan(value) else "infinity" if math.isinf(value) else ""
    word = int.from_bytes(raw, "little")
    if len(raw) == 2:
        exponent, fraction = (0x7F80, 0x7F) if dtype == "bfloat16" else (0x7C00, 0x3FF)
    elif dtype == "float8_e5m2":
        exponent, fraction = 0x7C, 0x03
    else:
        return "nan" if raw in (bytes((hint,)) for hint in _HINTS[dtype][1]) else ""  # and no infinity
    if word & exponent != exponent:
        return ""
    return "nan" if word & fraction else "infinity"


def _stretches(views: Sequence[View]) -> list[tuple[int, int]] | None:
    """The views as stretches that do not overlap; None where a view has gaps, or all of it is looked at."""
    found: list[tuple[int, int]] = []
    for view in views:
        stretch = view.dense()
        if stretch is None:
            return None
        found.append(stretch)
    merged: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged or None
