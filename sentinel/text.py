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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_UNFIT = re.compile("[\0\ud800-\udfff]")
_UNFIT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")  # in JSON: NUL, or half of a pair
_LEAST_SHOWN = 24  # characters of a sentence that is cut: fewer say nothing
_MOST_NAME = 64  # characters of a last word that names something: a UUID has some forty
_PART = re.compile(r"(GPU|switch|nvswitch|cpu) [0-9]{1,4}(?=[: ])")
_LONG = re.compile(  # of a UUID the start is enough; a PCI domain has four digits nearly everywhere
    r"\b(?:((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0000([0-9a-fA-F]{4}(?::[0-9a-fA-F]{2}){2}\.[0-9]))\b"
)
_WORDS = re.compile(r"\s*\S+(?:\s+\d\S*)*")
_UNITS_S = ((86400.0, "d", 1800.0), (3600.0, "h", 30.0), (60.0, "min", 0.5))  # with a half of the next smaller unit
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


def duration_words(seconds: float) -> str:
    """A length of time in one unit; below ten of it with one decimal, as 1.5 h is neither 1 h nor 2 h."""
    value, unit = seconds, "s"
    for size_s, name, half_s in _UNITS_S:
        if seconds >= size_s - half_s:  # 59.6 s are one minute, not 60 s
            value, unit = seconds / size_s, name
            break
    return f"{f'{value:.1f}'.removesuffix('.0') if value < 9.95 else f'{value:.0f}'} {unit}"


def visible(text: str, most: int | None = 300) -> str:
    """``text`` with the escape (``\\x1b``) of each character that has no glyph, cut after ``most`` characters."""
    if not text.isprintable():
        text = "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def brief(sentences: Iterable[str], most: int) -> str:
    """Every part that the sentences name, before all words of one: one line of at most ``most`` characters.

    A sentence names a GPU, switch or CPU at its start, or what it is about as its last word. Those that differ only in that
    are told once, with all the names. Of what does not fit go the ends of all sentences first, then the later sentences of a
    part, and names last; the sentences of which nothing is told are counted at the end.
    """
    whole = list(dict.fromkeys(filter(str.strip, sentences)))
    parts = _by_part(whole)
    if len(line := _line(parts, len(parts), len(whole), most)) <= most:
        return line
    short = list(dict.fromkeys(_LONG.sub(r"\1\2", sentence) for sentence in whole))
    if len(short) == len(whole):  # they still tell the GPUs apart
        parts = _by_part(short)
    number, each = len(parts), len(whole)
    if len(_line(parts, number, 1, 0)) > most:
        number = _largest(1, number, lambda number: len(_line(parts, number, 1, _LEAST_SHOWN)) <= most)
    each = _largest(1, each, lambda each: len(_line(parts, number, each, _LEAST_SHOWN)) <= most)
    letters = _largest(0, most, lambda letters: len(_line(parts, number, each, letters)) <= most)
    return _line(parts, number, each, letters)[:most]


def _by_part(sentences: Sequence[str]) -> dict[tuple[str, bool], list[str]]:
    """(The name, whether at the end) → what is said of it; without a name what names nothing."""
    found = []
    for sentence in sentences:
        if (start := _PART.match(sentence)) is not None:
            text = sentence[start.end() :]
            alike = re.sub(rf"\b{start[0]}\b", f"the {start[1]}", text)
            found.append((start[0], False, text, alike))
            continue
        before, _, name = sentence.rpartition(" ")
        if before == "GPU" or before.endswith(" GPU"):  # by its number
            before, name = before[:-3].rstrip(), f"GPU {name}"
        found.append((name, True, before, before))
    shared = Counter((is_last, alike) for _, is_last, _, alike in found)
    parts: dict[tuple[str, bool], list[str]] = {}
    for name, is_last, text, alike in found:
        is_shared = shared[is_last, alike] > 1
        if is_last and (len(name) > _MOST_NAME or not (is_shared or any(map(str.isdigit, name)))):
            parts.setdefault(("", True), []).append(f"{text} {name}".lstrip())
        else:
            parts.setdefault((name, is_last), []).append(alike if is_shared else text)
    return parts


def _line(parts: Mapping[tuple[str, bool], Sequence[str]], number: int, each: int, letters: int) -> str:
    """The first parts, of each the first sentences, and of those the beginnings; and how many are left out."""
    groups: dict[tuple[bool, tuple[str, ...]], list[str]] = {}  # what is said → of what
    left_out = 0
    for index, ((name, is_last), texts) in enumerate(parts.items()):
        told = [_beginning(text, letters) for text in texts[:each]] if index < number else []
        left_out += len(texts) - (len(told) if name else sum(map(bool, told)))
        if told:
            for said in [(text,) for text in dict.fromkeys(told)] if is_last else [tuple(dict.fromkeys(told))]:
                groups.setdefault((is_last, said), []).append(name)
    line = []
    for (is_last, said), named in groups.items():
        names = ", ".join(filter(None, dict.fromkeys(named)))
        words = said[0] + "".join(f", {text.lstrip(': ')}" for text in said[1:] if text)
        line.append(f"{words} {names}".strip() if is_last else names + words)
    return "; ".join([*filter(None, line), *([f"and {left_out} more"] if left_out else [])])


def _beginning(text: str, most: int) -> str:
    """Whole words in at most so many characters, a number with the word before it; part of a word that is too long."""
    if len(text) <= most:
        return text
    end = 0
    for words in _WORDS.finditer(text):
        if words.end() > most - 3:
            break
        end = words.end()
    if not end and most >= _LEAST_SHOWN // 2:
        end = most - 3
    start = text[:end].rstrip(" .,;:")
    return f"{start}..." if start else ""


def _largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits; ``least`` where none does."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


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


# A control character that its writer did not escape is no reason to refuse it.
_DECODER = json.JSONDecoder(strict=False)


def _json(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _escape(unfit: re.Match[str]) -> str:
    code = ord(unfit[0])
    if code in _BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code else "\\x00"
