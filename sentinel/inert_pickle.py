"""Read a pickle without running it.

A pickle is a program: the ordinary reader imports what it names and calls what it says. This one interprets the opcodes
and builds plain data only (None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset); in the
place of everything else stands `Opaque`, which keeps the name, the arguments and the state. Nothing is imported, and
nothing is called except the makers that the caller passes in, which must be pure.

What must hold for any bytes: the answer is a value or `PickleError`; time is linear in the bytes; the memory stays
within ``Limits.memory_bytes``; the value is a finite tree (no cycle), whose depth and whose size when written out are
bounded, so that whoever walks, prints or compares it is safe too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sentinel.inert_pickle_machine import (
    Limits,
    Machine,
    Makers,
    Opaque,
    PickleError,
    PickleTooLarge,
    PickleTorn,
)

__all__ = ["Limits", "Makers", "Opaque", "PickleError", "PickleTooLarge", "PickleTorn", "loads", "salvage"]

_NO_MAKERS: Makers = {}
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, Opaque))


def loads(data: bytes, *, limits: Limits | None = None, makers: Makers = _NO_MAKERS) -> object:
    """The value that the pickle describes.

    Raises:
        PickleTorn: the bytes end too early.
        PickleTooLarge: a limit was passed.
        PickleError: anything else that is wrong with it.
    """
    machine = _machine(data, limits, makers)
    value = _run(machine)
    _check_shape(value, machine.limits)
    return value


def salvage(data: bytes, *, limits: Limits | None = None, makers: Makers = _NO_MAKERS) -> tuple[object, bool]:
    """As `loads`, but of a torn pickle the part that is there. The second value says whether it was whole."""
    machine = _machine(data, limits, makers)
    whole = True
    try:
        value = _run(machine)
    except PickleTorn:
        value, whole = machine.unwind(), False
    _check_shape(value, machine.limits)
    return value, whole


def _machine(data: bytes, limits: Limits | None, makers: Makers) -> Machine:
    limits = limits or Limits()
    if len(data) > limits.data_bytes:
        raise PickleTooLarge(f"{len(data)} bytes, more than the {limits.data_bytes} that are read")
    return Machine(data, limits, makers)


def _run(machine: Machine) -> object:
    try:
        return machine.run()
    except PickleError:
        raise
    except IndexError:
        # Past the end of the bytes, or a stack that lacks what the opcode needs.
        if machine.position >= len(machine.data):
            raise PickleTorn("ends in the middle of a value") from None
        raise PickleError(f"an opcode before byte {machine.position} lacks its operands") from None
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, struct.error) as error:
        raise PickleError(f"not a sound pickle near byte {machine.position} ({type(error).__name__})") from None


def _children(value: object) -> tuple[int, list[object]]:
    """How many values a container holds, and those of them that are containers."""
    inside: Iterable[object] = ()
    count = 0
    if isinstance(value, dict):
        inside, count = (*value, *value.values()), 2 * len(value)
    elif isinstance(value, Opaque):
        inside, count = (value.args, value.state, value.items), 3
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside, count = value, len(value)
    return count, [child for child in inside if type(child) in _CONTAINERS]


def _check_shape(root: object, limits: Limits) -> None:
    """Refuses cycles, what is nested too deeply, and what would be too large when written out in full."""
    shapes: dict[int, tuple[int, int]] = {}  # id -> depth below, values below
    path: dict[int, tuple[int, list[object]]] = {}
    stack = [root] if type(root) in _CONTAINERS else []
    while stack:
        value = stack[-1]
        key = id(value)
        if key in shapes:
            stack.pop()
            continue
        if key not in path:
            count, children = _children(value)
            if children:
                path[key] = (count, children)
                for child in children:
                    if id(child) in path:
                        raise PickleError("a value that contains itself")
                stack.extend(children)
                continue
        else:
            count, children = path.pop(key)
        below = [shapes[id(child)] for child in children]
        depth = max((shape[0] for shape in below), default=0)
        items = 1 + count - len(children) + sum(shape[1] for shape in below)
        if depth >= limits.depth:
            raise PickleTooLarge(f"nested more than {limits.depth} deep")
        if items > limits.items:
            raise PickleTooLarge(f"stands for more than {limits.items} values")
        shapes[key] = (depth + 1, items)
        stack.pop()
