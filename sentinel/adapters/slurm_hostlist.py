"""Slurm's short form of node lists: ``n[1-3,07],m02,r[1-2]c[1-2]`` → names, in order. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from sentinel.errors import ProtocolError

MAX_NAMES = 1_000_000  # more than any cluster has: a damaged "n[1-99999999999]" must not fill the memory

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")
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
