"""What the pickle reader builds in the place of names and objects, and its errors."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Packed:
    """The state of an object of which there are very many: its fields are named once for all."""

    fields: tuple[object, ...]
    values: tuple[object, ...]


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
        missing = object()
        value = self.find(key, missing)
        if value is missing:
            raise PickleError(f"{self.name or 'object'} has no field {key}")
        return value

    def find(self, key: str, default: object = None) -> object:
        """The same, or the default."""
        if isinstance(self.state, dict):
            return self.state.get(key, default)
        if isinstance(self.state, Packed) and key in self.state.fields:
            return self.state.values[self.state.fields.index(key)]
        return default
