"""Patterns and lines with every digit read as 0, so that lines that differ in their numbers alone are looked at once.

A folded pattern matches every folded line whose real line the real pattern matches. It may match more: where the pattern
asks for certain digits it is ``sensitive``, and only the real line decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from sentinel.evidence.logs.screen.literals import item_at

FOLD = bytes.maketrans(b"123456789", b"000000000")
_DIGITS = "0123456789"
# A run of what folding leaves as it is.
_PLAIN = re.compile(r"[^(\[{\\0-9]+|(?:\\[a-wyzA-Z.^$*+?()\[\]{}|/-])+")
_GROUP_NAME = re.compile(r"\(\?(?:P<\w+>|i?:|i\))")


@cache
def _asked(item: str) -> str:
    """The digits that an element matches."""
    return "".join(digit for digit in _DIGITS if re.match(item, digit))


@dataclass(frozen=True, slots=True)
class Folded:
    pattern: str
    sensitive: bool  # it asks for certain digits


def fold_digits(pattern: str) -> Folded:
    """The pattern for folded lines, in the part of regular expressions that rules may use (rules/README.md)."""
    parts: list[str] = []
    sensitive = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if run := _PLAIN.match(pattern, at):
            item = run[0]
            parts.append(item)
        elif char == "(":
            mark = _GROUP_NAME.match(pattern, at)
            item = mark[0] if mark else char
            parts.append(item)
        elif char == "{" and (end := pattern.find("}", at)) > 0:
            item = pattern[at : end + 1]
            parts.append(item)
        elif char == "[" or char in _DIGITS or pattern.startswith("\\x", at):
            item = pattern[at : at + 4] if char == "\\" else item_at(pattern, at)
            asked = _asked(item)
            sensitive = sensitive or 0 < len(asked) < len(_DIGITS)
            parts.append(item if "0" in asked or not asked else f"(?:0|{item})" if char == "[" else "0")
        else:
            item = pattern[at : at + 2] if char == "\\" else char
            parts.append(item)
        at += len(item)
    return Folded("".join(parts), sensitive)
