"""No expression of the package can take exponential time: what a group repeats can be read in one way only."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import sentinel
from sentinel.evidence.logs.frames import is_ignored
from sentinel.evidence.logs.screen.many_ways import MOST_SHARES, multiplies, shares_out

# Nothing follows what is repeated, so that nothing is tried again.
ENDS = {"sentinel.alerts.text._RANK", "sentinel.cli.help_text._QUOTED"}
FEW = 15  # times a bounded name of a process is read character by character


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
    assert {name for name, expression in expressions if multiplies(expression, FEW)} == ENDS


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (rb"(?:[^\n]{0,100}?[ \t]{4,}[^\n]{0,400}\n){0,16}$", True),
        (rb"(?:a{1,9}b?a{1,9},){1,20}$", True),
        (rb"(?:a{1,9}ba{1,9},){1,20}$", False),
        (rb"(?:[a-z]+[a-m]*,){1,20}", True),
        (rb"(?:(?=[^\n]{0,100}?[ \t]{4})[^\n]{1,504}\n){0,16}$", False),
        (rb"(?:[a-z]+=[0-9]+,){1,20}", False),
        (rb"path (?:[\w/]|\w\w)+ here", True),
        (rb"(?:a|aa)+b", True),
        (rb"(?:a+)+b", True),
        (rb"(?:a*)*b", True),
        (rb"(?:a+b?)+c", True),
        (rb"(?:a?a)+b", True),
        (rb"(?:a?){30}a", True),
        (rb"(?:(a+)(a+),)+", True),
        (rb"(?i)(?:ab|AB)+c", True),
        (rb"(?:-\w{1,16} ?[\w=]{0,16} ){0,6}\./", True),
        (rb"(?:-\w{1,32}(?: [\w=]{0,16}|=[\w=]{0,15})? ){0,6}\./", False),
        (rb"(?:(?:(?:a|aa){4}){4}){4}b", True),
        (rb"(?:(?:a|aa){0,4}c?){0,4}b", True),
        (rb"(?:(?:(?:a?){4}){4}){4}b", True),
        (rb"(?:ab|[ac]b){30}c", True),
        (rb"(?:(?:[0-9a-f]{2}:){6} ){3}x", False),
        (rb"(?:(?:\d{1,3}\.){3}\d{1,3},){1,4}x", False),
        (rb"(?:(?:){4}){4}b", False),
        (rb"(?:ab|ac)+d", False),
        (rb"(?:[a-z]x|[a-m]y)+z", False),
        (rb"(?:\w+ )+x", False),
        (rb"(?:[0-9a-f]{4}[0-9a-f]{4}:)+", False),
        (rb"(?:a|aa){0,4}b", False),
        (rb"\)+\w+\w+x", False),
    ],
)
def test_what_multiplies(pattern: bytes, expected: bool) -> None:
    assert multiplies(re.compile(pattern)) is expected


def test_sixteen_lines_of_source_are_read_at_once() -> None:
    head = b'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "/a/b.py", line 3, in f\n'
    shown = head + b"            wide(x,    y,    z,    w,    v)\n" * 15
    assert is_ignored(b"FileNotFoundError: x", shown)
    assert not is_ignored(b"FileNotFoundError: x", shown + b"z\n")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (rb"\w+\s?\w+\s?\w+\s?\w+\s?: lost", 10**12),
        (rb"[^\n]{0,200}[^\n]{0,200}[^\n]{0,200} lost", 200**3),
        (rb"(?:\w{1,64}\s{0,4}){1,4}boiler", 64**4),
        (rb"(?i)a{1,20}A{1,30}B", 600),
        (rb"(?:a{1,20}|b{1,90})a{1,30}[^a]", 600),
        (rb"(?:\w\w){1,30}\w{1,20}:", 600),
        (rb"\w{1,60}: \w{1,60} \w{1,60}: lost", 60),
        (rb"a+b+c", 1000),
        (rb"\w+ ?\w+ ?\w+", 1),
        (rb"(?:\w+ ?\w+ ?\w+: lost|\w+)", 10**9),
        (rb"\w+ ?\w+ ?\w+$", 10**9),
        (rb"\w+ ?\w+ ?\w+\b", 10**9),
        (rb"the boiler \d{3} [0-9a-f]{4} is cold", 1),
        # A run that a fixed text is before has one beginning.
        (rb"boiler:\s+\d*\s*[.]?\s+cold", 1000**2),
        (rb"\|\s*\d*\s*%?\s*\|", 1000**2),
        (rb"(?:boiler|(?:kett|tab)le\d{3}) +\w* +\d* +[.]", 1000**2),
        (rb"boilers?=\w+ ?\w+ ?\w+ ?\w+: lost", 1000**3),
        (rb" \s+.{0,80}\s+cold", 80 * 1000**2),
        (rb"boiler .{0,200} .{0,200} .{0,200} cold", 200**3),
        (rb"ab.{0,200}.{0,200}.{0,200}x", 200**3),
        (rb"\s+.{0,80}\s+cold", 80 * 1000**2),
        (rb"(?:boiler)?\s+.{0,80}\s+cold", 80 * 1000**2),
        (rb"(?:boiler|\w+:)\s+.{0,80}\s+cold", 80 * 1000**2),
        (rb"\w+:\s+.{0,80}\s+cold", 80 * 1000**2),
        (rb"(?:boiler\s+.{0,80}\s+){1,9}cold", 9 * 80 * 1000**2),
        (rb"ab[ab]+ ?[ab]+ ?[ab]+x", 1000**3),
        (rb"b:[ab]+ ?[ab]+ ?[ab:]+x", 1000**3),
        (rb"x(?=y)\s+[ab]?\s+[cd]?\s+cold", 1000**2),
        (rb"x(?=\s+.{0,80}\s+cold)", 80 * 1000**2),
    ],
)
def test_in_how_many_ways_repeats_in_a_row_share_a_run_out(pattern: bytes, expected: int) -> None:
    assert shares_out(re.compile(pattern)) == expected


def test_what_two_repeats_share_out_is_still_taken() -> None:
    assert shares_out(re.compile(rb"\w+ ?\w+: [^\n]{0,200} lost")) == MOST_SHARES
