"""Which rules hit which lines of a block: the port, and the screen without any library.

A screen answers (rule index, end offset) pairs that hold at least every real match; the reader confirms each with
Python's ``re`` on that line, so every screen gives the same evidence and only their speed differs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from sentinel.evidence.logs.screen.literals import ORDINARY, SHORTEST, Way, ways_of

LONGEST_RUN = 96  # letters of a run that is remembered; longer ones hardly come again
MOST_RUNS = 65_536  # that are remembered; then they are forgotten all at once
MOST_BYTES = 2 << 20  # of the runs that are remembered
# Lines of a block that hold a part, from which the whole block is asked which patterns of it can match at all
MANY = 32
FEW = 64  # places of a block that are looked at instead of every line that holds a part
_RUN = re.compile(rb"[a-z]+")
# Bytes as they are read for runs of letters: in lower case, with all else but line ends as blanks.
_LETTERS = bytes(
    ord(c.lower()) if (c := chr(b)).isascii() and c.isalpha() else b if b == 10 else 32 for b in range(256)
)

Needs = tuple[tuple[bytes, ...], ...]  # groups of words, of each of which a match holds one
Wanted = list[tuple[bytes, list[tuple[int, Needs]]]]  # a word, the patterns that need it, and what else they need


class Screen(Protocol):
    name: str

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Pairs (index of the pattern, offset where a match ends, or a word that it needs) in a block of whole lines."""
        ...

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        """Whether one pattern matches anywhere in a block, as a function of the block."""
        ...


class PlainScreen:
    """Finds the words that patterns need, then tries these patterns on the lines that hold one.

    A line is read by its runs of letters: lines may all differ, their runs hardly do. What a run holds is looked up once and
    remembered; only new runs are searched for the words' most telling parts, all of a block's at once. A part of many lines
    ("sample") is asked once for the block whether the rest of what its patterns need stands there. Linear for a given set of
    patterns. Words are looked for in lower case, so a pattern may be tried in vain.
    """

    name = "python"

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [pattern.encode("ascii") for pattern in patterns]
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        self._wordless: list[tuple[int, _WordlessWay]] = []  # ways to match without a word
        needing: dict[bytes, list[tuple[int, Needs]]] = {}
        for index, pattern in enumerate(patterns):
            for way in ways_of(pattern):
                first = next((group for group in way.groups if all(map(_part_of, group))), None)
                if first is None:
                    self._wordless.append((index, _WordlessWay(way)))
                    continue
                for word in first:
                    needing.setdefault(word, []).append((index, tuple(g for g in way.groups if g is not first)))
        self._words: dict[bytes, Wanted] = {}  # by a part of them
        for word, wanting in needing.items():
            self._words.setdefault(_part_of(word), []).append((word, wanting))
        self._part = re.compile(_one_of(sorted(self._words)))
        self._plain: set[bytes] = set()  # runs that hold no part of a word
        self._telling: dict[bytes, tuple[bytes, ...]] = {}  # those that do, with their parts
        self._bytes = 0

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        lower, runs = block.lower(), block.translate(_LETTERS)
        telling = self._telling_runs(set(runs.split()))
        hits = set(self._on_lines(block, lower, runs, telling))  # two ways of one pattern may find the same
        for index, way in self._wordless:
            hits.update((index, end) for end in way.ends(block, lower))
        return sorted(hits, key=lambda hit: (hit[1], hit[0]))

    def _telling_runs(self, runs: set[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Those of the runs that hold parts of words, with the parts."""
        found = {run: self._telling[run] for run in self._telling.keys() & runs}
        fresh = runs - self._plain
        fresh.difference_update(found)
        if fresh:
            new = self._search(list(fresh))
            self._remember(fresh, new)
            found.update(new)
        return found

    def _search(self, order: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Those of the runs in which parts stand, with every part, also where parts overlap."""
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
        if max(map(len, fresh)) > LONGEST_RUN:
            fresh = {run for run in fresh if len(run) <= LONGEST_RUN}
        size = sum(map(len, fresh))
        self._bytes += size
        if self._bytes > MOST_BYTES or len(self._plain) + len(self._telling) + len(fresh) > MOST_RUNS:
            self._plain, self._telling, self._bytes = set(), {}, size
        self._plain |= fresh.difference(found)
        self._telling.update((run, parts) for run, parts in found.items() if run in fresh)

    def _on_lines(
        self, block: bytes, lower: bytes, runs: bytes, telling: dict[bytes, tuple[bytes, ...]]
    ) -> Iterator[tuple[int, int]]:
        """Matches on the lines that hold telling runs; of ``telling``, parts are taken out once nothing is left to try."""
        wanted: dict[bytes, Wanted] = {}  # of parts that many lines hold, what is still tried on each
        lines_of: dict[bytes, int] = {}
        start = 0
        for line in runs.split(b"\n") if telling else ():
            held = line.split()
            if not telling.keys().isdisjoint(held):
                parts = {part for run in held if run in telling for part in telling[run]}
                text = lower[start : start + len(line)]
                tried = {index for part in parts for index in _wanting(wanted.get(part, self._words[part]), text)}
                yield from self._tried(tried, block, start, start + len(line))
                for part in parts:
                    lines_of[part] = lines_of.get(part, 0) + 1
                    if lines_of[part] == MANY:
                        wanted[part], seldom = _parted(self._words[part], lower)
                        for index, first, last in seldom:
                            yield from self._tried((index,), block, first, last)
                        if not wanted[part]:
                            _take_out(part, telling)
            start += len(line) + 1

    def _tried(self, patterns: Iterable[int], block: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        for index in patterns:
            if match := self._pattern(index).search(block[start:end]):
                yield index, start + match.end()

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


def _part_of(word: bytes) -> bytes:
    """The run of letters in a word that tells most; empty where none is long enough."""
    part = max(_RUN.findall(word), key=_telling, default=b"")
    return part if len(part) >= SHORTEST else b""


def _telling(part: bytes) -> tuple[bool, bool, int]:
    """How seldom a part of a word may be expected to stand in a line."""
    return len(part) >= SHORTEST, part.decode("ascii") not in ORDINARY, len(part)


def _wanting(words: Wanted, line: bytes) -> Iterator[int]:
    """The patterns of which the line holds all that they need."""
    for word, wanting in words:
        if word in line:
            for index, others in wanting:
                if holds(line, others):
                    yield index


def _take_out(part: bytes, telling: dict[bytes, tuple[bytes, ...]]) -> None:
    """Runs of which no other part tells anything tell nothing any more."""
    for run in [run for run, parts in telling.items() if part in parts]:
        telling[run] = tuple(other for other in telling[run] if other != part)
        if not telling[run]:
            del telling[run]


def _parted(words: Wanted, block: bytes) -> tuple[Wanted, list[tuple[int, int, int]]]:
    """What of the words is to be tried on every line that holds one, and the few lines on which the rest can match.

    A pattern is among the rest where something else that it needs stands at few places of the block, or at none: pattern,
    and where the line begins and ends.
    """
    common: Wanted = []
    seldom: list[tuple[int, int, int]] = []
    for word, wanting in words:
        if word not in block:
            continue
        left = []
        for index, others in wanting:
            places = next((found for group in others if (found := _few_places(group, block)) is not None), None)
            if places is None:
                left.append((index, others))
                continue
            for at in places:
                start, end = line_at(block, at)
                line = block[start:end]
                if word in line and holds(line, others):
                    seldom.append((index, start, end))
        if left:
            common.append((word, left))
    return common, seldom


def _few_places(words: Sequence[bytes], block: bytes) -> list[int] | None:
    """Where the words stand in the block; None where they stand in more than a few places."""
    if sum(map(block.count, words)) > FEW:
        return None
    return [at.start() for word in words for at in re.finditer(re.escape(word), block)]


def line_at(block: bytes, at: int) -> tuple[int, int]:
    """Where the line around ``at`` begins and ends."""
    end = block.find(b"\n", at)
    return block.rfind(b"\n", 0, at) + 1, end if end >= 0 else len(block)


def holds(line: bytes, groups: Needs) -> bool:
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
