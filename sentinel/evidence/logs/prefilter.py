"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sentinel.evidence.logs.literals import literals


class Screen(Protocol):
    name: str

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Pairs (index of the pattern, offset where a match ends) in a block of whole lines."""
        ...

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        """Whether one pattern matches anywhere in a block, as a function of the block."""
        ...


class PlainScreen:
    """Finds the words that patterns need, all at once, then tries these patterns on the lines that hold one.

    Linear for a given set of patterns. Words are looked for in lower case, so a pattern may be tried in vain.
    """

    name = "python"

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [pattern.encode("ascii") for pattern in patterns]
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        self._always: list[int] = []  # a match need not hold any word
        needing: dict[bytes, set[int]] = {}
        for index, pattern in enumerate(patterns):
            words, _ = literals(pattern)
            for word in words:
                needing.setdefault(word.lower(), set()).add(index)
            if not words:
                self._always.append(index)
        # Of the words that begin at one place only the longest is found; the shorter ones at its beginning stand there too.
        self._needing = {
            word: frozenset().union(*(needing[word[:n]] for n in range(1, len(word) + 1) if word[:n] in needing))
            for word in needing
        }
        tree = _one_of(sorted(needing))
        self._any = re.compile(tree)
        self._each = re.compile(b"(?=(" + tree + b"))")

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        hits: list[tuple[int, int]] = []
        lower = block.lower()
        end = -1
        while (found := self._any.search(lower, end + 1)) is not None:
            start, end = _line_at(block, found.start())
            tried = set().union(*(self._needing[word] for word in set(self._each.findall(lower, start, end))))
            line = block[start:end]
            matches = ((index, self._pattern(index).search(line)) for index in tried)
            hits.extend((index, start + match.end()) for index, match in matches if match)
        if self._always:
            hits.extend(self._on_every_line(block))
        hits.sort(key=lambda hit: (hit[1], hit[0]))
        return hits

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        compiled = re.compile(pattern.encode("ascii"), re.MULTILINE)
        return lambda block: compiled.search(block) is not None

    def _pattern(self, index: int) -> re.Pattern[bytes]:
        if index not in self._compiled:
            self._compiled[index] = re.compile(self._patterns[index])
        return self._compiled[index]

    def _on_every_line(self, block: bytes) -> Iterable[tuple[int, int]]:
        end = -1
        while end < len(block):
            start, end = end + 1, block.find(b"\n", end + 1)
            end = len(block) if end < 0 else end
            line = block[start:end]
            matches = ((index, self._pattern(index).search(line)) for index in self._always)
            yield from ((index, start + match.end()) for index, match in matches if match)


def _line_at(block: bytes, at: int) -> tuple[int, int]:
    end = block.find(b"\n", at)
    return block.rfind(b"\n", 0, at) + 1, len(block) if end < 0 else end


def _one_of(words: Sequence[bytes]) -> bytes:
    """An expression that matches the longest of the words that begins at a place; sorted words, which share beginnings."""
    if not words:
        return b"(?!)"
    by_first: dict[bytes, list[bytes]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    branches = []
    for first, rests in by_first.items():
        longer = [rest for rest in rests if rest]
        more = _one_of(longer) if longer else b""
        branches.append(re.escape(first) + (b"(?:" + more + b")?" if longer and b"" in rests else more))
    return b"(?:" + b"|".join(branches) + b")" if len(branches) > 1 else branches[0]
