"""Read a pickle without running it.

Checkpoints describe themselves with pickles (DCP's ``.metadata``, ``data.pkl`` in a torch.save file), and a pickle is a
program. This reader interprets its opcodes and builds plain data only: numbers, text, bytes, tuples, lists, dicts, and
`Inert` in the place of every object. Nothing is imported and nothing is called. A hostile pickle cannot exhaust the
memory: a first pass walks the opcodes, refuses those that no checkpoint needs, checks every length against the bytes
that are there, adds up what the objects would take, and notes which memo entries are ever read back (only those are
kept, which also halves the memory for honest pickles).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

MEMORY_BYTES = 150 << 20  # what the objects of one pickle may take; the promise for the process is 200 MB
_KEY_DEPTH = 4


class PickleError(ValueError):
    """The bytes are not a pickle that a checkpoint would hold."""


class PickleTooLarge(PickleError):
    """Well formed as far as seen, but its objects would not fit in the memory that this reader allows itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A name that the pickle would have imported."""

    module: str
    name: str

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"


class Inert:
    """An object that was not made: the name that would have been called, its arguments, its state and items."""

    __slots__ = ("args", "items", "maker", "state")

    def __init__(self, maker: object, args: object) -> None:
        self.maker = maker
        self.args = args
        self.state: object = None
        self.items: list[object] | None = None

    @property
    def name(self) -> str:
        return self.maker.name if isinstance(self.maker, Global) else ""

    def get(self, key: str) -> object:
        """A field of the object's state; `PickleError` where there is none."""
        if isinstance(self.state, dict) and key in self.state:
            return self.state[key]
        raise PickleError(f"{self.name or 'object'} has no field {key}")


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
# What one opcode may add to the memory, beside the bytes of its argument.
_WEIGHT = [8] * 256
for _op in b"}]\x8f\x91ld":
    _WEIGHT[_op] = 150
for _op in b"R\x81\x92iocs\x93bu":
    _WEIGHT[_op] = 130
for _op in b"t\x85\x86\x87QP(":
    _WEIGHT[_op] = 72
for _op in b"JMGFIL\x8a\x8b":
    _WEIGHT[_op] = 32
for _op in b"\x8cXVSUTBC\x8d\x8e\x96":
    _WEIGHT[_op] = 60
_SIZE_OF = [_SIZES.get(_op, -99) for _op in range(256)]


def _survey(data: bytes, start: int, budget_bytes: int) -> tuple[set[int], int]:
    """The memo entries that are read back, and where the pickle ends.

    Refuses unknown opcodes, lengths past the end and what would not fit.
    """
    size_of, weight = _SIZE_OF, _WEIGHT
    position, end, cost, frame_end = start, len(data), 0, 0
    wanted: set[int] = set()
    find = data.find
    while position < end:
        op = data[position]
        position += 1
        size = size_of[op]
        cost += weight[op]
        if size == 0:
            if op == 0x2E:
                break
            continue
        if size > 0:
            if op == 0x68 and position < end:
                wanted.add(data[position])
            elif op == 0x6A:
                wanted.add(int.from_bytes(data[position : position + 4], "little"))
            elif op == 0x95:
                frame_end = position + 8 + int.from_bytes(data[position : position + 8], "little")
                if frame_end > end:
                    raise PickleError("a frame that reaches past its end")
            elif op == 0x80 and data[position : position + 1] > b"\x05":
                raise PickleError("an unknown protocol")
            position += size
        elif size >= -2:
            for _ in range(-size):
                newline = find(b"\n", position)
                if newline < 0:
                    raise PickleError("a line that does not end")
                if op == 0x67:
                    wanted.add(_number(data[position:newline]))
                position = newline + 1
        elif size == -99:
            raise PickleError(f"opcode {op:#x}, which no checkpoint needs")
        else:
            width = 1 if size == -3 else -size
            length = int.from_bytes(data[position : position + width], "little")
            position += width + length
            cost += length
        if position > end:
            raise PickleError("ends in the middle of a value")
        if cost > budget_bytes:
            break
    else:
        raise PickleError("ends without its end mark")
    if cost > budget_bytes:
        raise PickleTooLarge(f"describes more than {budget_bytes >> 20} MB of objects")
    if frame_end not in (0, position):
        raise PickleError("its last frame does not end where it ends")
    return wanted, position


def _number(text: bytes) -> int:
    if len(text) > 400:
        raise PickleError("a number of more than 400 digits")
    try:
        return int(text.rstrip(b"L") or b"0")
    except ValueError:
        raise PickleError("a number that is none") from None


def _key(value: object, depth: int = 0) -> object:
    """A key that can be hashed in bounded time: plain values, or shallow tuples of them."""
    if isinstance(value, tuple):
        if depth >= _KEY_DEPTH or len(value) > 64:
            raise PickleError("a key of nested tuples")
        for part in value:
            _key(part, depth + 1)
        return value
    if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) > 1 << 60):
        raise PickleError("a key that is no plain value")
    return value


def load(
    data: bytes,
    *,
    persistent: Callable[[object], object] | None = None,
    budget_bytes: int = MEMORY_BYTES,
) -> object:
    """The value that the pickle describes, as plain data. Raises `PickleError`; never anything else."""
    value, end = load_from(data, 0, persistent=persistent, budget_bytes=budget_bytes)
    if end != len(data):
        raise PickleError("bytes after its end mark")
    return value


def load_from(
    data: bytes,
    start: int,
    *,
    persistent: Callable[[object], object] | None = None,
    budget_bytes: int = MEMORY_BYTES,
) -> tuple[object, int]:
    """The value of the pickle that starts there, and where it ends."""
    wanted, end = _survey(data, start, budget_bytes)
    machine = _Machine(data, wanted, persistent)
    machine.position = start
    try:
        return machine.run(), end
    except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"not a whole pickle ({type(error).__name__})") from None


class _Machine:
    """The stack machine. One instance reads one pickle."""

    def __init__(self, data: bytes, wanted: set[int], persistent: Callable[[object], object] | None) -> None:
        self.data = data
        self.wanted = wanted
        self.persistent = persistent
        self.memo: dict[int, object] = {}
        self.memoized = 0
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.position = 0
        self.names: dict[tuple[str, str], Global] = {}

    def global_(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("a name that is no text")
        found = self.names.get((module, name))
        if found is None:
            found = self.names[(module, name)] = Global(module, name)
        return found

    def pop_mark(self) -> list[object]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def line(self) -> bytes:
        newline = self.data.index(b"\n", self.position)
        text = self.data[self.position : newline]
        self.position = newline + 1
        return text

    def block(self, width: int) -> bytes:
        length = int.from_bytes(self.data[self.position : self.position + width], "little")
        start = self.position + width
        self.position = start + length
        return self.data[start : start + length]

    def run(self) -> object:
        """Walk the opcodes. The commonest come first; the rest are in `rare`."""
        data, wanted, memo = self.data, self.wanted, self.memo
        while True:
            op = data[self.position]
            self.position += 1
            if op == 0x94:  # MEMOIZE
                if self.memoized in wanted:
                    memo[self.memoized] = self.stack[-1]
                self.memoized += 1
            elif op == 0x68:  # BINGET
                self.stack.append(memo[data[self.position]])
                self.position += 1
            elif op == 0x4B:  # BININT1
                self.stack.append(data[self.position])
                self.position += 1
            elif op == 0x71:  # BINPUT
                if data[self.position] in wanted:
                    memo[data[self.position]] = self.stack[-1]
                self.position += 1
            elif op == 0x6A:  # LONG_BINGET
                at = self.position
                self.stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                self.position = at + 4
            elif op == 0x72:  # LONG_BINPUT
                at = self.position
                index = int.from_bytes(data[at : at + 4], "little")
                if index in wanted:
                    memo[index] = self.stack[-1]
                self.position = at + 4
            elif op == 0x4D:  # BININT2
                at = self.position
                self.stack.append(data[at] | data[at + 1] << 8)
                self.position = at + 2
            elif op == 0x4A:  # BININT
                at = self.position
                self.stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
                self.position = at + 4
            elif op == 0x2E:  # STOP
                return self.stack[-1]
            else:
                _ACTIONS[op](self)


def _mark(m: _Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []


def _setitems(m: _Machine) -> None:
    items = m.pop_mark()
    _store(m.stack[-1], items)


def _store(target: object, items: list[object]) -> None:
    if len(items) % 2:
        raise PickleError("a key without a value")
    if isinstance(target, dict):
        for index in range(0, len(items), 2):
            key = items[index]
            target[key if type(key) is str or type(key) is Inert else _key(key)] = items[index + 1]
    elif isinstance(target, Inert):
        _extend(target, [tuple(items[i : i + 2]) for i in range(0, len(items), 2)])
    else:
        raise PickleError("items for what is no dict")


def _extend(target: object, items: list[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Inert):
        if target.items is None:
            target.items = []
        target.items.extend(items)
    else:
        raise PickleError("items for what is no list")


def _setitem(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _store(m.stack[-1], [key, value])


def _appends(m: _Machine) -> None:
    items = m.pop_mark()
    _extend(m.stack[-1], items)


def _append(m: _Machine) -> None:
    item = m.stack.pop()
    _extend(m.stack[-1], [item])


def _reduce(m: _Machine) -> None:
    args = m.stack.pop()
    maker = m.stack[-1]
    if not isinstance(args, tuple) or not isinstance(maker, (Global, Inert)):
        raise PickleError("a call of what is no name")
    m.stack[-1] = Inert(maker, args)


def _newobj_ex(m: _Machine) -> None:
    m.stack.pop()
    _reduce(m)


def _build(m: _Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if not isinstance(target, Inert):
        raise PickleError("a state for what is no object")
    target.state = state


def _stack_global(m: _Machine) -> None:
    name = m.stack.pop()
    m.stack[-1] = m.global_(m.stack[-1], name)


def _global(m: _Machine) -> None:
    module, name = m.line().decode(), m.line().decode()
    m.stack.append(m.global_(module, name))


def _inst(m: _Machine) -> None:
    maker = m.global_(m.line().decode(), m.line().decode())
    m.stack.append(Inert(maker, tuple(m.pop_mark())))


def _obj(m: _Machine) -> None:
    items = m.pop_mark()
    m.stack.append(Inert(items[0], tuple(items[1:])))


def _dict(m: _Machine) -> None:
    items = m.pop_mark()
    made: dict[object, object] = {}
    _store(made, items)
    m.stack.append(made)


def _tuple(m: _Machine) -> None:
    items = m.pop_mark()
    m.stack.append(tuple(items))


def _list(m: _Machine) -> None:
    items = m.pop_mark()
    m.stack.append(items)


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def make(m: _Machine) -> None:
        if len(m.stack) < count:
            raise PickleError("a tuple of more than there is")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return make


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _text(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(str(m.block(width), "utf-8", "surrogatepass"))


def _bytes(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.block(width))


def _latin(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(str(m.block(width), "latin-1"))


def _long(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(int.from_bytes(m.block(width), "little", signed=True))


def _int_line(m: _Machine) -> None:
    text = m.line()
    m.stack.append({b"00": False, b"01": True}.get(text, _number(text)))


def _string_line(m: _Machine) -> None:
    m.stack.append(m.line().strip(b"'\"").decode("latin-1"))


def _float(m: _Machine) -> None:
    m.stack.append(struct.unpack_from(">d", m.data, m.position)[0])
    m.position += 8


def _skip(count: int) -> Callable[[_Machine], None]:
    def skip(m: _Machine) -> None:
        m.position += count

    return skip


def _persistent(m: _Machine, what: object) -> None:
    if m.persistent is None:
        raise PickleError("a reference to something outside")
    m.stack.append(m.persistent(what))


def _put_line(m: _Machine) -> None:
    index = _number(m.line())
    if index in m.wanted:
        m.memo[index] = m.stack[-1]


_ACTIONS: dict[int, Callable[[_Machine], None]] = {
    0x28: _mark,
    0x30: lambda m: (m.stack.pop(), None)[1],
    0x31: lambda m: (m.pop_mark(), None)[1],
    0x32: lambda m: m.stack.append(m.stack[-1]),
    0x4E: _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    0x29: _constant(()),
    0x7D: lambda m: m.stack.append({}),
    0x5D: lambda m: m.stack.append([]),
    0x8F: lambda m: m.stack.append([]),  # a set, kept as a list: its items need no hash
    0x52: _reduce,
    0x81: _reduce,
    0x92: _newobj_ex,
    0x61: _append,
    0x65: _appends,
    0x90: _appends,
    0x91: _tuple,
    0x62: _build,
    0x64: _dict,
    0x6C: _list,
    0x6F: _obj,
    0x69: _inst,
    0x73: _setitem,
    0x75: _setitems,
    0x74: _tuple,
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    0x93: _stack_global,
    0x63: _global,
    0x80: _skip(1),
    0x95: _skip(8),
    0x47: _float,
    0x46: lambda m: m.stack.append(float(m.line())),
    0x49: _int_line,
    0x4C: lambda m: m.stack.append(_number(m.line())),
    0x53: _string_line,
    0x56: lambda m: m.stack.append(m.line().decode("latin-1")),
    0x67: lambda m: m.stack.append(m.memo[_number(m.line())]),
    0x70: _put_line,
    0x50: lambda m: _persistent(m, m.line().decode("latin-1")),
    0x51: lambda m: _persistent(m, m.stack.pop()),
    0x8C: _text(1),
    0x58: _text(4),
    0x8D: _text(8),
    0x43: _bytes(1),
    0x42: _bytes(4),
    0x8E: _bytes(8),
    0x96: _bytes(8),
    0x55: _latin(1),
    0x54: _latin(4),
    0x8A: _long(1),
    0x8B: _long(4),
}
