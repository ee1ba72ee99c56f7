"""Records as JSON, for the wire between nodes and daemon, the agent's spool, the store and ``--json``.

Decoding is strict about types and lenient about unknown keys (a newer sender may add some): what does not fit raises
``ProtocolError``, so that a torn line is *unreadable* and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from sentinel.errors import ProtocolError
from sentinel.model import Evidence, Scalar, Source, Trust, Where

T = TypeVar("T")
_FIELDS: dict[type, tuple[str, ...] | None] = {}
_PLAIN = frozenset({str, int, float, bool, type(None)})


def to_json(value: object) -> Any:
    """Plain JSON of a record: times as ISO 8601 in UTC, enums as their ids, tuples and sets as lists."""
    kind = type(value)
    if kind in _PLAIN:  # most of what there is; the kinds below are looked for only in what is left
        return value
    if kind is dict:
        return {str(key): to_json(item) for key, item in typing.cast(dict[object, object], value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if (names := _fields(kind)) is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(item) for item in value)
    return value


def to_text(value: object) -> str:
    """The JSON text of what ``to_json`` gives, with the C encoder doing what it can."""
    return json.dumps(value, default=to_json)


def _fields(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a record; None for what is none."""
    if kind not in _FIELDS:
        record = dataclasses.is_dataclass(kind)
        _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind)) if record else None
    return _FIELDS[kind]


def record_from(kind: type[T], value: object) -> T:
    """A record of ``kind`` (a dataclass of the vocabulary) from the JSON that ``to_json`` makes of it.

    Raises:
        ProtocolError: not an object, a key is missing, or a value is of the wrong type.
    """
    if not isinstance(value, dict):
        raise ProtocolError(f"{kind.__name__} is not an object: {value!r:.80}")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: _value(hints[name], item) for name, item in value.items() if name in known})
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"not {kind.__name__}: {error!s:.120}") from error


def _value(hint: Any, value: object) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        rest = [part for part in arguments if part is not type(None)]
        return value if len(rest) > 1 else _value(rest[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item) for item in value)
    if origin is frozenset and isinstance(value, list):
        return frozenset(value)
    if origin in (Mapping, dict) and isinstance(value, dict):
        return dict(value)
    if hint is Evidence:
        return evidence_from(value)
    if hint is datetime:
        return time_from(value)
    if dataclasses.is_dataclass(hint):
        return record_from(typing.cast(type[Any], hint), value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ProtocolError(f"not {hint.__name__}: {value!r:.80}")
    return value


def time_from(value: object) -> datetime:
    """Aware time of an ISO 8601 string.

    Raises:
        ProtocolError: not a string, not a time, or without a zone.
    """
    if not isinstance(value, str):
        raise ProtocolError(f"not a time: {value!r:.80}")
    try:
        time = datetime.fromisoformat(value)
    except ValueError as error:
        raise ProtocolError(f"not a time: {value!r:.80}") from error
    if time.utcoffset() is None:
        raise ProtocolError(f"time without a zone: {value!r:.80}")
    try:
        return time.astimezone(UTC)
    except OverflowError as error:  # year 1 with an offset is before all time in UTC
        raise ProtocolError(f"not a time: {value!r:.80}") from error


def evidence_from(value: object) -> Evidence:
    """Evidence from the JSON that ``to_json`` makes of it.

    Raises:
        ProtocolError: a key is missing or of the wrong type.
    """
    if not isinstance(value, dict):
        raise ProtocolError(f"evidence is not an object: {value!r:.80}")
    try:
        return Evidence(
            id=_text(value["id"]),
            at=time_from(value["at"]),
            seen_at=time_from(value["seen_at"]),
            source=Source(value["source"]),
            kind=_text(value["kind"]),
            where=where_from(value.get("where") or {}),
            text=_text(value.get("text", "")),
            rule=_optional(value.get("rule"), str),
            line=_optional(value.get("line"), int),
            data=_scalars(value.get("data") or {}),
            trust=Trust(value.get("trust", Trust.USER)),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"not evidence: {error!r:.120}") from error


def where_from(value: object) -> Where:
    if not isinstance(value, dict):
        raise ProtocolError(f"where is not an object: {value!r:.80}")
    return Where(
        node=_optional(value.get("node"), str),
        gpu=_optional(value.get("gpu"), int),
        gpu_uuid=_optional(value.get("gpu_uuid"), str),
        nic=_optional(value.get("nic"), str),
        rank=_optional(value.get("rank"), int),
        job=_optional(value.get("job"), int),
        attempt=_optional(value.get("attempt"), int),
        path=_optional(value.get("path"), str),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ProtocolError(f"not text: {value!r:.80}")
    return value


def _optional(value: object, kind: type[T]) -> T | None:
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProtocolError(f"not {kind.__name__}: {value!r:.80}")
    return value


def _scalars(value: object) -> dict[str, Scalar]:
    if not isinstance(value, dict) or not all(
        isinstance(item, (str, int, float, bool, type(None))) for item in value.values()
    ):
        raise ProtocolError(f"data is not a flat object: {value!r:.80}")
    return {str(key): item for key, item in value.items()}
