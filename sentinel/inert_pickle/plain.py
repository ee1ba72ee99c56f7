"""Pickles in which no opcode names, calls or builds anything: None, numbers, texts, lists, tuples and tables only.

Most large pickles that are read here are of that kind (flight-recorder dumps are), and of them nothing but data can come:
`pickle.Unpickler` decodes them ten times faster than the machine of this package does. So a scan goes first, which walks
over every opcode and accepts these few only; what it does not accept is left to the machine, which is also the one that
says what is wrong with it. A pickle is decoded in parts of its longest list, so that only one part stands in memory.

A value that comes from here may contain itself, and may be nested to any depth through single appends: for readers that
look at fixed places only.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

PART_BYTES = 1 << 20
MOST_BYTES = 64 << 20
_PART_MOST_BYTES = 3 << 19  # a part that cannot be cut takes at most 64 times as much: an empty table from each byte
_TUPLES = 10_000  # in a part; deeper, the hash of a tuple in a tuple would need more of the stack than there is
_DEPTH = 64
_MOST_TEXTS, _NAMES, _FRAMES = 100_000, 50_000, 5_000  # of such small things so many are kept from part to part
_UNSIGNED = struct.Struct("<I").pack


def _lengths(width: int, most: int) -> bytes:
    """A text of up to so many bytes behind its length, little-endian in ``width`` bytes."""
    zeros = b"\\x00" * (width - 1)
    return b"|".join(b"\\x%02x%s.{%d}" % (length, zeros, length) for length in range(most + 1))


# None, booleans, integers (of at most eight bytes), floats, short texts, empty lists and tables; memo entries below a
# million are stored and fetched; single appends. The quantifiers are possessive: no way back, no memory for it.
_SCALAR = (
    rb"[N\x88\x89}\]as]|[Khq].|M..|J.{4}|G.{8}|j.{4}|r..[\x00-\x0f]\x00|\x8a(?:"
    + _lengths(1, 8)
    + rb")|X(?:"
    + _lengths(4, 160)
    + rb")|\x8c(?:"
    + _lengths(1, 160)
    + rb")"
)


def _runs(scalar: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?:" + scalar + rb"|\((?:" + scalar + rb")*+[ue])*+", re.DOTALL)


# By protocol: from the fourth on entries of the memo are numbered in the order of their opcodes.
_RUNS = {
    b"\x02": _runs(_SCALAR),
    b"\x03": _runs(_SCALAR),
    b"\x04": _runs(rb"\x94|" + _SCALAR),
    b"\x05": _runs(rb"\x94|" + _SCALAR),
}
_MARK, _STOP, _FRAME = 0x28, 0x2E, 0x95
_CLOSE = frozenset(b"ueto")
_TUPLE_OF = frozenset(b"\x85\x86\x87")
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}  # opcode -> bytes of its length


class _Closed(pickle.Unpickler):
    """For opcodes that name something, of which the scan has found none. ``memo``: what earlier parts left there."""

    def __init__(self, text: bytes, memo: dict[int, object]) -> None:
        # The memo of a reader can be filled by opcodes only, so some of ours stand before the text: each fetches one.
        before = b"".join([b"J%sQr%s0" % ((index := _UNSIGNED(place)), index) for place in memo])
        # Buffered: the reader looks ahead in it, and asks for every opcode where it cannot.
        file = io.BufferedReader(io.BytesIO(b"\x80\x02" + before + text), 1 << 18)
        super().__init__(file)
        self.persistent_load = memo.__getitem__  # type: ignore[method-assign]

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"a name: {module}.{name}")


def parts(data: bytes, key: str) -> Iterator[object] | None:
    """The value, in parts: each but the only one is a table with a part of the list under ``key``, and the first also
    with what stands before it, the last with what stands after it.

    None when the pickle is of another kind, or torn; the iterator raises ValueError where it turns out unsound.
    """
    cuts = _scan(data)
    if cuts is None:
        return None
    bounds = [0, *cuts, len(data)]
    if max(end - start for start, end in pairwise(bounds)) > _PART_MOST_BYTES:
        return None
    return _decode(data, cuts, key)


def _decode(data: bytes, cuts: tuple[int, ...], key: str) -> Iterator[object]:
    if not cuts:
        yield _part(data, {}, more=False)[0]
        return
    name = key.encode()
    again = b"}(X" + len(name).to_bytes(4, "little") + name + b"]("
    start, memo = 0, dict[int, object]()
    for end in (*cuts, len(data)):
        whole = end == len(data)
        text = (again if start else b"") + data[start:end] + (b"" if whole else b"eu.")
        value, memo = _part(text, memo, more=not whole)
        if not isinstance(value, dict) or not isinstance(value.get(key), list):
            raise ValueError(f"no list under {key}")
        yield value
        start = end


def _part(text: bytes, memo: dict[int, object], more: bool) -> tuple[object, dict[int, object]]:
    """Its value, and of its memo what later parts may fetch."""
    reader = _Closed(text, memo)
    collects = gc.isenabled()
    gc.disable()  # it would go through all that is being built, again and again
    try:
        value = reader.load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a sound pickle ({type(error).__name__})") from None
    finally:
        if collects:
            gc.enable()
    return value, _kept(reader.memo.copy()) if more else {}


def _kept(memo: Mapping[int, object]) -> dict[int, object]:
    """Texts; names of groups (tuples of texts); frames of stacks (tables of three), unless every call has its own."""
    texts: dict[int, object] = {}
    names: dict[int, object] = {}
    frames: dict[int, object] = {}
    for place, item in memo.items():
        if isinstance(item, str):
            texts[place] = item
        elif isinstance(item, tuple) and _plain(item):
            names[place] = item
        elif isinstance(item, dict) and len(item) == 3 and _plain(item.values()):
            frames[place] = item
    if len(texts) > _MOST_TEXTS:
        raise ValueError(f"more than {_MOST_TEXTS} texts")
    kept = texts | names if len(names) <= _NAMES else texts
    return kept | frames if len(frames) <= _FRAMES else kept


def _plain(items: Iterable[object]) -> bool:
    return all(type(item) is str or type(item) is int for item in items)


def _scan(data: bytes) -> tuple[int, ...] | None:
    """Where parts may end: where an entry of the list at the second mark has just ended. None when the pickle holds an
    opcode, a length or a depth that is not accepted here."""
    size = len(data)
    pattern = _RUNS.get(data[1:2]) if data[:1] == b"\x80" else None
    if size > MOST_BYTES or pattern is None:
        return None
    run, position, depth, tuples, last_cut = pattern.match, 2, 0, 0, 0
    cuts: list[int] = []
    while position < size:
        found = run(data, position)
        if found is None:
            return None
        position = found.end()
        if position >= size:
            return None
        op = data[position]
        if op == _MARK:
            depth += 1
            position += 1
            if depth > _DEPTH:
                return None
        elif op in _CLOSE:
            if op == 0x6F:
                return None
            depth -= 1
            position += 1
            tuples += op == 0x74
            if tuples > _TUPLES:
                return None
            full = position - last_cut >= PART_BYTES or tuples > _TUPLES // 2
            if full and depth == 2 and op == 0x75 and data[1] < 4:
                cuts.append(position)
                last_cut, tuples = position, 0
        elif op in _TUPLE_OF:
            tuples += 1
            position += 1
            if tuples > _TUPLES:
                return None
        elif op == _STOP:
            return tuple(cuts) if position + 1 == size else None
        else:
            after = _other(data, position, op)
            if after is None:
                return None
            position = after
    return None


def _other(data: bytes, position: int, op: int) -> int | None:
    """Where the opcode after a rarer one begins: a frame, an empty tuple, a longer text."""
    size = len(data)
    if op == 0x29:
        return position + 1
    if op == _FRAME:  # the decoder asks for the memory of a whole frame at once
        start = position + 9
        return start if start + int.from_bytes(data[position + 1 : start], "little") <= size else None
    width = _TEXTS.get(op, 0)
    if not width:
        return None
    start = position + 1 + width
    length = int.from_bytes(data[position + 1 : start], "little")
    return start + length if start + length <= size else None
