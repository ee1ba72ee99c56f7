"""Records as JSON, for the wire between nodes and daemon, the agent's spool, the store and ``--json``.

Encoding uses the standard library alone: the agent's children and the hooks run without site-packages. Decoding is done by
msgspec, imported only here and only where something is decoded; it is strict about types and lenient about unknown keys (a
newer sender may add some): what does not fit raises ``ProtocolError``, so that a torn line is *unreadable* and nothing
else. Text of evidence is made plain (``sentinel.text``), what is too long for the store is refused, and other text is cut:
what one sender may have kept is bounded by how much it sends, not by how long each part is.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from sentinel.errors import ProtocolError
from sentinel.model.orders import MOST_ATTEMPT
from sentinel.model.records import NOWHERE, Evidence, Kind, Scalar, Source, Trust, Where
from sentinel.model.vocabulary import CHECKPOINTS_SEEN
from sentinel.text import json_with_bytes, plain

# The store's limits. One evidence beyond it would keep out the whole batch that it came with.
MOST_ID, MOST_KIND, MOST_NODE = 40, 48, 255  # characters
MOST_JOB = 2**63 - 1
# What is longer is cut, as text is: a program can print a line of 64 KiB, of which a rule takes a part.
MOST_NAME, MOST_PATH, MOST_VALUE = 255, 4096, 8192  # characters
# Characters of all data of one evidence; of listings of checkpoints, of which agents send 96 KiB, and of counters more.
MOST_DATA, MOST_LISTED = 32 << 10, 192 << 10
_LISTED = frozenset({Kind.CHECKPOINTS_HELD, CHECKPOINTS_SEEN, Kind.COUNTERS})
_MOST_INTEGER = 2**63 - 1
_YEARS = (1970, 2200)

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


_ENCODER = json.JSONEncoder(default=to_json)


def to_text(value: object) -> str:
    """The JSON text of what ``to_json`` gives, with the C encoder doing what it can."""
    return _ENCODER.encode(value)


def _fields(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a record; None for what is none."""
    if kind not in _FIELDS:
        record = dataclasses.is_dataclass(kind)
        _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind)) if record else None
    return _FIELDS[kind]


def large_json(raw: bytes | str) -> Any:
    """The value of a JSON text of many megabytes, as ``json_with_bytes`` reads it; in half of its time, as a rule.

    Raises:
        ValueError: not JSON, or nested without end.
    """
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):  # bytes that are no text, control characters, NaN
        return json_with_bytes(raw)


def record_from(kind: type[T], value: object) -> T:
    """A record of ``kind`` (a dataclass of the vocabulary) from the JSON that ``to_json`` makes of it.

    Raises:
        ProtocolError: not an object, a key is missing, or a value is of the wrong type.
    """
    import msgspec

    if not isinstance(value, dict):
        raise ProtocolError(f"{kind.__name__} is not an object: {value!r:.80}")
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"not {kind.__name__}: {error!s:.160}") from error


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


@dataclasses.dataclass(frozen=True, slots=True)
class SentEvidence:
    """``Evidence`` as a sender may state it: who says nothing about trust has none."""

    id: str
    at: datetime
    seen_at: datetime
    source: Source
    kind: str
    where: Where | None = None
    text: str = ""
    rule: str | None = None
    line: int | None = None
    data: Mapping[str, Scalar] | None = None
    trust: Trust = Trust.USER


def evidence_from(value: object) -> Evidence:
    """Evidence from the JSON that ``to_json`` makes of it.

    Raises:
        ProtocolError: a key is missing or of the wrong type, or a value is beyond the store's limits.
    """
    sent = record_from(SentEvidence, value)
    return Evidence(
        id=_fitting(sent.id, MOST_ID),
        at=moment(sent.at),
        seen_at=moment(sent.seen_at),
        source=sent.source,
        kind=_fitting(sent.kind, MOST_KIND),
        where=NOWHERE if sent.where is None else _place(sent.where),
        text=plain(sent.text),
        rule=_cut(sent.rule, MOST_NAME),
        line=sent.line,
        data=_scalars(sent.data or {}, listed=sent.kind in _LISTED),
        trust=sent.trust,
    )


def _place(where: Where) -> Where:
    for name, number, most in (("job", where.job, MOST_JOB), ("attempt", where.attempt, MOST_ATTEMPT)):
        if number is not None and abs(number) > most:
            raise ProtocolError(f"{name} is beyond {most}: {number!r:.80}")
    return Where(
        node=None if where.node is None else _fitting(where.node, MOST_NODE),
        gpu=where.gpu,
        gpu_uuid=_cut(where.gpu_uuid, MOST_NAME),
        nic=_cut(where.nic, MOST_NAME),
        rank=where.rank,
        job=where.job,
        attempt=where.attempt,
        path=_cut(where.path, MOST_PATH),
    )


def _fitting(text: str, most: int) -> str:
    made = plain(text)
    if len(made) > most:
        raise ProtocolError(f"longer than {most} characters: {made!r:.80}")
    return made


def _cut(text: str | None, most: int) -> str | None:
    made = None if text is None else plain(text)
    return made if made is None or len(made) <= most else made[: most - 1] + "…"


def _scalars(data: Mapping[str, Scalar], *, listed: bool) -> dict[str, Scalar]:
    if any(isinstance(item, int) and abs(item) > _MOST_INTEGER for item in data.values()):
        raise ProtocolError(f"a number in data beyond {_MOST_INTEGER}")  # no float holds it, and no store
    longest, most = (MOST_LISTED, MOST_LISTED) if listed else (MOST_VALUE, MOST_DATA)
    made = {plain(key): _cut(item, longest) if isinstance(item, str) else item for key, item in data.items()}
    if (size := size_of(made)) > most:
        raise ProtocolError(f"data of {size} characters, more than {most}")
    return made


def size_of(data: Mapping[str, Scalar]) -> int:
    """Characters that data takes, about: its names and texts, and eight for a number."""
    return sum(len(key) + (len(item) if isinstance(item, str) else 8) for key, item in data.items())


def moment(time: datetime) -> datetime:
    """A time at which something can have happened, in UTC: arithmetic with it never leaves the calendar.

    Raises:
        ProtocolError: it is without a zone, or of another age.
    """
    if time.utcoffset() is None:
        raise ProtocolError(f"time without a zone: {time}")
    if not _YEARS[0] <= time.year < _YEARS[1]:
        raise ProtocolError(f"not a time between {_YEARS[0]} and {_YEARS[1]}: {time}")
    return time.astimezone(UTC)
