"""The stack machine of the pickle reader: builds plain data and `Inert`, imports and calls nothing.

What it is fed has been surveyed (`sentinel.checkpoints.pickles`): lengths lie inside the data, the memory is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from sentinel.checkpoints.pickle_values import Global, Inert, Packed, PickleError

_KEY_DEPTH = 4
_PACKED = frozenset({"MetadataIndex", "_StorageInfo", "ChunkStorageMetadata"})  # of the pieces of a DCP checkpoint


def number(text: bytes) -> int:
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


class Machine:
    """The stack machine. One instance reads one pickle."""

    def __init__(self, data: bytes, wanted: set[int], persistent: Callable[[object], object] | None) -> None:
        self.data = data
        self.wanted = wanted
        self.persistent = persistent
        self.memo: dict[int, object] = {}
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.position = 0
        self.names: dict[tuple[str, str], Global] = {}
        self.tensors: list[Inert] = []  # calls that make a tensor
        self.fields: dict[tuple[str, tuple[object, ...]], tuple[object, ...]] = {}

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

    def read(self) -> object:
        try:
            return self.run()
        except PickleError:
            raise
        except (IndexError, KeyError, TypeError, struct.error, RecursionError, ValueError) as error:
            raise PickleError(f"not a whole pickle ({type(error).__name__})") from None

    def run(self) -> object:
        """Walk the opcodes. The commonest are done here, on locals; the rest are in the table below."""
        data, wanted, memo = self.data, self.wanted, self.memo
        stack, position, memoized = self.stack, self.position, 0
        while True:
            op = data[position]
            position += 1
            if op == 0x94:  # MEMOIZE
                if memoized in wanted:
                    memo[memoized] = stack[-1]
                memoized += 1
            elif op == 0x68:  # BINGET
                stack.append(memo[data[position]])
                position += 1
            elif op == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[position : position + 4], "little")])
                position += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[position])
                position += 1
            elif op == 0x28:  # MARK
                self.marks.append(stack)
                stack = self.stack = []
            elif op == 0x4D:  # BININT2
                stack.append(data[position] | data[position + 1] << 8)
                position += 2
            elif op == 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
            elif op == 0x71:  # BINPUT
                if data[position] in wanted:
                    memo[data[position]] = stack[-1]
                position += 1
            elif op == 0x72:  # LONG_BINPUT
                index = int.from_bytes(data[position : position + 4], "little")
                if index in wanted:
                    memo[index] = stack[-1]
                position += 4
            elif op == 0x4A:  # BININT
                stack.append(int.from_bytes(data[position : position + 4], "little", signed=True))
                position += 4
            elif op == 0x2E:  # STOP
                return stack[-1]
            else:
                self.position = position
                _ACTIONS[op](self)
                position, stack = self.position, self.stack


def _mark(m: Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []


def _setitems(m: Machine) -> None:
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


def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _store(m.stack[-1], [key, value])


def _appends(m: Machine) -> None:
    items = m.pop_mark()
    _extend(m.stack[-1], items)


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _extend(m.stack[-1], [item])


def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    maker = m.stack[-1]
    if not isinstance(args, tuple) or not isinstance(maker, (Global, Inert)):
        raise PickleError("a call of what is no name")
    if isinstance(maker, Global) and maker.name == "Size" and len(args) == 1 and isinstance(args[0], tuple):
        m.stack[-1] = args[0]  # torch.Size is a tuple
    else:
        made = m.stack[-1] = Inert(maker, args)
        if made.name.startswith("_rebuild_tensor"):
            m.tensors.append(made)


def _newobj_ex(m: Machine) -> None:
    m.stack.pop()
    _reduce(m)


def _build(m: Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if not isinstance(target, Inert):
        raise PickleError("a state for what is no object")
    target.state = state
    if isinstance(state, dict):
        name, fields = target.name, tuple(state)
        shared = m.fields.setdefault((name, fields), fields)
        if name in _PACKED:
            target.state = Packed(shared, tuple(state.values()))
            state.clear()


def _stack_global(m: Machine) -> None:
    name = m.stack.pop()
    m.stack[-1] = m.global_(m.stack[-1], name)


def _global(m: Machine) -> None:
    module, name = m.line().decode(), m.line().decode()
    m.stack.append(m.global_(module, name))


def _inst(m: Machine) -> None:
    maker = m.global_(m.line().decode(), m.line().decode())
    m.stack.append(Inert(maker, tuple(m.pop_mark())))


def _obj(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(Inert(items[0], tuple(items[1:])))


def _dict(m: Machine) -> None:
    items = m.pop_mark()
    made: dict[object, object] = {}
    _store(made, items)
    m.stack.append(made)


def _tuple(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(tuple(items))


def _list(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(items)


def _tuple_of(count: int) -> Callable[[Machine], None]:
    def make(m: Machine) -> None:
        if len(m.stack) < count:
            raise PickleError("a tuple of more than there is")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return make


def _constant(value: object) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(value)


def _text(width: int) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(str(m.block(width), "utf-8", "surrogatepass"))


def _bytes(width: int) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(m.block(width))


def _latin(width: int) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(str(m.block(width), "latin-1"))


def _long(width: int) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(int.from_bytes(m.block(width), "little", signed=True))


def _int_line(m: Machine) -> None:
    text = m.line()
    m.stack.append({b"00": False, b"01": True}.get(text, number(text)))


def _string_line(m: Machine) -> None:
    m.stack.append(m.line().strip(b"'\"").decode("latin-1"))


def _float(m: Machine) -> None:
    m.stack.append(struct.unpack_from(">d", m.data, m.position)[0])
    m.position += 8


def _skip(count: int) -> Callable[[Machine], None]:
    def skip(m: Machine) -> None:
        m.position += count

    return skip


def _persistent(m: Machine, what: object) -> None:
    if m.persistent is None:
        raise PickleError("a reference to something outside")
    m.stack.append(m.persistent(what))


def _put_line(m: Machine) -> None:
    index = number(m.line())
    if index in m.wanted:
        m.memo[index] = m.stack[-1]


_ACTIONS: dict[int, Callable[[Machine], None]] = {
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
    0x4C: lambda m: m.stack.append(number(m.line())),
    0x53: _string_line,
    0x56: lambda m: m.stack.append(str(m.line(), "raw-unicode-escape")),
    0x67: lambda m: m.stack.append(m.memo[number(m.line())]),
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
