"""Slurm's short form of node lists: ``n[1-3,07],m02,r[1-2]c[1-2]`` to names and back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from sentinel.errors import ProtocolError

MAX_NAMES = 1_000_000  # more than any cluster has: a damaged "n[1-99999999999]" must not fill the memory

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_UNFOLDABLE = re.compile(r"[\[\],\s]")
_NOTHING = {"", "(null)", "None", "N/A"}


def expand(text: str) -> tuple[str, ...]:
    """Names in the order written; duplicates stay. What Slurm prints for "none" gives an empty tuple.

    Raises:
        ProtocolError: unbalanced brackets, a range that is none, or an absurd number of names.
    """
    if text.strip() in _NOTHING:
        return ()
    names: list[str] = []
    for element in _elements(text.strip()):
        for name in _names(element, text):
            names.append(name)
            if len(names) > MAX_NAMES:
                raise ProtocolError(f"node list has more than {MAX_NAMES} names: {text!r:.120}")
    return tuple(names)


def _elements(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise ProtocolError(f"brackets of a node list do not match: {text!r:.120}")
    if depth:
        raise ProtocolError(f"brackets of a node list do not match: {text!r:.120}")
    yield text[start:]


def _names(element: str, whole: str) -> Iterator[str]:
    """``r[1-2]c[08-09]x`` → r1c08x, r1c09x, r2c08x, r2c09x."""
    if not element or any(character.isspace() for character in element):
        raise ProtocolError(f"empty or blank name in a node list: {whole!r:.120}")
    parts = re.split(r"\[([^\]]*)\]", element)
    choices = [_numbers(part, whole) if index % 2 else [part] for index, part in enumerate(parts)]
    size = 1
    for choice in choices:
        size *= len(choice)
    if size > MAX_NAMES:
        raise ProtocolError(f"node list has more than {MAX_NAMES} names: {whole!r:.120}")
    for combination in product(*choices):
        yield "".join(combination)


def _numbers(ranges: str, whole: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.match(item)
        if match is None:
            raise ProtocolError(f"not a range: {item!r:.40} in node list {whole!r:.120}")
        first, last = match[1], match[2] or match[1]
        low, high = int(first), int(last)
        if high < low or high - low > MAX_NAMES:
            raise ProtocolError(f"not a range: {item!r:.40} in node list {whole!r:.120}")
        numbers.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    return numbers


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
