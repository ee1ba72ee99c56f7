"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol


class Screen(Protocol):
    name: str

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Pairs (index of the pattern, offset where a match ends) in a block of whole lines."""
        ...


class PlainScreen:
    """Literal words first, then the pattern on the lines that hold one. Linear for a given set of patterns."""

    name = "python"

    def __init__(self, patterns: Sequence[str]) -> None:
        self._entries: list[tuple[int, tuple[bytes, ...], bool, re.Pattern[bytes]]] = []
        for index, pattern in enumerate(patterns):
            words, fold = literals(pattern)
            self._entries.append((index, words, fold, re.compile(pattern.encode("ascii"))))

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        hits: list[tuple[int, int]] = []
        lower: bytes | None = None
        for index, words, fold, pattern in self._entries:
            if not words:
                hits.extend((index, end) for end in _every_line(block, pattern))
                continue
            if fold and lower is None:
                lower = block.lower()
            text = lower if fold and lower is not None else block
            done = -1  # lines up to this offset were looked at for this pattern
            for at in _places(text, words):
                if at < done:
                    continue
                start = block.rfind(b"\n", 0, at) + 1
                end = block.find(b"\n", at)
                end = len(block) if end < 0 else end
                done = end
                if pattern.search(block[start:end]):
                    hits.append((index, end))
        hits.sort(key=lambda hit: hit[1])
        return hits


def _every_line(block: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    ends, start = [], 0
    while start < len(block):
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        if pattern.search(block[start:end]):
            ends.append(end)
        start = end + 1
    return ends


def _places(text: bytes, words: tuple[bytes, ...]) -> list[int]:
    places: list[int] = []
    for word in words:
        at = text.find(word)
        while at >= 0:
            places.append(at)
            at = text.find(word, at + len(word))
    places.sort()
    return places


def literals(pattern: str) -> tuple[tuple[bytes, ...], bool]:
    """Words of which every match holds at least one, and whether they are folded to lower case.

    Empty when a branch of the pattern has no literal of three characters.
    """
    fold = "(?i" in pattern
    body = pattern.removeprefix("(?i)")
    words = []
    for branch in _branches(body):
        word = _longest(branch)
        if len(word) < 3:
            return (), fold
        words.append((word.lower() if fold else word).encode("ascii"))
    return tuple(words), fold


def _branches(pattern: str) -> list[str]:
    """The pattern split at its top-level alternation; a group around the whole of it is opened."""
    depth, start, parts, i = 0, 0, [], 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            i += 2
            continue
        if char == "[":
            i = _class_end(pattern, i)
            continue
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append(pattern[start:i])
            start = i + 1
        i += 1
    return [*parts, pattern[start:]]


def _class_end(pattern: str, at: int) -> int:
    i = at + 1 + (pattern[at + 1 : at + 2] == "^")
    i += pattern[i : i + 1] == "]"
    while i < len(pattern) and pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1


def _longest(branch: str) -> str:
    """Longest run of plain characters outside groups and classes that no quantifier makes optional."""
    best = run = ""
    depth = i = 0
    while i < len(branch):
        char = branch[i]
        plain = ""
        step = 1
        if char == "\\":
            step = 2
            following = branch[i + 1 : i + 2]
            plain = following if following and not following.isalnum() else ""
        elif char == "[":
            step = _class_end(branch, i) - i
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char not in ".^$|*+?{}":
            plain = char
        elif char == "{":
            step = branch.index("}", i) - i + 1
        if plain and depth == 0:
            run += plain
        else:
            if char in "*?{":  # the character before may be absent
                run = run[:-1]
            best = max(best, run, key=len)
            run = ""
        i += step
    return max(best, run, key=len)
