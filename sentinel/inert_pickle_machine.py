"""The stack machine and the opcodes of `sentinel.inert_pickle`, which is what to import."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class PickleError(ValueError):
    """The bytes are not a pickle of what this reader accepts."""


class PickleTorn(PickleError):
    """The bytes end before the pickle does."""


class PickleTooLarge(PickleError):
    """Well formed as far as seen, but more than the limits allow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one pickle. The defaults keep a process below 200 MB beside the bytes that it was given."""

    data_bytes: int = 256 << 20
    memory_bytes: int = 150 << 20  # what the objects may take, estimated from above
    depth: int = 200
    items: int = 20_000_000  # values when everything shared is written out in full
    integer_bytes: int = 1024  # of one integer: arithmetic on longer ones is not linear


class Opaque:
    """What the pickle would have imported (``args`` None) or made by a call (``args`` its arguments)."""

    __slots__ = ("args", "items", "module", "name", "state")

    def __init__(self, module: str, name: str, args: tuple[object, ...] | None = None) -> None:
        self.module = module
        self.name = name
        self.args = args
        self.state: object = None
        self.items: list[object] = []  # appended items, or (key, value) pairs

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"

    def __repr__(self) -> str:
        return f"Opaque({self.qualified!r})"


# (module, name) -> a pure function of the arguments of the call
Makers = Mapping[tuple[str, str], Callable[..., object]]

_KEY_DEPTH = 4
# What one opcode may add to the memory, beside the bytes of its argument; estimates from above.
_WEIGHT = [16] * 256
for _codes, _weight in (
    (b"\x94qrp", 110),  # memo entries
    (b"}\x8fd\x91", 240),
    (b"]l", 100),
    (b"us\x90", 120),
    (b"R\x81\x92iocQP\x93", 300),
    (b"t\x85\x86\x87(", 90),
    (b"JMGFIL\x8a\x8b", 48),
    (b"\x8cXVSUTBC\x8d\x8e\x96", 90),
):
    for _code in _codes:
        _WEIGHT[_code] = _weight


class Machine:
    """One pickle being read."""

    def __init__(self, data: bytes, limits: Limits, makers: Makers) -> None:
        self.data = data
        self.limits = limits
        self.makers = makers
        self.memo: dict[int, object] = {}
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.position = 0
        self.text_bytes = 0

    def run(self) -> object:
        """The value at the end mark. The commonest opcodes are here, the others in `_ACTIONS`."""
        data, memo, weight, budget = self.data, self.memo, _WEIGHT, self.limits.memory_bytes
        end = len(data)
        cost = 0
        while self.position < end:
            op = data[self.position]
            self.position += 1
            cost += weight[op]
            if cost + self.text_bytes > budget:
                raise PickleTooLarge(f"describes more than {budget >> 20} MB of objects")
            if op == 0x68:  # BINGET
                self.stack.append(memo[data[self.position]])
                self.position += 1
            elif op == 0x71:  # BINPUT
                memo[data[self.position]] = self.stack[-1]
                self.position += 1
            elif op == 0x4B:  # BININT1
                self.stack.append(data[self.position])
                self.position += 1
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = self.stack[-1]
            elif op == 0x28:  # MARK
                self.marks.append(self.stack)
                self.stack = []
            elif op == 0x2E:  # STOP
                return self.stack[-1]
            else:
                action = _ACTIONS.get(op)
                if action is None:
                    raise PickleError(f"opcode {op:#04x} at byte {self.position - 1}, which plain data does not need")
                action(self)
        raise PickleTorn("ends without its end mark")

    def take(self, count: int) -> bytes:
        start = self.position
        if count > len(self.data) - start:
            raise PickleTorn(f"a value of {count} bytes where {len(self.data) - start} are left")
        self.position = start + count
        return self.data[start : start + count]

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def block(self, width: int) -> bytes:
        """Bytes behind a length of so many bytes."""
        taken = self.take(self.unsigned(width))
        self.text_bytes += 2 * len(taken)
        return taken

    def line(self) -> bytes:
        newline = self.data.find(b"\n", self.position)
        if newline < 0:
            raise PickleTorn("a line that does not end")
        taken = self.take(newline - self.position)
        self.position = newline + 1
        self.text_bytes += 2 * len(taken)
        return taken

    def pop_mark(self) -> list[object]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def integer(self, raw: bytes) -> int:
        if len(raw) > self.limits.integer_bytes:
            raise PickleTooLarge(f"an integer of {len(raw)} bytes")
        return int.from_bytes(raw, "little", signed=True)

    def decimal(self, raw: bytes) -> int:
        if len(raw) > 2 * self.limits.integer_bytes:
            raise PickleTooLarge(f"an integer of {len(raw)} digits")
        return int(raw.rstrip(b"L"))

    def make(self, maker: object, args: object) -> object:
        """What a call stands for: the caller's own maker if there is one for the name, else `Opaque`."""
        if not isinstance(maker, Opaque) or maker.args is not None:
            raise PickleError("a call of what is no name")
        if not isinstance(args, tuple):
            raise PickleError("a call without arguments")
        known = self.makers.get((maker.module, maker.name))
        return Opaque(maker.module, maker.name, args) if known is None else known(*args)

    def unwind(self) -> object:
        """What was complete when the bytes ended: open lists and dicts keep the items that they have."""
        while self.marks:
            items = self.pop_mark()
            if self.stack and isinstance(self.stack[-1], dict):
                _store(self.stack[-1], items[: len(items) // 2 * 2])
            elif self.stack and isinstance(self.stack[-1], list):
                self.stack[-1].extend(items)
        return self.stack[0] if self.stack else None


def _key(value: object, depth: int = 0) -> object:
    """A key that hashes in bounded time and does not collide on purpose: a plain value, or a shallow tuple of them."""
    if isinstance(value, (tuple, frozenset)):
        if depth >= _KEY_DEPTH or len(value) > 64:
            raise PickleError("a key of nested tuples")
        for part in value:
            _key(part, depth + 1)
    elif isinstance(value, int):
        if abs(value) > 1 << 60:  # beyond, any number of integers share one hash
            raise PickleError("a key beyond 60 bits")
    elif value is not None and not isinstance(value, (str, bytes, float, Opaque)):
        raise PickleError("a key that is no plain value")
    return value


def _store(target: object, items: list[object]) -> None:
    if len(items) % 2:
        raise PickleError("a key without a value")
    if isinstance(target, dict):
        for index in range(0, len(items), 2):
            key = items[index]
            target[key if type(key) is str else _key(key)] = items[index + 1]
    elif isinstance(target, Opaque) and target.args is not None:
        target.items.extend((items[index], items[index + 1]) for index in range(0, len(items), 2))
    else:
        raise PickleError("items for what is no dict")


def _extend(target: object, items: list[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, set):
        target.update(_key(item) for item in items)
    elif isinstance(target, Opaque) and target.args is not None:
        target.items.extend(items)
    else:
        raise PickleError("items for what is no list")


def _dict(m: Machine) -> None:
    made: dict[object, object] = {}
    _store(made, m.pop_mark())
    m.stack.append(made)


def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _store(m.stack[-1], [key, value])


def _setitems(m: Machine) -> None:
    items = m.pop_mark()
    _store(m.stack[-1], items)


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _extend(m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = m.pop_mark()
    _extend(m.stack[-1], items)


def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.make(m.stack[-1], args)


def _newobj_ex(m: Machine) -> None:
    keywords, args = m.stack.pop(), m.stack.pop()
    if not isinstance(args, tuple) or not isinstance(keywords, dict):
        raise PickleError("a call without arguments")
    m.stack[-1] = m.make(m.stack[-1], (*args, keywords) if keywords else args)


def _build(m: Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if not isinstance(target, Opaque) or target.args is None:
        raise PickleError("a state for what is no object")
    target.state = state


def _named(m: Machine, module: object, name: object) -> Opaque:
    if not isinstance(module, str) or not isinstance(name, str):
        raise PickleError("a name that is no text")
    return Opaque(module, name)


def _stack_global(m: Machine) -> None:
    name = m.stack.pop()
    m.stack[-1] = _named(m, m.stack[-1], name)


def _global(m: Machine) -> None:
    module = m.line().decode()
    m.stack.append(_named(m, module, m.line().decode()))


def _inst(m: Machine) -> None:
    module = m.line().decode()
    maker = _named(m, module, m.line().decode())
    items = m.pop_mark()
    m.stack.append(m.make(maker, tuple(items)))


def _obj(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(m.make(items[0], tuple(items[1:])))


def _tuple_of(count: int) -> Callable[[Machine], None]:
    def make(m: Machine) -> None:
        if len(m.stack) < count:
            raise PickleError("a tuple of more than there is")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return make


def _push(make: Callable[[Machine], object]) -> Callable[[Machine], None]:
    def push(m: Machine) -> None:
        value = make(m)  # before the stack is looked up: a mark may change it
        m.stack.append(value)

    return push


def _frozenset(m: Machine) -> object:
    return frozenset(_key(item) for item in m.pop_mark())


def _integer_line(m: Machine) -> object:
    raw = m.line()
    return {b"00": False, b"01": True}[raw] if raw in (b"00", b"01") else m.decimal(raw)


def _string_line(m: Machine) -> object:
    raw = m.line()
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise PickleError("a text without its quotes")
    return raw[1:-1].decode("ascii").encode().decode("unicode_escape")


def _put(m: Machine, index: int) -> None:
    m.memo[index] = m.stack[-1]


def _persistent(what: object) -> Opaque:
    return Opaque("", "persistent_id", (what,))


def _utf8(raw: bytes) -> str:
    return str(raw, "utf-8", "surrogatepass")


_ACTIONS: dict[int, Callable[[Machine], object]] = {
    ord("0"): lambda m: m.stack.pop() if m.stack else m.pop_mark(),
    ord("1"): Machine.pop_mark,
    ord("2"): lambda m: m.stack.append(m.stack[-1]),
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord(")"): _push(lambda m: ()),
    ord("}"): _push(lambda m: {}),
    ord("]"): _push(lambda m: []),
    0x8F: _push(lambda m: set()),
    0x91: _push(_frozenset),
    ord("t"): _push(lambda m: tuple(m.pop_mark())),
    ord("l"): _push(Machine.pop_mark),
    ord("d"): _dict,
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): _append,
    ord("e"): _appends,
    0x90: _appends,
    ord("s"): _setitem,
    ord("u"): _setitems,
    ord("R"): _reduce,
    0x81: _reduce,
    0x92: _newobj_ex,
    ord("b"): _build,
    0x93: _stack_global,
    ord("c"): _global,
    ord("i"): _inst,
    ord("o"): _obj,
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    ord("M"): _push(lambda m: m.unsigned(2)),
    ord("J"): _push(lambda m: int.from_bytes(m.take(4), "little", signed=True)),
    0x8A: _push(lambda m: m.integer(m.block(1))),
    0x8B: _push(lambda m: m.integer(m.block(4))),
    ord("I"): _push(_integer_line),
    ord("L"): _push(lambda m: m.decimal(m.line())),
    ord("F"): _push(lambda m: float(m.line())),
    ord("G"): _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    0x8C: _push(lambda m: _utf8(m.block(1))),
    ord("X"): _push(lambda m: _utf8(m.block(4))),
    0x8D: _push(lambda m: _utf8(m.block(8))),
    ord("V"): _push(lambda m: m.line().decode("raw_unicode_escape")),
    ord("S"): _push(_string_line),
    ord("U"): _push(lambda m: m.block(1).decode("latin-1")),
    ord("T"): _push(lambda m: m.block(4).decode("latin-1")),
    ord("C"): _push(lambda m: m.block(1)),
    ord("B"): _push(lambda m: m.block(4)),
    0x8E: _push(lambda m: m.block(8)),
    0x96: _push(lambda m: bytearray(m.block(8))),
    ord("g"): _push(lambda m: m.memo[m.decimal(m.line())]),
    ord("j"): _push(lambda m: m.memo[m.unsigned(4)]),
    ord("p"): lambda m: _put(m, m.decimal(m.line())),
    ord("r"): lambda m: _put(m, m.unsigned(4)),
    ord("Q"): lambda m: m.stack.append(_persistent(m.stack.pop())),
    ord("P"): _push(lambda m: _persistent(m.line().decode())),
}
