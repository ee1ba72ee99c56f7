"""Slurm's short form of node lists: ``n[1-3,07],m02,r[1-2]c[1-2]`` to names and back; the order of names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

from sentinel.errors import ProtocolError

MAX_NAMES = 100_000  # more than any cluster has: a damaged "n[1-99999999999]" must not fill the memory
_MOST_CHARACTERS = 8 << 20  # of all names: a user's text may repeat a long name as often
_LONGEST_RANGE = 1_000_000  # numbers; of a list of which only the first names are wanted, too
_MOST_PARTS = 64  # of one name, in brackets and between them: Slurm writes a pair of brackets for each dimension
_BETWEEN = ", \t\n"  # what separates names outside brackets, any number of them: users type "n1, n2"
# Slurm counts blanks before a number, and before a dash, among its digits: "n[1, 2]" is n1 and n02.
_RANGE = re.compile(r"([ \t\n]*[0-9]{1,18}(?:[ \t\n]*(?=-))?)(?:-[ \t\n]*([0-9]{1,18}))?\Z")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_UNFOLDABLE = re.compile(r"[\[\],\s]")
_NOTHING = {"", "(null)", "None", "N/A"}

_Range = tuple[range, int]  # numbers, and to how many digits they are padded
_Part = str | list[_Range]  # of a name


def expand(text: str) -> tuple[str, ...]:
    """Names in the order written; duplicates stay. What Slurm prints for "none" gives an empty tuple, and so do separators
    alone.

    Raises:
        ProtocolError: unbalanced brackets, a range that is none, or an absurd number or length of names; counted before
            any is made.
    """
    elements = list(_parsed(text))
    if sum(_count(parts) for parts in elements) > MAX_NAMES:
        raise ProtocolError(f"node list has more than {MAX_NAMES} names: {text!r:.120}")
    if sum(_characters(parts) for parts in elements) > _MOST_CHARACTERS:
        raise ProtocolError(f"node list has more than {_MOST_CHARACTERS} characters of names: {text!r:.120}")
    return tuple(name for parts in elements for name in map("".join, product(*map(_texts, parts))))


def names_in(text: str) -> Iterator[str]:
    """As ``expand``, name by name, for a text of which the first few are wanted: it fails where it comes to the damage."""
    for parts in _parsed(text):
        yield from _joined(parts)


def _parsed(text: str) -> Iterator[list[_Part]]:
    """The parts of each element: what stands between brackets, and ranges."""
    if text.strip() not in _NOTHING:
        for element in _elements(text.strip()):
            yield _parts(element, text)


def _elements(text: str) -> Iterator[str]:
    """Split at commas and blanks outside brackets; nothing between two of them is no element."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character in _BETWEEN and depth == 0:
            if start < position:
                yield text[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise ProtocolError(f"brackets of a node list do not match: {text!r:.120}")
    if depth:
        raise ProtocolError(f"brackets of a node list do not match: {text!r:.120}")
    if start < len(text):
        yield text[start:]


def _parts(element: str, whole: str) -> list[_Part]:
    """``r[1-2]c[08-09]x`` → r, [1-2], c, [08-09], x."""
    parts = re.split(r"\[([^\]]*)\]", element)
    if any(character.isspace() for part in parts[::2] for character in part):
        raise ProtocolError(f"blank in a name of a node list: {whole!r:.120}")
    if len(parts) > _MOST_PARTS:
        raise ProtocolError(f"more brackets than a node's name has: {whole!r:.120}")
    return [_ranges_in(part, whole) if index % 2 else part for index, part in enumerate(parts) if part or index % 2]


def _count(parts: Sequence[_Part]) -> int:
    """How many names these parts make."""
    return prod(_numbers(part) for part in parts)


def _characters(parts: Sequence[_Part]) -> int:
    """How many characters their names have together, at most."""
    names, found = _count(parts), 0
    for part in parts:
        if isinstance(part, str):
            found += names * len(part)
        else:
            digits = sum(len(numbers) * max(width, len(f"{numbers[-1]}")) for numbers, width in part)
            found += names // _numbers(part) * digits
    return found


def _numbers(part: _Part) -> int:
    return 1 if isinstance(part, str) else sum(len(numbers) for numbers, _ in part)


def _texts(part: _Part) -> Iterable[str]:
    return (part,) if isinstance(part, str) else (f"{n:0{width}}" for numbers, width in part for n in numbers)


def _joined(parts: Sequence[_Part]) -> Iterator[str]:
    """Name by name (``r[1-2]c[08-09]`` → r1c08, r1c09, r2c08, r2c09): those of the first part with all of the others'."""
    if not parts:
        yield ""
        return
    first, rest = parts[0], parts[1:]
    if isinstance(first, str):
        yield from (first + end for end in _joined(rest))
        return
    for numbers, digits in first:
        for number in numbers:
            yield from (f"{number:0{digits}}{end}" for end in _joined(rest))


def _ranges_in(text: str, whole: str) -> list[_Range]:
    ranges: list[_Range] = []
    for item in text.split(","):
        match = _RANGE.match(item)
        if match is None:
            raise ProtocolError(f"not a range: {item!r:.40} in node list {whole!r:.120}")
        first, last = match[1], match[2] or match[1]
        low, high = int(first), int(last)
        if high < low or high - low > _LONGEST_RANGE:
            raise ProtocolError(f"not a range: {item!r:.40} in node list {whole!r:.120}")
        ranges.append((range(low, high + 1), len(first)))
    return ranges


def fold(names: Iterable[str]) -> str:
    """The short form of these names, as Slurm writes it: duplicates once, numbers in order, other names as they are.

    ``expand`` gives back the same names. What cannot stand in a node list (a bracket, a comma, a blank) is left unfolded.
    """
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for name in dict.fromkeys(names):
        match = None if _UNFOLDABLE.search(name) else _LAST_NUMBER.fullmatch(name)
        head, digits, tail = match.groups() if match else (name, "", "")
        groups.setdefault((head, tail), {})[digits] = None
    return ",".join(_folded(head, list(digits), tail) for (head, tail), digits in groups.items())


def _folded(head: str, digits: list[str], tail: str) -> str:
    parts = [f"{head}{tail}"] if "" in digits else []
    padded = {len(number) for number in digits if len(number) > 1 and number.startswith("0")}
    by_width: dict[int, list[int]] = {}
    for number in filter(None, digits):
        by_width.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    ranges = [text for width, numbers in sorted(by_width.items()) for text in _ranges(sorted(numbers), width)]
    if len(ranges) == 1 and "-" not in ranges[0]:
        parts.append(f"{head}{ranges[0]}{tail}")
    elif ranges:
        parts.append(f"{head}[{','.join(ranges)}]{tail}")
    return ",".join(parts)


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    """Runs of consecutive numbers: ``1-3``, ``7``."""
    first = last = numbers[0]
    for number in [*numbers[1:], numbers[-1] + 2]:
        if number == last + 1:
            last = number
            continue
        yield f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        first = last = number


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]
