"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from sentinel.evidence.logs.literals import needs

LONGEST_TOKEN = 96  # bytes of a token that is remembered; longer ones hardly come again
MOST_TOKENS = 65_536  # that are remembered; then they are forgotten all at once
MOST_BYTES = 2 << 20  # of the tokens that are remembered

Needs = tuple[tuple[bytes, ...], ...]  # groups of words, of each of which a match holds one


class Screen(Protocol):
    name: str

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Pairs (index of the pattern, offset where a match ends) in a block of whole lines."""
        ...

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        """Whether one pattern matches anywhere in a block, as a function of the block."""
        ...


class PlainScreen:
    """Finds the words that patterns need, then tries these patterns on the lines that hold one.

    A line is read token by token (what stands between blanks): lines may all differ, their tokens hardly do. What a token
    holds is looked up once and remembered; only new tokens are searched for words, all of a block's at once. Linear for a
    given set of patterns. Words are looked for in lower case, so a pattern may be tried in vain.
    """

    name = "python"

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [pattern.encode("ascii") for pattern in patterns]
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        self._always: list[int] = []  # a match need not hold any word
        needing: dict[bytes, list[tuple[int, Needs]]] = {}
        for index, pattern in enumerate(patterns):
            ways = needs(pattern)
            for first, *others in ways:
                for word in first:
                    needing.setdefault(word, []).append((index, tuple(others)))
            if not ways:
                self._always.append(index)
        # A word with blanks stands in several tokens: its longest part tells that it may be there.
        self._words: dict[bytes, list[tuple[bytes, list[tuple[int, Needs]]]]] = {}
        for word, wanting in needing.items():
            part = max(word.split(), key=len, default=b"")
            self._words.setdefault(part, []).append((word, wanting))
        self._part = re.compile(_one_of(sorted(self._words)))
        self._plain: set[bytes] = set()  # tokens that hold no part of a word
        self._telling: dict[bytes, tuple[bytes, ...]] = {}  # those that do, with their parts
        self._bytes = 0

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        hits: list[tuple[int, int]] = []
        lower = block.lower()
        telling = self._telling_tokens(set(lower.split()))
        if telling:
            start = 0
            for line in lower.split(b"\n"):
                tokens = line.split()
                if not telling.keys().isdisjoint(tokens):
                    hits.extend(self._on_line(block, start, line, telling.keys() & tokens, telling))
                start += len(line) + 1
        for index in self._always:
            hits.extend(_on_every_line(block, self._pattern(index), index))
        hits.sort(key=lambda hit: (hit[1], hit[0]))
        return hits

    def _telling_tokens(self, tokens: set[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Those of the tokens that hold parts of words, with the parts."""
        fresh = tokens - self._plain - self._telling.keys()
        found: dict[bytes, tuple[bytes, ...]] = {}
        if fresh:
            order = list(fresh)
            self._search(order, found)
            self._remember(order, found)
        for token in tokens & self._telling.keys():
            found[token] = self._telling[token]
        return found

    def _search(self, order: Sequence[bytes], found: dict[bytes, tuple[bytes, ...]]) -> None:
        """Every part that stands in each of the tokens, also where parts overlap."""
        joined = b"\n".join(order)
        ends = list(accumulate(len(token) + 1 for token in order))
        parts: dict[int, set[bytes]] = {}
        search, at = self._part.search, 0
        while (match := search(joined, at)) is not None:
            longest, at = match[0], match.start() + 1
            held = parts.setdefault(bisect_left(ends, at), set())
            # Of the parts that begin at one place only the longest is found; the shorter ones stand there too.
            held.update(longest[:n] for n in range(1, len(longest) + 1) if longest[:n] in self._words)
        found.update((order[number], tuple(held)) for number, held in parts.items())

    def _remember(self, fresh: Sequence[bytes], found: Mapping[bytes, tuple[bytes, ...]]) -> None:
        short = [token for token in fresh if len(token) <= LONGEST_TOKEN]
        size = sum(map(len, short))
        self._bytes += size
        if self._bytes > MOST_BYTES or len(self._plain) + len(self._telling) + len(short) > MOST_TOKENS:
            self._plain, self._telling, self._bytes = set(), {}, size
        self._plain.update(token for token in short if token not in found)
        self._telling.update((token, found[token]) for token in short if token in found)

    def _on_line(
        self, block: bytes, start: int, lower: bytes, tokens: set[bytes], telling: Mapping[bytes, tuple[bytes, ...]]
    ) -> Iterable[tuple[int, int]]:
        tried: set[int] = set()
        for part in {part for token in tokens for part in telling[token]}:
            for word, wanting in self._words[part]:
                if word in lower:
                    tried.update(index for index, others in wanting if index not in tried and _holds(lower, others))
        line = block[start : start + len(lower)]
        matches = ((index, self._pattern(index).search(line)) for index in tried)
        return [(index, start + match.end()) for index, match in matches if match]

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        compiled = re.compile(pattern.encode("ascii"), re.MULTILINE)
        return lambda block: compiled.search(block) is not None

    def _pattern(self, index: int) -> re.Pattern[bytes]:
        if index not in self._compiled:
            self._compiled[index] = re.compile(self._patterns[index])
        return self._compiled[index]


def _holds(line: bytes, groups: Needs) -> bool:
    """Whether the line holds a word of each of the groups."""
    for words in groups:
        for word in words:
            if word in line:
                break
        else:
            return False
    return True


def _on_every_line(block: bytes, pattern: re.Pattern[bytes], index: int) -> list[tuple[int, int]]:
    search = pattern.search
    lines = block.split(b"\n")
    ends = accumulate(len(line) + 1 for line in lines)
    return [
        (index, end - 1 - len(line) + match.end())
        for line, end in zip(lines, ends, strict=True)
        if (match := search(line)) is not None
    ]


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
