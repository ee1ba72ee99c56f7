"""The first of the two passes: walks the opcodes without building anything.

Refuses opcodes that plain data does not need, checks every length against the bytes that are there, and notes which memo
entries are ever read back: only those are kept by the second pass.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import compress

from sentinel.inert_pickle.values import PickleError, PickleTooLarge, PickleTorn

WINDOW_BYTES = 1 << 20
MARGIN = 16  # the longest opcode with its fixed argument, or with its length
_LINE_BYTES = 4 << 20  # of a file that is read in stretches
_MEMO_LIMIT = 64 << 20  # entries that are kept track of
_FEW = 100_000  # entries that are found by a table, which is faster than a search and larger
_PROTOCOLS = 5

# opcode -> bytes of its fixed argument, or: -1 a line, -2 two lines, -3, -4, -8 a length of 1, 4 or 8 bytes and so many
_SIZES: dict[int, int] = {
    **dict.fromkeys(b"(.012NRabd}el]ost)uQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94", 0),
    **dict.fromkeys(b"Khq\x80", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jjr", 4),
    **dict.fromkeys(b"G\x95", 8),
    **dict.fromkeys(b"FILSVgpP", -1),
    **dict.fromkeys(b"ci", -2),
    **dict.fromkeys(b"\x8cCU\x8a", -3),
    **dict.fromkeys(b"XBT\x8b", -4),
    **dict.fromkeys(b"\x8d\x8e\x96", -8),
}
_UNKNOWN = -99
_SIZE_OF = [_SIZES.get(_op, _UNKNOWN) for _op in range(256)]
# Of the opcodes that need no closer look: how far it is to the next one; 0 for the others.
_STEP_OF = [1 + size if size >= 0 and op not in b".j\x95\x80" else 0 for op, size in enumerate(_SIZE_OF)]

Read = Callable[[int, int], bytes]


class Window:
    """The bytes of a pickle: all of them at once, or a stretch at a time where they are read from a file."""

    __slots__ = ("base", "data", "read", "size")

    def __init__(self, data: bytes, size: int | None = None, read: Read | None = None) -> None:
        self.data = data
        self.base = 0  # where the stretch begins
        self.size = len(data) if size is None else size
        self.read = read

    @classmethod
    def of_file(cls, read: Read, size: int) -> Window:
        return cls(read(0, min(max(WINDOW_BYTES, 2 * MARGIN), size)), size, read)

    @property
    def soft_end(self) -> int:
        """Up to here an opcode may begin and lie in the stretch with its fixed argument."""
        end = len(self.data)
        return end if self.base + end >= self.size else end - MARGIN

    def slide(self, position: int, need: int = 0) -> int:
        """Let the stretch begin at ``position`` (in this one) and hold ``need`` bytes, if there are so many. Returns 0."""
        start = self.base + position
        count = min(max(WINDOW_BYTES, need, 2 * MARGIN), self.size - start)  # shorter, and nothing would move
        assert self.read is not None or count <= 0
        self.data = self.read(start, count) if self.read and count > 0 else b""
        self.base = start
        return 0

    def newline(self, position: int, limit: int) -> tuple[int, int]:
        """(position in the stretch, which may have moved, of the next line; of the newline that ends it, or -1)."""
        while True:
            found = self.data.find(b"\n", position)
            if found >= 0 or self.base + len(self.data) >= self.size:
                return position, found
            if len(self.data) - position > limit:
                raise PickleTooLarge(f"a line of more than {limit} bytes")
            position = self.slide(position, 2 * (len(self.data) - position) + WINDOW_BYTES)


class Survey:
    """What the first pass found: which memo entries are wanted, in order, and where the whole opcodes end."""

    __slots__ = ("_places", "_seen", "end", "frame_end", "size", "torn", "wanted")

    def __init__(self, window: Window, start: int, data_limit: int) -> None:
        self._seen = bytearray(256)
        self.frame_end = 0
        self.torn = ""
        self.size = window.size
        self.end = start
        if window.size > data_limit:
            raise PickleTooLarge(f"{window.size} bytes, more than the {data_limit} that are read")
        try:
            self.end = self._walk(window, start)
        except PickleTorn as error:
            self.torn = str(error)
        self.wanted = array("Q", compress(range(len(self._seen)), self._seen))
        self._seen = bytearray()
        few = len(self.wanted) <= _FEW
        self._places = {index: place for place, index in enumerate(self.wanted)} if few else None

    def _walk(self, window: Window, start: int) -> int:
        """Returns where the pickle ends; where it is torn, ``end`` is where its last whole opcode does."""
        step_of, seen = _STEP_OF, self._seen
        position, data, soft, step = start, window.data, window.soft_end, 0
        base = window.base
        while True:
            while position < soft:
                op = data[position]
                step = step_of[op]
                if step:
                    position += step
                    if op == 0x68 and position <= len(data):
                        seen[data[position - 1]] = 1
                    continue
                if op == 0x2E:
                    return base + position + 1
                if op == 0x6A:  # LONG_BINGET
                    index = int.from_bytes(data[position + 1 : position + 5], "little")
                    if index < len(seen) and position + 5 <= len(data):
                        seen[index] = 1
                        position += 5
                        continue
                self.end = base + position
                position = self._other(window, position, op, _SIZE_OF[op])
                if window.base != base:
                    data, soft, base = window.data, window.soft_end, window.base
                step = 0
            end = base + position
            if end > window.size:
                self.end = end - step
                raise PickleTorn("ends in the middle of a value")
            self.end = end
            if end == window.size:
                raise PickleTorn("ends without its end mark")
            position = window.slide(position)
            data, soft, base = window.data, window.soft_end, window.base

    def _other(self, window: Window, position: int, op: int, size: int) -> int:
        """One of the rarer opcodes. Returns where the next begins."""
        start = window.base + position
        position += 1
        if size == _UNKNOWN:
            raise PickleError(f"opcode {op:#04x} at byte {start}, which plain data does not need")
        if size > 0:
            if window.base + position + size > window.size:
                raise PickleTorn("ends in the middle of a value")
            argument = window.data[position : position + size]
            if op == 0x6A:
                self._want(int.from_bytes(argument, "little"))
            elif op == 0x95:
                self.frame_end = start + 9 + int.from_bytes(argument, "little")
            elif op == 0x80 and argument[0] > _PROTOCOLS:
                raise PickleError("an unknown protocol")
            return position + size
        if size >= -2:
            for _ in range(-size):
                position, newline = window.newline(position, _LINE_BYTES)
                if newline < 0:
                    raise PickleTorn("a line that does not end")
                if op == 0x67:
                    self._want(number(window.data[position:newline], 1024))
                position = newline + 1
            return position
        width = 1 if size == -3 else -size
        left = window.size - window.base - position - width
        length = int.from_bytes(window.data[position : position + width], "little") if left >= 0 else 0
        if length > left:
            raise PickleTorn(f"a value of {length} bytes where {max(left, 0)} are left")
        return position + width + length

    def _want(self, index: int) -> None:
        if index >= min(self.size, _MEMO_LIMIT):  # each entry takes an opcode
            raise PickleError(f"entry {index} of a memo that cannot have so many")
        if index >= len(self._seen):
            self._seen.extend(bytes(max(index + 1 - len(self._seen), min(len(self._seen), 1 << 20))))
        self._seen[index] = 1

    def place(self, index: int) -> int:
        """Where the wanted entry of that index is kept; -1 for one that is not wanted."""
        if self._places is not None:
            return self._places.get(index, -1)
        at = bisect_left(self.wanted, index)
        return at if at < len(self.wanted) and self.wanted[at] == index else -1


def number(text: bytes, limit_bytes: int) -> int:
    """A decimal number of an old protocol, which may end in L."""
    if len(text) > 2 * limit_bytes:
        raise PickleTooLarge(f"an integer of {len(text)} digits")
    try:
        return int(text.rstrip(b"L") or b"0")
    except ValueError:
        raise PickleError("a number that is none") from None
