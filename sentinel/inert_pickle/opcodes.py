"""The rarer opcodes, one function each."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable

from sentinel.inert_pickle.machine import (
    DICT_COST,
    LIST_COST,
    OBJECT_COST,
    SET_COST,
    TUPLE_COST,
    Machine,
    extend,
    key,
    store,
)
from sentinel.inert_pickle.values import Name, Opaque, PickleError

Action = Callable[[Machine], object]
# What most objects and sizes are made of, done in one step where the memo is not asked for what is in between:
_BEGUN = b"\x81\x94}\x94("  # behind an empty tuple: make the object, keep it, its table, keep it, a mark
_CALLED = b"\x94\x85\x94R"  # behind a pair: keep it, as the only argument, keep that, call


def _empty_dict(m: Machine) -> None:
    m.charged += DICT_COST
    m.stack.append({})


def _empty_list(m: Machine) -> None:
    m.charged += LIST_COST
    m.stack.append([])


def _dict(m: Machine) -> None:
    made: dict[object, object] = {}
    m.charged += DICT_COST
    store(m, made, m.pop_mark())
    m.stack.append(made)


def _setitem(m: Machine) -> None:
    value, name = m.stack.pop(), m.stack.pop()
    store(m, m.stack[-1], [name, value])


def _setitems(m: Machine) -> None:
    items = m.pop_mark()
    target, mark = m.stack[-1], m.popped
    fresh = not target
    store(m, target, items, mark)
    if fresh and target:
        m.settled = (target, mark)


def _append(m: Machine) -> None:
    item = m.stack.pop()
    extend(m, m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = m.pop_mark()
    extend(m, m.stack[-1], items)


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
    if not isinstance(target, Opaque) or target.place == -2:
        raise PickleError("a state for what is no object")
    maker = target.maker
    name = maker.name if type(maker) is Name else ""
    folded = m.plan.folds.get(name)
    target.state = state
    if isinstance(state, dict):
        shape = (name, tuple(state))
        if shape not in m.fields:
            m.fields[shape] = None
            m.held += OBJECT_COST
            m.pins += 1
    if folded is not None:
        m.stack[-1] = m.fold(target, state, folded(target))
    elif target.place >= 0:
        m.pins += 1


def _stack_global(m: Machine) -> None:
    name = m.stack.pop()
    m.stack[-1] = m.named(m.stack[-1], name)


def _global(m: Machine) -> None:
    module = m.line().decode()
    m.stack.append(m.named(module, m.line().decode()))


def _inst(m: Machine) -> None:
    module = m.line().decode()
    maker = m.named(module, m.line().decode())
    items = m.pop_mark()
    m.stack.append(m.make(maker, tuple(items)))


def _obj(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(m.make(items[0], tuple(items[1:])))


def _tuple_of(count: int) -> Action:
    def make(m: Machine) -> None:
        stack = m.stack
        if len(stack) < count:
            raise PickleError("a tuple of more than there is")
        m.charged += TUPLE_COST
        stack[-count:] = [tuple(stack[-count:])]

    return make


def _pair(m: Machine) -> None:
    """Two values; and the call that takes them as its only argument, where that follows at once (sizes are made so)."""
    m.charged += TUPLE_COST
    stack, start = m.stack, m.position
    last = stack.pop()
    stack[-1] = (stack[-1], last)
    if m.window.data[start : start + 4] == _CALLED and m.skips(2):
        m.charged += TUPLE_COST
        m.position = start + 4
        args = (stack.pop(),)
        stack[-1] = m.make(stack[-1], args)


def _empty_tuple(m: Machine) -> None:
    """No values; and the object without arguments, its table and the mark, where these follow at once."""
    stack, start = m.stack, m.position
    if m.window.data[start : start + 5] != _BEGUN or type(stack[-1]) is not Name or not m.skips(2):
        stack.append(())
        return
    stack[-1] = m.make(stack[-1], ())
    stack.append({})
    m.charged += DICT_COST
    m.position = start + 5
    m.push_mark()


def _tuple(m: Machine) -> None:
    items = m.pop_mark()
    m.charged += TUPLE_COST
    m.stack.append(tuple(items))


def _push(make: Callable[[Machine], object], cost: int = 0) -> Action:
    def push(m: Machine) -> None:
        m.charged += cost
        value = make(m)  # before the stack is looked up: a mark may change it
        m.stack.append(value)

    return push


def _frozenset(m: Machine) -> object:
    items = m.pop_mark()
    m.charged += 8 * len(items)
    return frozenset(key(item) for item in items)


def _integer_line(m: Machine) -> object:
    raw = m.line()
    return {b"00": False, b"01": True}[raw] if raw in (b"00", b"01") else m.decimal(raw)


def _string_line(m: Machine) -> object:
    raw = m.line()
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise PickleError("a text without its quotes")
    return codecs.unicode_escape_decode(codecs.raw_unicode_escape_encode(raw[1:-1].decode("latin-1"))[0])[0]


def _persistent(m: Machine, what: object) -> object:
    if m.plan.persistent is None:
        raise PickleError("a reference to something outside")
    m.charged += OBJECT_COST
    return m.plan.persistent(what)


def _text(width: int) -> Action:
    def push(m: Machine) -> None:
        raw = m.block(width)
        m.stack.append(str(raw, "utf-8", "surrogatepass"))

    return push


def _skip(count: int) -> Action:
    def skip(m: Machine) -> None:
        m.take(count)

    return skip


_TABLE: dict[int, Action] = {
    ord("0"): lambda m: m.stack.pop() if m.stack else m.pop_mark(),
    ord("1"): Machine.pop_mark,
    ord("2"): lambda m: m.stack.append(m.stack[-1]),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("}"): _empty_dict,
    ord("]"): _empty_list,
    0x8F: _push(lambda m: set(), SET_COST),
    0x91: _push(_frozenset, SET_COST),
    ord("t"): _tuple,
    ord("l"): _push(Machine.pop_mark, LIST_COST),
    ord("d"): _dict,
    0x85: _tuple_of(1),
    0x86: _pair,
    ord(")"): _empty_tuple,
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
    0x80: _skip(1),  # PROTO
    0x95: _skip(8),  # FRAME
    0x8A: _push(lambda m: m.integer(m.block(1))),
    0x8B: _push(lambda m: m.integer(m.block(4))),
    ord("I"): _push(_integer_line),
    ord("L"): _push(lambda m: m.decimal(m.line())),
    ord("F"): _push(lambda m: float(m.line())),
    ord("G"): _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    0x8C: _text(1),
    ord("X"): _text(4),
    0x8D: _text(8),
    ord("V"): _push(lambda m: codecs.raw_unicode_escape_decode(m.line())[0]),
    ord("S"): _push(_string_line),
    ord("U"): _push(lambda m: m.block(1).decode("latin-1")),
    ord("T"): _push(lambda m: m.block(4).decode("latin-1")),
    ord("C"): _push(lambda m: m.block(1)),
    ord("B"): _push(lambda m: m.block(4)),
    0x8E: _push(lambda m: m.block(8)),
    0x96: _push(lambda m: bytearray(m.block(8))),
    ord("g"): _push(lambda m: m.fetch(m.decimal(m.line()))),
    ord("j"): _push(lambda m: m.fetch(int.from_bytes(m.take(4), "little"))),
    ord("p"): lambda m: m.put(m.decimal(m.line())),
    ord("q"): lambda m: m.put(m.take(1)[0]),
    ord("r"): lambda m: m.put(int.from_bytes(m.take(4), "little")),
    ord("Q"): lambda m: m.stack.append(_persistent(m, m.stack.pop())),
    ord("P"): _push(lambda m: _persistent(m, m.line().decode("latin-1"))),
}


def _none(m: Machine) -> None:
    raise PickleError("an opcode that plain data does not need")


ACTIONS: list[Action] = [_TABLE.get(op, _none) for op in range(256)]
