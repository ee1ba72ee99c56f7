"""JSON of the store's columns. A number that JSON has no word for is spelled."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_FLOAT = "$float"


def to_text(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):  # seldom: a number that is none
        return json.dumps(_spelled(value), allow_nan=False)


def _spelled(value: Any) -> Any:
    """A loss may be NaN, for which JSON (and PostgreSQL) has no word."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(item) for item in value]
    return value


def _with_floats(found: dict[str, Any]) -> Any:
    return float(found[_FLOAT]) if len(found) == 1 and _FLOAT in found else found


_DECODER = json.JSONDecoder(object_hook=_with_floats)  # made once: json.loads makes one for each of five columns a row


_EMPTY: Mapping[str | bytes, type[list[Any]] | type[dict[str, Any]]] = {
    "[]": list,
    "{}": dict,
}  # most of what is stored


def from_text(text: str | bytes) -> Any:
    """Raises TypeError for a number: SQLite gives one where the JSON was no more, and SQLAlchemy takes it as it is then."""
    if text in _EMPTY:
        return _EMPTY[text]()
    return _DECODER.decode(text if isinstance(text, str) else str(text, "utf-8"))
