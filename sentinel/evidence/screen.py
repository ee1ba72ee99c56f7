"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from sentinel.evidence.literals import literals


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
