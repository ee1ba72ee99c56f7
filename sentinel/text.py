"""Text from outside: bytes that users, programs and operators chose, as text that every outlet can carry. Pure.

Job names, comments, paths and reasons may hold any byte but NUL, and JSON may name half a surrogate pair. PostgreSQL, a
terminal and a webhook's receiver refuse such text, and one refusal would hide everything that stands beside it. So what
comes in is made ``plain``: a byte that is no UTF-8 becomes its escape (``\\xff``), as do NUL (``\\x00``) and half a pair
(``\\ud800``). No input raises and no character beside changes. Text that already held these four characters looks the same
afterwards: it is for reading and comparing.

Names of files that must be opened again cannot be told from that. JSON about them is read with ``json_with_bytes``, which
keeps their bytes as Python's file functions do (``surrogateescape``); it is made plain where it is shown or sent on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_UNFIT = re.compile("[\0\ud800-\udfff]")
_UNFIT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")  # in JSON: NUL, or half of a pair
_LEAST_SHOWN = 24  # characters of a sentence that is cut: fewer say nothing
MOST_LEVELS = 100  # of JSON that others send; ours has ten
_BYTES = range(0xDC80, 0xDD00)  # where surrogateescape puts a byte that is no UTF-8


def text_of(raw: bytes) -> str:
    """What a program printed."""
    return plain(_decoded(raw))


def plain(text: str) -> str:
    """``text`` without NUL and lone surrogates; see above."""
    return _UNFIT.sub(_escape, text) if _UNFIT.search(text) else text


def printable(text: str, instead: str = " ", *, keep: str = "") -> str:
    """``text`` with ``instead`` for each character that has no glyph, but those of ``keep``.

    Such a character moves a cursor, colours a terminal, or turns a line around: text of others is shown without it.
    """
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() or ch in keep else instead for ch in text)


def visible(text: str, most: int | None = 300) -> str:
    """``text`` with the escape (``\\x1b``) of each character that has no glyph, cut after ``most`` characters."""
    if not text.isprintable():
        text = "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def brief(sentences: Iterable[str], most: int) -> str:
    """All of the sentences, before all of one: one line of at most ``most`` characters, the separators included.

    Those that differ only in their last word, as in the GPU, are told once with all their last words; those that do not
    fit are counted at the end.
    """
    groups: dict[str, list[str]] = {}
    for sentence in dict.fromkeys(filter(None, sentences)):
        before, _, last = sentence.rpartition(" ")
        if before.endswith(" GPU"):  # by its number
            before, last = before.removesuffix(" GPU"), f"GPU {last}"
        groups.setdefault(before, []).append(last)
    line = "; ".join(_told(before, names) for before, names in groups.items())
    if len(line) <= most:
        return line
    count = sum(map(len, groups.values()))
    left = most - len(f"; and {count} more")
    shown = list(groups.items())[: max(1, (left + 2) // (_LEAST_SHOWN + 2))]
    left -= 2 * (len(shown) - 1)
    parts, told = {}, 0
    by_length = sorted(shown, key=lambda group: len(_told(*group)))
    for index, (before, names) in enumerate(by_length):  # what short ones leave is for long ones
        parts[before], number = _within(before, names, left // (len(shown) - index))
        left, told = left - len(parts[before]), told + number
    more = [f"and {count - told} more"] if told < count else []
    return "; ".join([*(parts[before] for before, _ in shown), *more])


def _told(before: str, names: list[str]) -> str:
    return f"{before} {', '.join(names)}".lstrip()


def _within(before: str, names: list[str], most: int) -> tuple[str, int]:
    """Sentences that differ in the last word in at most ``most`` characters, and how many of them are told."""
    text = _told(before, names)
    if len(text) <= most:
        return text, len(names)
    if len(names) > 1 or any(map(str.isdigit, names[0])):  # the last word names a part: what is before it is cut first
        for number in range(len(names), 0, -1):
            free = most - len(", ".join(names[:number])) - 1
            if free >= min(len(before), _LEAST_SHOWN // 2):
                start = before if len(before) <= free else f"{before[: free - 3]}..."
                return _told(start, names[:number]), number
    return text[:most], 1


def clean(value: Any) -> Any:
    """Plain JSON (objects, lists, scalars) with every string in it made plain, keys too."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def whole_number(text: str, *, digits: int = 18) -> int | None:
    """The number that ``text`` is, without a sign, in at most so many ASCII digits; None for anything else.

    ``str.isdigit`` also takes characters that ``int`` does not ("\u00b2"), and ``int`` refuses more than 4,300 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def whole_numbers(text: str) -> list[int]:
    """Those of a comma-separated list that are numbers as above."""
    return [number for word in text.split(",") if (number := whole_number(word.strip())) is not None]


def names(value: object) -> list[str]:
    """The names of a comma-separated list, as steps and outcomes carry nodes; none of None or of an empty one."""
    return [name for name in str(value or "").split(",") if name]


def objects_in(value: object) -> list[dict[Any, Any]]:
    """The objects of a JSON list; none where it is no list: others wrote it."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def json_of(raw: bytes) -> Any:
    """The value of a JSON text, its strings plain.

    Raises:
        ValueError: not JSON, or nested without end.
    """
    text = _decoded(raw)
    if "\0" in text or not _encodable(text):
        # Such a character can only stand inside a string: its escape is written there as JSON writes it.
        text = _UNFIT.sub(lambda unfit: "\\" + _escape(unfit), text)
    value = _json(text)
    if not _UNFIT_ESCAPE.search(text):
        return value  # as nearly all: no walk over the answer of a large cluster
    try:
        return clean(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_with_bytes(raw: bytes | str) -> Any:
    """The value of a JSON text about files: a byte that is no UTF-8 stays what it is, for ``os.open`` and the like.

    Raises:
        ValueError: not JSON, or nested without end.
    """
    return _json(raw if isinstance(raw, str) else _decoded(raw))


def is_deep(raw: bytes, value: Any) -> bool:
    """Whether the JSON text ``raw``, whose value is ``value``, is nested deeper than ``MOST_LEVELS``.

    What is made of it later is written from deeper in a stack than it was read: at the edge reading works, writing fails.
    """
    if raw.count(b"[") + raw.count(b"{") <= MOST_LEVELS:
        return False  # as nearly all
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [item for found in level if isinstance(found, dict | list) for item in _inside(found)]
    return bool(level)


def _inside(found: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return found.values() if isinstance(found, dict) else found


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _json(text: str) -> Any:
    try:
        return json.loads(
            text, strict=False
        )  # a control character that its writer did not escape is no reason to refuse it
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _escape(unfit: re.Match[str]) -> str:
    code = ord(unfit[0])
    if code in _BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code else "\\x00"
