"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate
from typing import Protocol

from sentinel.evidence.logs.literals import ORDINARY, SHORTEST, Way, ways_of

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
        self._wordless: list[tuple[int, _WordlessWay]] = []  # ways to match without a word
        needing: dict[bytes, list[tuple[int, Needs]]] = {}
        for index, pattern in enumerate(patterns):
            for way in ways_of(pattern):
                if not way.groups:
                    self._wordless.append((index, _WordlessWay(way)))
                    continue
                first, *others = way.groups
                for word in first:
                    needing.setdefault(word, []).append((index, tuple(others)))
        # A word with blanks stands in several tokens: its most telling part tells that it may be there.
        self._words: dict[bytes, list[tuple[bytes, list[tuple[int, Needs]]]]] = {}
        for word, wanting in needing.items():
            self._words.setdefault(max(word.split(), key=_telling, default=b""), []).append((word, wanting))
        self._part = re.compile(_one_of(sorted(self._words)))
        self._plain: set[bytes] = set()  # tokens that hold no part of a word
        self._telling: dict[bytes, tuple[bytes, ...]] = {}  # those that do, with their parts
        self._bytes = 0

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        hits: set[tuple[int, int]] = set()  # two ways of one pattern may find the same
        lower = block.lower()
        telling = self._telling_tokens(set(lower.split()))
        if telling:
            some, start = frozenset(telling), 0
            for line in lower.split(b"\n"):
                tokens = line.split()
                if not some.isdisjoint(tokens):
                    hits.update(self._on_line(block, start, line, some.intersection(tokens), telling))
                start += len(line) + 1
        for index, way in self._wordless:
            hits.update((index, end) for end in way.ends(block, lower))
        return sorted(hits, key=lambda hit: (hit[1], hit[0]))

    def _telling_tokens(self, tokens: set[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Those of the tokens that hold parts of words, with the parts."""
        found = {token: self._telling[token] for token in self._telling.keys() & tokens}
        fresh = tokens - self._plain
        fresh.difference_update(found)
        if fresh:
            new = self._search(list(fresh))
            self._remember(fresh, new)
            found.update(new)
        return found

    def _search(self, order: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Those of the tokens in which parts stand, with every part, also where parts overlap."""
        joined = b"\n".join(order)
        ends = list(accumulate(map((1).__add__, map(len, order))))
        parts: dict[int, set[bytes]] = {}
        search, at = self._part.search, 0
        while (match := search(joined, at)) is not None:
            longest, at = match[0], match.start() + 1
            held = parts.setdefault(bisect_left(ends, at), set())
            # Of the parts that begin at one place only the longest is found; the shorter ones stand there too.
            held.update(longest[:n] for n in range(1, len(longest) + 1) if longest[:n] in self._words)
        return {order[number]: tuple(held) for number, held in parts.items()}

    def _remember(self, fresh: set[bytes], found: Mapping[bytes, tuple[bytes, ...]]) -> None:
        if max(map(len, fresh)) > LONGEST_TOKEN:
            fresh = {token for token in fresh if len(token) <= LONGEST_TOKEN}
        size = sum(map(len, fresh))
        self._bytes += size
        if self._bytes > MOST_BYTES or len(self._plain) + len(self._telling) + len(fresh) > MOST_TOKENS:
            self._plain, self._telling, self._bytes = set(), {}, size
        self._plain |= fresh.difference(found)
        self._telling.update((token, parts) for token, parts in found.items() if token in fresh)

    def _on_line(
        self, block: bytes, start: int, lower: bytes, tokens: Set[bytes], telling: Mapping[bytes, tuple[bytes, ...]]
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


class _WordlessWay:
    """One way of a pattern to match a line that need not hold a word: found by where a line begins, or by a mark."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._on_line = re.compile(way.pattern.encode("ascii"))
        self._head: re.Pattern[bytes] | None = None
        if way.first:
            flag = "(?i)" if way.pattern.startswith("(?i)") else ""
            self._head = re.compile((flag + "\n" + way.pattern[len(flag) + 1 :]).encode("ascii"))

    def ends(self, block: bytes, lower: bytes) -> Iterator[int]:
        """Where its first match of each line ends."""
        at = 0
        while (start := self._next_line(block, lower, at)) is not None:
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            if (match := self._on_line.search(block[start:end])) is not None:
                yield start + match.end()
            at = end + 1

    def _next_line(self, block: bytes, lower: bytes, at: int) -> int | None:
        """Where the next line that may match begins, from the line that begins at ``at`` on."""
        if at > len(block):
            return None
        if self._head is not None:
            # With the line end before it, so that only beginnings of lines are looked at.
            if at == 0 and self._on_line.match(block) is not None:
                return 0
            found = self._head.search(block, max(at - 1, 0))
            return found.start() + 1 if found is not None else None
        mark = lower.find(self._way.mark, at)
        return lower.rfind(b"\n", 0, mark) + 1 if mark >= 0 else None


def _telling(word: bytes) -> tuple[bool, bool, int]:
    """How seldom a part of a word may be expected to stand in a line."""
    return len(word) >= SHORTEST, word.decode("ascii") not in ORDINARY, len(word)


def _holds(line: bytes, groups: Needs) -> bool:
    """Whether the line holds a word of each of the groups."""
    for words in groups:
        for word in words:
            if word in line:
                break
        else:
            return False
    return True


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
