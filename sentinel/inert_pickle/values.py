"""What the inert pickle reader builds in the place of names and objects, its limits and its errors."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """What the pickle would have imported."""

    module: str
    name: str

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"


class Opaque:
    """What the pickle would have made by a call: what it would have called, the arguments, the state and the items."""

    __slots__ = ("args", "items", "maker", "place", "state")

    def __init__(self, maker: object, args: tuple[object, ...]) -> None:
        self.maker = maker
        self.args = args
        self.state: object = None
        self.items: list[object] | None = None  # appended items, or (key, value) pairs
        self.place = -1  # in the memo, where the pickle comes back to it

    @property
    def module(self) -> str:
        return self.maker.module if isinstance(self.maker, Name) else ""

    @property
    def name(self) -> str:
        return self.maker.name if isinstance(self.maker, Name) else ""

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"

    def get(self, key: str) -> object:
        """A field of the object's state; `PickleError` where there is none."""
        if isinstance(self.state, dict) and key in self.state:
            return self.state[key]
        raise PickleError(f"{self.name or 'an object'} has no field {key}")

    def find(self, key: str) -> object:
        """The same; None where there is none."""
        return self.state.get(key) if isinstance(self.state, dict) else None

    def __repr__(self) -> str:
        return f"Opaque({self.qualified!r})"


# (module, name) -> a pure function of the arguments of the call
Makers = Mapping[tuple[str, str], Callable[..., object]]
# Name of a class -> a pure function of an object whose state is there: what to keep in its place, and the bytes it takes
Folds = Mapping[str, Callable[[Opaque], tuple[object, int]]]
# Takes an entry of a table whose keys are objects; such entries are not kept. Gives the bytes that it takes.
Rows = Callable[[Opaque, object], int]


@dataclass(frozen=True, slots=True)
class Census:
    """The names that a pickle would import, the calls that make tensors, and of its objects class and fields, each once."""

    names: list[Name]
    tensors: list[Opaque]
    fields: list[tuple[str, tuple[object, ...]]]
