"""Settings from TOML, parsed strictly: fields with unit, default, reason and bounds; errors name file, line, key and fix.

Nothing is read at import. What the keys are is in ``sentinel.config.settings`` and ``sentinel.agent.settings``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sentinel.errors import FileError, all_of
from sentinel.given_files import file_text, number_of, toml_of
from sentinel.planning import quantities
from sentinel.planning.limits import PlanningError

T = TypeVar("T")

_MOST_FAULTS = 20  # told at once: nobody mends more, and others' files may have thousands
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'""")
_NAME = rf"(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*"
_LINE = re.compile(rf"[ \t]*(?:\[{{1,2}}[ \t]*(?P<header>{_NAME})[ \t]*\]{{1,2}}[ \t]*(?:#|$)|(?P<key>{_NAME})[ \t]*=)")


class InvalidSetting(Exception):
    """Raised by a settings record whose values do not go together; ``load`` adds file and line.

    It is raised when the record is made, or by its ``check_loaded``, which ``load`` calls: what only a file must keep.
    """

    def __init__(self, key: str, message: str, fix: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key, self.message, self.fix = key, message, fix


def setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a settings record: default, the reason for it, its unit and its bounds, or the words it may be."""
    metadata = {"reason": reason, "unit": unit, "least": least, "most": most, "words": words}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[T]) -> T:
    """A field that is a section of its own."""
    made: T = field(default_factory=kind)
    return made


def load(path: Path, kind: type[T]) -> T:
    """Settings of ``kind`` from a TOML file.

    Raises:
        FileError: unreadable, not TOML, an unknown key, a wrong type, or a value out of bounds; with all that is wrong.
    """
    return parsed(path, file_text(path, fix="name an existing settings file"), kind)


def parsed(path: Path, text: str, kind: type[T]) -> T:
    """Settings of ``kind`` from text; ``path`` is what errors call it. Raises as ``load``."""
    return Reader(path, text).record(kind, toml_of(path, text), "")


class Reader:
    """Builds settings records from parsed TOML and knows where in the file a key stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def line_of(self, key: str) -> int | None:
        """Line of a dotted key, however it is written: under its section's header, dotted, or inside an inline table."""
        keys, headers = self._lines_of
        name = key
        while name and name not in headers:
            if name in keys:
                return keys[name]
            name = name.rpartition(".")[0]  # it may stand inside an inline table
        return headers.get(key) or next((n for header, n in headers.items() if header.startswith(f"{key}.")), None)

    @cached_property
    def _lines_of(self) -> tuple[dict[str, int], dict[str, int]]:
        """The first line of each key, and of each header, by their whole names.

        One pass over the text for all keys: others write it, and choose how many parts a key has.
        """
        keys: dict[str, int] = {}
        headers: dict[str, int] = {}
        section = ""
        for number, line in enumerate(self.lines, 1):
            match = _LINE.match(line)
            if match is None:
                continue
            if match["header"]:
                section = _plain(match["header"])
                headers.setdefault(section, number)
            else:
                keys.setdefault(f"{section}.{_plain(match['key'])}".lstrip("."), number)
        return keys, headers

    def fail(self, key: str, message: str, fix: str) -> FileError:
        return FileError(self.path, message, line=self.line_of(key), key=key, fix=fix)

    def record(self, kind: type[T], values: dict[str, Any], prefix: str) -> T:
        known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)

        def read(name: str, value: Any) -> Any:
            key = f"{prefix}{name}"
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
                raise self.fail(key, "unknown key", hint)
            return self.value(hints[name], value, key, known[name].metadata)

        made = _each(values, read)
        try:
            built = kind(**made)
            if (check := getattr(built, "check_loaded", None)) is not None:
                check()
            return built
        except InvalidSetting as error:
            key = f"{prefix}{error.key}"
            line = self.line_of(key) or self.line_of(prefix.rstrip("."))  # a key that is missing: of its section
            raise FileError(self.path, error.message, line=line, key=key, fix=error.fix) from error
        except TypeError as error:
            missing = [n for n, f in known.items() if n not in made and _required(f)]
            raise self.fail(prefix.rstrip("."), f"missing: {', '.join(missing)}", "add the key") from error

    def value(self, hint: Any, value: Any, key: str, metadata: typing.Mapping[str, Any]) -> Any:
        origin = typing.get_origin(hint)
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise self.fail(key, f"is a section, not {value!r}", f"write [{key}] on a line of its own")
            return self.record(typing.cast(type[Any], hint), value, f"{key}.")
        if origin is dict:
            if not isinstance(value, dict):
                raise self.fail(key, f"is a table, not {value!r}", f"write [{key}.NAME]")
            inner = typing.get_args(hint)[1]
            return _each(value, lambda name, item: self.value(inner, item, f"{key}.{name}", {}))
        if origin is list:
            if not isinstance(value, list):
                raise self.fail(key, f"is a list, not {value!r}", f"write {key.rpartition('.')[2]} = [...]")
            inner = typing.get_args(hint)[0]
            of_each = {"unit": metadata.get("unit"), "words": metadata.get("words")}
            return [self.value(inner, item, key, of_each) for item in value]
        if isinstance(hint, types.UnionType) or origin is typing.Union:
            parts = [part for part in typing.get_args(hint) if part is not type(None)]
            hint = next((part for part in parts if type(value) is part), parts[0])
        return self._scalar(hint, value, key, metadata)

    def _scalar(self, hint: Any, value: Any, key: str, metadata: typing.Mapping[str, Any]) -> Any:
        if isinstance(value, str) and hint in (int, float):
            value = self._quantity(hint, value, key, metadata.get("unit") or "")
        if hint is float and isinstance(value, int) and (number := number_of(value)) is not None:
            value = number
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise self.fail(key, f"must be {hint.__name__}, not {value!r}", "correct the value")
        least, most = metadata.get("least"), metadata.get("most")
        unit = metadata.get("unit") or ""
        if least is not None and not value >= least:
            raise self.fail(key, f"{value!r} is below {least} {unit}".rstrip(), f"at least {least}")
        if most is not None and not value <= most:
            raise self.fail(key, f"{value!r} is above {most} {unit}".rstrip(), f"at most {most}")
        if isinstance(value, float) and number_of(value) is None:  # a bound is not asked of each setting
            raise self.fail(
                key, f"{value!r} is no number of {unit}".removesuffix(" of "), "write a number, or leave it out"
            )
        words = metadata.get("words") or ()
        if words and value not in words:
            raise self.fail(key, f"{value!r} is not known here", "write " + " or ".join(f'"{word}"' for word in words))
        return value

    def _quantity(self, hint: Any, text: str, key: str, unit: str) -> Any:
        """A number that is written with its unit (``"10min"``, ``"8GiB"``), in the setting's own unit."""
        reader = _QUANTITIES.get(unit or ("bytes" if key.endswith("_bytes") else ""))
        if reader is None:
            raise self.fail(key, f"must be {hint.__name__}, not {text!r}", "write the number without quotes")
        read, factor = reader
        try:
            value = read(text) / factor
        except PlanningError as error:
            raise self.fail(key, error.message.removeprefix(": "), error.fix) from error
        if hint is int:
            if not value.is_integer():
                raise self.fail(key, f"{text!r} is no whole number of {unit or 'bytes'}", "write a whole number")
            return int(value)
        return value


def _each(values: dict[str, Any], read: typing.Callable[[str, Any], Any]) -> dict[str, Any]:
    """What ``read`` makes of each.

    Raises:
        FileError: the first that is wrong; the others are in it.
    """
    made: dict[str, Any] = {}
    faults: list[FileError] = []
    for name, value in values.items():
        try:
            made[name] = read(name, value)
        except FileError as error:
            faults.append(error)
            if len(faults) >= _MOST_FAULTS:
                break
    if faults:
        raise all_of(faults)
    return made


# How a unit's quantities are read, and how many of the reader's own unit one of it is.
_QUANTITIES: dict[str, tuple[typing.Callable[[str], float], float]] = {
    "s": (lambda text: quantities.duration_or_zero(text, "").value, 1.0),
    "days": (lambda text: quantities.duration_or_zero(text, "").value, quantities.DAY_S),
    "bytes": (lambda text: quantities.size(text, "").value, 1.0),
    "bytes/s": (lambda text: quantities.rate(text, "").value, 1.0),
}


def _plain(written: str) -> str:
    """A dotted key without spaces and quotes."""
    return ".".join(part.strip("\"'") for part in _PART.findall(written))


def _required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def described(kind: type[Any], prefix: str = "") -> list[tuple[str, object, str, str]]:
    """Every setting as (key, default, unit, reason), for documentation and ``sentinel config show``."""
    rows: list[tuple[str, object, str, str]] = []
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        key = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hints[item.name]):
            rows.extend(described(hints[item.name], f"{key}."))
            continue
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        rows.append((key, default, item.metadata.get("unit", ""), item.metadata.get("reason", "")))
    return rows
