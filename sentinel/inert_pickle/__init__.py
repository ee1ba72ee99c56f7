"""Read a pickle without running it.

A pickle is a program: the ordinary reader imports what it names and calls what it says. This one interprets the
opcodes and builds plain data only (None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset);
in place of everything else it puts `Name` (what would have been imported) and `Opaque` (what a call would have
made, with its arguments and state). Nothing is imported, and nothing is called except the functions that the
caller passes in, which must be pure. Flight-recorder dumps are read with it (`loads`, `salvage`), and what
checkpoints say of themselves (`load`, `load_from`, `load_counted`; `stream` for the metadata of very large jobs,
which never stands in memory as a whole).

What must hold for any bytes: the answer is a value or `PickleError`; time is linear in the bytes; the memory stays
within ``Limits.memory_bytes``. Of `loads` and `salvage` the value is also a finite tree (no cycle), whose depth and
whose size when written out are bounded, so that whoever walks, prints or compares it is safe too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from sentinel.inert_pickle.machine import Machine, Plan
from sentinel.inert_pickle.opcodes import ACTIONS
from sentinel.inert_pickle.survey import Read, Survey, Window
from sentinel.inert_pickle.values import (
    Census,
    Folds,
    Limits,
    Makers,
    Name,
    Opaque,
    PickleError,
    PickleTooLarge,
    PickleTorn,
    Rows,
)

__all__ = [
    "Census",
    "Folds",
    "Limits",
    "Makers",
    "Name",
    "Opaque",
    "PickleError",
    "PickleTooLarge",
    "PickleTorn",
    "Rows",
    "load",
    "load_counted",
    "load_counted_from",
    "load_from",
    "loads",
    "salvage",
    "stream",
]

_NO_MAKERS: Makers = {}
_DEFAULTS = Limits()
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, Opaque))


def loads(data: bytes, *, limits: Limits = _DEFAULTS, makers: Makers = _NO_MAKERS) -> object:
    """The value that the pickle describes.

    Raises:
        PickleTorn: the bytes end too early.
        PickleTooLarge: a limit was passed.
        PickleError: anything else that is wrong with it.
    """
    machine = _machine(Window(data), limits, Plan(makers, persistent=_outside))
    value = _run(machine)
    _check_shape(value, machine.limits)
    return value


def salvage(data: bytes, *, limits: Limits = _DEFAULTS, makers: Makers = _NO_MAKERS) -> tuple[object, bool]:
    """As `loads`, but of a torn pickle the part that is there. The second value says whether it was whole."""
    machine = _machine(Window(data), limits, Plan(makers, persistent=_outside))
    whole = True
    try:
        value = _run(machine)
    except PickleTorn:
        value, whole = machine.unwind(), False
    _check_shape(value, machine.limits)
    return value, whole


def load(data: bytes, *, persistent: Callable[[object], object] | None = None, limits: Limits = _DEFAULTS) -> object:
    """The value of a pickle that fills the bytes; what it refers to outside is what ``persistent`` makes of it.

    Raises `PickleError` as `loads` does, also for bytes after the end and for frames that do not end where it ends.
    """
    return load_counted(data, persistent=persistent, limits=limits)[0]


def load_counted(
    data: bytes,
    *,
    persistent: Callable[[object], object] | None = None,
    makers: Makers = _NO_MAKERS,
    limits: Limits = _DEFAULTS,
) -> tuple[object, Census]:
    """`load`, and what the pickle names."""
    machine = _machine(Window(data), limits, Plan(makers, persistent=persistent, lenient=True))
    value = _run(machine)
    _filled(machine)
    return value, machine.census()


def load_from(data: bytes, start: int, *, limits: Limits = _DEFAULTS) -> tuple[object, int]:
    """The value of the pickle that starts there, and where it ends."""
    value, end, _ = load_counted_from(data, start, limits=limits)
    return value, end


def load_counted_from(
    data: bytes,
    start: int,
    *,
    persistent: Callable[[object], object] | None = None,
    makers: Makers = _NO_MAKERS,
    limits: Limits = _DEFAULTS,
) -> tuple[object, int, Census]:
    """`load_from`, and what the pickle names."""
    machine = _machine(Window(data), limits, Plan(makers, persistent=persistent, lenient=True), start)
    value = _run(machine)
    _framed(machine)
    return value, machine.survey.end, machine.census()


def stream(
    read: Read, size: int, *, makers: Makers, folds: Folds, rows: Rows, limits: Limits = _DEFAULTS
) -> tuple[object, Census]:
    """`load_counted` of a file that is read a stretch at a time: ``read(offset, length)`` gives exactly so many bytes.

    ``folds`` and ``rows`` take over the objects of which there are very many, as soon as each is complete.
    """
    survey = Survey(Window.of_file(read, size), 0, limits.data_bytes)
    machine = Machine(Window.of_file(read, size), survey, limits, Plan(makers, folds, rows, lenient=True))
    value = _run(machine)
    _filled(machine)
    return value, machine.census()


def _outside(what: object) -> Opaque:
    return Opaque(Name("", "persistent_id"), (what,))


def _machine(window: Window, limits: Limits, plan: Plan, start: int = 0) -> Machine:
    return Machine(window, Survey(window, start, limits.data_bytes), limits, plan, start)


def _filled(machine: Machine) -> None:
    if machine.survey.end != machine.window.size:
        raise PickleError("bytes after its end mark")
    _framed(machine)


def _framed(machine: Machine) -> None:
    if machine.survey.frame_end not in (0, machine.survey.end):
        raise PickleError("its last frame does not end where it ends")


def _run(machine: Machine) -> object:
    try:
        return machine.run(ACTIONS)
    except PickleError:
        raise
    except IndexError:
        raise PickleError(f"an opcode before byte {_at(machine)} lacks its operands") from None
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, struct.error) as error:
        raise PickleError(f"not a sound pickle near byte {_at(machine)} ({type(error).__name__})") from None


def _at(machine: Machine) -> int:
    return machine.window.base + machine.position


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
