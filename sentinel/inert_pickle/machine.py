"""The stack machine: the second pass, which builds the value. `sentinel.inert_pickle` is what to import.

What it is fed has been surveyed: every opcode is known, every length lies inside the data. Memory is counted from above
while it runs: so many bytes for each opcode and text, given back where a finished object or the rows of a table are taken
over by the caller in a smaller form (``folds``, ``rows``). What the memo keeps is never given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel.inert_pickle.survey import Survey, Window, number
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

_SEGMENT_BYTES = 8192  # between two looks at the memory
_BYTE_COST = 16  # a byte of the commonest opcodes: a place on the stack, or a part of a number
_MARK_COST = 260
LIST_COST, DICT_COST, SET_COST, TUPLE_COST, OBJECT_COST, TEXT_COST, ENTRY_COST = 100, 240, 240, 72, 300, 90, 70
_SHAPES = 100_000  # short tuples of numbers that are kept once
_KEY_DEPTH = 4
_LARGE = 1 << 62
_ABSENT = object()

Mark = tuple[list[object], int, int, int]  # the stack below; what was charged, net bytes and pins when it was set


@dataclass(frozen=True, slots=True)
class Plan:
    """What the caller wants beside plain data. ``lenient``: the result of a call may be called; it stays inert too."""

    makers: Makers = field(default_factory=dict)
    folds: Folds = field(default_factory=dict)
    rows: Rows | None = None
    persistent: Callable[[object], object] | None = None
    lenient: bool = False


class Machine:
    """One pickle being read."""

    def __init__(self, window: Window, survey: Survey, limits: Limits, plan: Plan, start: int = 0) -> None:
        self.window = window
        self.survey = survey
        self.limits = limits
        self.plan = plan
        self.start = start
        self.position = start
        self.kept: list[object] = [_ABSENT] * len(survey.wanted)
        self.low = [survey.place(index) for index in range(256)]
        self.memoized = self.next_place = 0
        self.stack: list[object] = []
        self.marks: list[Mark] = []
        self.popped: Mark = ([], 0, 0, 0)
        self.settled: tuple[object, Mark] = (None, self.popped)
        self.names: dict[tuple[str, str], Name] = {}
        self.calls: dict[Name, Callable[..., object] | None] = {}  # each name, and the caller's maker for it
        self.tensors: list[Opaque] = []
        self.fields: dict[tuple[str, tuple[object, ...]], None] = {}
        self.shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.charged = 0  # may be given back
        self.held = 8 * len(survey.wanted)  # is not
        self.given_bytes = 0  # of the pickle, whose objects were given back
        self.pins = 0  # how often something was kept that what is open now may hold
        self.gives_back = True

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, actions: list[Callable[[Machine], object]]) -> object:
        """The value at the end mark."""
        window, end = self.window, self.survey.end
        while window.base + self.position < end:
            soft = min(window.soft_end, end - window.base, self.position + _SEGMENT_BYTES)
            if self.position >= soft:
                self.position = window.slide(self.position)
            elif self._segment(soft, actions):
                return self.stack[-1]
            self.look()
        raise PickleTorn(self.survey.torn or "ends without its end mark")

    def _segment(self, soft: int, actions: list[Callable[[Machine], object]]) -> bool:
        """Walk to ``soft``, or until the stretch of the window has moved; True at the end mark.

        The commonest opcodes are done here, on locals, the others by ``actions``.
        """
        wanted, kept, low, next_place = self.survey.wanted, self.kept, self.low, self.next_place
        window, stack, position = self.window, self.stack, self.position
        data, base, memoized, place = window.data, window.base, self.memoized, self.survey.place
        next_wanted = wanted[next_place] if next_place < len(wanted) else -1
        while position < soft:
            op = data[position]
            position += 1
            if op == 0x94:  # MEMOIZE
                if memoized == next_wanted:
                    self.keep(next_place, stack[-1])
                    self.next_place = next_place = next_place + 1
                    next_wanted = wanted[next_place] if next_place < len(wanted) else -1
                memoized += 1
            elif op == 0x68:  # BINGET
                value = kept[low[data[position]]]
                if value is _ABSENT:
                    raise PickleError(f"entry {data[position]} of the memo, which is not there yet")
                stack.append(value)
                position += 1
            elif op == 0x6A:  # LONG_BINGET
                value = kept[place(int.from_bytes(data[position : position + 4], "little"))]
                if value is _ABSENT:
                    raise PickleError("an entry of the memo, which is not there yet")
                stack.append(value)
                position += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[position])
                position += 1
            elif op == 0x28:  # MARK
                self.marks.append((stack, self.charged, base + position - self.given_bytes, self.pins))
                self.charged += _MARK_COST
                stack = self.stack = []
            elif op == 0x4D:  # BININT2
                stack.append(data[position] | data[position + 1] << 8)
                position += 2
            elif op == 0x4A:  # BININT
                stack.append(int.from_bytes(data[position : position + 4], "little", signed=True))
                position += 4
            elif op == 0x2E:  # STOP
                self.position = position
                return True
            else:
                self.position, self.memoized = position, memoized
                actions[op](self)
                position, stack, memoized = self.position, self.stack, self.memoized
                if window.base != base:
                    break
                if self.next_place != next_place:  # an entry that the pickle numbers
                    next_place = self.next_place
                    next_wanted = wanted[next_place] if next_place < len(wanted) else -1
        self.position, self.memoized = position, memoized
        return False

    def look(self) -> None:
        """Refuse what takes too much memory."""
        budget = self.limits.memory_bytes
        read = self.window.base + self.position - self.start - self.given_bytes
        if self.charged + self.held + _BYTE_COST * read > budget:
            raise PickleTooLarge(f"describes more than {budget >> 20} MB of objects")

    # --- the memo -----------------------------------------------------------------------------------------------------

    def fetch(self, index: int) -> object:
        value = self.kept[self.survey.place(index)]
        if value is _ABSENT:
            raise PickleError(f"entry {index} of the memo, which is not there yet")
        return value

    def skips(self, count: int) -> bool:
        """Whether none of the next so many entries of the memo is ever asked for; they count as made then."""
        wanted = self.survey.wanted
        if self.next_place < len(wanted) and self.memoized <= wanted[self.next_place] < self.memoized + count:
            return False
        self.memoized += count
        return True

    def put(self, index: int) -> None:
        """For the protocols that number the entries: nearly always in order."""
        wanted, place = self.survey.wanted, self.next_place
        if place < len(wanted):
            if index == wanted[place]:
                self.next_place += 1
            elif index < wanted[place]:
                return
            else:
                place = self.survey.place(index)
                if place < 0:
                    return
            self.keep(place, self.stack[-1])

    def keep(self, place: int, value: object) -> None:
        """Into the memo. What is kept there outlives what is given back."""
        self.kept[place] = value
        kind = type(value)
        if kind is str or kind is bytes:
            self.held += TEXT_COST + 2 * len(value)  # type: ignore[arg-type]
        elif kind is tuple:
            assert isinstance(value, tuple)
            if not _short(value):
                self.pins += 1
            elif self.shapes.get(value) is not value:
                self.held += TUPLE_COST + 40 * len(value)
        elif kind is Opaque:
            assert isinstance(value, Opaque)
            value.place = place
            self.held += OBJECT_COST
            self.pins += bool(value.args)
        elif isinstance(value, (list, dict, set, bytearray)):
            self.gives_back = False  # anything may be added to it later
        else:
            self.held += 64
            self.pins += kind not in (int, float, bool, Name, type(None))

    # --- memory -------------------------------------------------------------------------------------------------------

    def give_back(self, mark: Mark, bytes_taken: int) -> None:
        """All that was made since the mark is gone, but for what the memo keeps; so many bytes stand in its place."""
        self.held += bytes_taken
        _, charged, net, pins = mark
        if self.gives_back and pins == self.pins:
            self.charged = charged
            self.given_bytes = self.window.base + self.position - net

    def fold(self, target: Opaque, state: object, taken: tuple[object, int]) -> object:
        """The caller's form of an object in the place of the object, also in the memo."""
        value, count = taken
        if self.settled[0] is state:
            self.give_back(self.settled[1], count)
            if self.gives_back and self.settled[1][3] == self.pins:
                self.charged -= OBJECT_COST + DICT_COST
        else:
            self.held += count
        if target.place >= 0:
            self.kept[target.place] = value
            self.held -= OBJECT_COST  # as `keep` counted it
        target.state, target.place = None, -2
        return value

    # --- what opcodes need ----------------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """So many of the bytes that follow; they are there."""
        if self.position + count > len(self.window.data):
            self.position = self.window.slide(self.position, count)
        start = self.position
        self.position = start + count
        return self.window.data[start : start + count]

    def block(self, width: int) -> bytes:
        """Bytes behind a length of so many bytes."""
        start = self.position + width
        data = self.window.data
        length = int.from_bytes(data[self.position : start], "little")  # the length lies in the window
        self.charged += TEXT_COST + 2 * length
        self.position = start
        if start + length > len(data):
            return self.take(length)
        self.position = start + length
        return data[start : self.position]

    def line(self) -> bytes:
        position, newline = self.window.newline(self.position, self.window.size)
        self.position = newline + 1
        taken = self.window.data[position:newline]
        self.charged += TEXT_COST + 2 * len(taken)
        return taken

    def push_mark(self) -> None:
        self.marks.append((self.stack, self.charged, self.window.base + self.position - self.given_bytes, self.pins))
        self.charged += _MARK_COST
        self.stack = []

    def pop_mark(self) -> list[object]:
        items = self.stack
        mark = self.popped = self.marks.pop()
        self.stack = mark[0]
        return items

    def integer(self, raw: bytes) -> int:
        if len(raw) > self.limits.integer_bytes:
            raise PickleTooLarge(f"an integer of {len(raw)} bytes")
        return int.from_bytes(raw, "little", signed=True)

    def decimal(self, raw: bytes) -> int:
        return number(raw, self.limits.integer_bytes)

    def named(self, module: object, name: object) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("a name that is no text")
        found = self.names.get((module, name))
        if found is None:
            found = self.names[(module, name)] = Name(module, name)
            self.calls[found] = self.plan.makers.get((module, name))
            self.held += OBJECT_COST + 2 * (len(module) + len(name))
        return found

    def make(self, maker: object, args: object) -> object:
        """What a call stands for: what the caller's own maker gives, if there is one for the name, else `Opaque`."""
        self.charged += OBJECT_COST
        if not isinstance(args, tuple):
            raise PickleError("a call without arguments")
        if type(maker) is Name:
            known = self.calls[maker]
            if known is not None:
                return self.shape(known(*args))
            made = Opaque(maker, args)
            if args and maker.name.startswith("_rebuild_tensor"):
                self.tensors.append(made)
                self.pins += 1
            return made
        if self.plan.lenient and isinstance(maker, Opaque):
            return Opaque(maker, args)
        raise PickleError("a call of what is no name")

    def shape(self, value: object) -> object:
        """A short tuple of numbers is kept once, however often it is made."""
        if type(value) is not tuple or not _short(value):
            return value
        known = self.shapes.get(value)
        if known is None:
            if len(self.shapes) >= _SHAPES:
                return value
            self.shapes[value] = known = value
            self.held += 160 + 40 * len(value)
        return known

    def census(self) -> Census:
        return Census(list(self.names.values()), self.tensors, list(self.fields))

    def unwind(self) -> object:
        """What was complete when the bytes ended: open lists and dicts keep the items that they have."""
        while self.marks:
            items = self.pop_mark()
            if self.stack and isinstance(self.stack[-1], dict):
                store(self, self.stack[-1], items[: len(items) // 2 * 2])
            elif self.stack and isinstance(self.stack[-1], list):
                self.stack[-1].extend(items)
        return self.stack[0] if self.stack else None


def _short(value: tuple[object, ...]) -> bool:
    if len(value) > 16:
        return False
    for part in value:  # a loop: this is asked for every tuple of a large table  # noqa: SIM110
        if type(part) is not int or not -_LARGE < part < _LARGE:
            return False
    return True


def key(value: object, depth: int = 0) -> object:
    """A key that hashes in bounded time and does not collide on purpose: a plain value, or a shallow tuple of them."""
    if isinstance(value, (tuple, frozenset)):
        if depth >= _KEY_DEPTH or len(value) > 64:
            raise PickleError("a key of nested tuples")
        for part in value:
            key(part, depth + 1)
    elif isinstance(value, int):
        if abs(value) > 1 << 60:  # beyond, any number of integers share one hash
            raise PickleError("a key beyond 60 bits")
    elif value is not None and not isinstance(value, (str, bytes, float, Opaque, Name)):
        raise PickleError("a key that is no plain value")
    return value


def store(m: Machine, target: object, items: list[object], mark: Mark | None = None) -> None:
    """Entries, made since the mark, into a table; those whose keys are objects go to the caller, if it wants them."""
    if len(items) % 2:
        raise PickleError("a key without a value")
    m.charged += ENTRY_COST * (len(items) // 2)
    if isinstance(target, dict):
        rows = m.plan.rows
        many = rows is not None and items and type(items[0]) is Opaque  # first: asked for every small table as well
        if many and rows is not None and all(type(name) is Opaque for name in items[::2]):
            taken = 0
            for index in range(0, len(items), 2):
                taken += rows(items[index], items[index + 1])  # type: ignore[arg-type]
            if mark is not None:
                m.give_back(mark, taken)
            return
        for index in range(0, len(items), 2):
            name = items[index]
            target[name if type(name) is str else key(name)] = items[index + 1]
    elif isinstance(target, Opaque):
        extend(m, target, [(items[index], items[index + 1]) for index in range(0, len(items), 2)])
    else:
        raise PickleError("items for what is no dict")


def extend(m: Machine, target: object, items: list[object]) -> None:
    """Items into a list, a set or the place of an object."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, set):
        m.charged += ENTRY_COST * len(items)
        target.update(key(item) for item in items)
    elif isinstance(target, Opaque):
        m.pins += 1
        target.items = target.items or []
        target.items.extend(items)
    else:
        raise PickleError("items for what is no list")
