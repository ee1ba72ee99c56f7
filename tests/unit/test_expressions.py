"""No expression of the package can take exponential time: what a group repeats can be read in one way only."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import re._constants as kind  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import sentinel
from sentinel.evidence.logs.frames import is_ignored

_REPEATS = (kind.MAX_REPEAT, kind.MIN_REPEAT)
_CLASSES = {
    "SPACE": frozenset(b" \t\n\r\f\v"),
    "DIGIT": frozenset(b"0123456789"),
    "WORD": frozenset(b"_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_ALL = frozenset(range(1, 256))
FEW = 3  # repeats that multiply to nothing that matters


def characters(items: Iterable[Any]) -> frozenset[int]:
    """What any of the items may take, as codes."""
    found: frozenset[int] = frozenset()
    for op, value in items:
        if op is kind.LITERAL:
            found |= {value}
        elif op is kind.NOT_LITERAL:
            found |= _ALL - {value}
        elif op is kind.ANY:
            found |= _ALL - {10}
        elif op is kind.IN:
            taken = characters(item for item in value if item[0] is not kind.NEGATE)
            found |= _ALL - taken if value[0][0] is kind.NEGATE else taken
        elif op is kind.RANGE:
            found |= frozenset(range(value[0], value[1] + 1))
        elif op is kind.CATEGORY:
            name = str(value)
            known = next(taken for word, taken in _CLASSES.items() if word in name)
            found |= _ALL - known if "NOT_" in name else known
        elif op in _REPEATS:
            found |= characters(value[2])
        elif op is kind.SUBPATTERN:
            found |= characters(value[-1])
        elif op is kind.BRANCH:
            for branch in value[1]:
                found |= characters(branch)
    return found


def many_ways(body: Iterable[Any]) -> bool:
    """Whether two repeats in it, and all between them, share a character: which of them takes it is open."""
    items = [item for item in body if item[0] not in (kind.AT, kind.ASSERT, kind.ASSERT_NOT)]
    varying = [i for i, (op, value) in enumerate(items) if op in _REPEATS and value[0] != value[1] and value[1] > FEW]
    for one, other in itertools.pairwise(varying):
        shared = characters([items[one]])
        for op, value in items[one + 1 : other + 1]:
            if op not in _REPEATS or value[0] > 0 or (op, value) == items[other]:  # what may be empty separates nothing
                shared &= characters([(op, value)])
        if shared:
            return True
    return any(many_ways(value[-1]) for op, value in items if op is kind.SUBPATTERN) or any(
        many_ways(branch) for op, value in items if op is kind.BRANCH for branch in value[1]
    )


def repeated(items: Iterable[Any]) -> Iterator[Any]:
    """What the expression's groups repeat more than a few times."""
    for op, value in items:
        if op in _REPEATS:
            if value[1] > FEW:
                yield value[2]
            yield from repeated(value[2])
        elif op is kind.BRANCH:
            for branch in value[1]:
                yield from repeated(branch)
        elif op is kind.SUBPATTERN:
            yield from repeated(value[-1])
        elif op in (kind.ASSERT, kind.ASSERT_NOT):
            yield from repeated(value[1])


def multiplies(expression: re.Pattern[Any]) -> bool:
    flags = expression.flags & ~re.UNICODE if isinstance(expression.pattern, bytes) else expression.flags
    return any(map(many_ways, repeated(parser.parse(expression.pattern, flags))))


def compiled() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every expression that a module of the package keeps, alone or in a table."""
    for found in pkgutil.walk_packages(sentinel.__path__, "sentinel."):
        if found.name.endswith("__main__") or ".versions." in found.name:
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:
            continue  # of an extra that is not installed
        for name, value in vars(module).items():
            for one in value if isinstance(value, (tuple, list)) else [value]:
                for part in one if isinstance(one, tuple) else [one]:
                    if isinstance(part, re.Pattern):
                        yield f"{found.name}.{name}", part


def test_no_expression_multiplies_the_ways_of_its_lines() -> None:
    expressions = list(compiled())
    assert len(expressions) > 400
    assert [name for name, expression in expressions if multiplies(expression)] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (rb"(?:[^\n]{0,100}?[ \t]{4,}[^\n]{0,400}\n){0,16}$", True),
        (rb"(?:a{1,9}b?a{1,9},){1,20}$", True),
        (rb"(?:a{1,9}ba{1,9},){1,20}$", False),
        (rb"(?:[a-z]+[a-m]*,){1,20}", True),
        (rb"(?:(?=[^\n]{0,100}?[ \t]{4})[^\n]{1,504}\n){0,16}$", False),
        (rb"(?:[a-z]+=[0-9]+,){1,20}", False),
    ],
)
def test_what_multiplies(pattern: bytes, expected: bool) -> None:
    assert multiplies(re.compile(pattern)) is expected


def test_sixteen_lines_of_source_are_read_at_once() -> None:
    head = b'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "/a/b.py", line 3, in f\n'
    shown = head + b"            wide(x,    y,    z,    w,    v)\n" * 15
    assert is_ignored(b"FileNotFoundError: x", shown)
    assert not is_ignored(b"FileNotFoundError: x", shown + b"z\n")
