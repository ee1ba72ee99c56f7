"""Looks at each form of line once: most lines of a log differ from lines before them in their numbers alone.

A line with every digit read as 0 is its template. A template that no rule knows is skipped from then on at the price of a
look-up, and so are the step lines that nobody asks for. A screen reads all new templates of a block at once. Where a rule
asks for certain digits its template is only a candidate: the reader confirms each hit on the real line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate, compress
from typing import NamedTuple

from sentinel.evidence.logs.screen.digit_folding import FOLD, fold_digits
from sentinel.evidence.logs.screen.prefilter import Screen

LONGEST = 1024  # bytes of a line whose template is kept; longer ones hardly come again
MOST = 16_384  # templates that are kept; of a log without repetition the oldest are forgotten all at once
MOST_BYTES = 4 << 20  # of the templates that are kept
TRIED = 64  # places of a longer line at which one pattern is tried
WINDOW = 2048  # bytes around a hit that are looked at; in a longer line, hits nearer to each other are one place
MANY = 64  # lines of a block that repeat a template, from which it is asked whether a pattern matches anywhere in it

Hits = tuple[tuple[int, int], ...]  # (index of a pattern, offset in the line where its first match ends)
Choose = Callable[[Iterator[int]], Iterable[int]]


class Pattern:
    """A rule's pattern as written, and as it reads templates; each is compiled when it is first needed."""

    def __init__(self, text: str) -> None:
        self.text = text
        folded = fold_digits(text)
        self.folded, self.sensitive = folded.pattern, folded.sensitive

    @cached_property
    def in_template(self) -> re.Pattern[bytes]:
        return re.compile(self.folded.encode("ascii"))


class HitLine(NamedTuple):
    """A line that patterns may know: its number in the block, counted from 0, and where it lies."""

    number: int
    start: int
    end: int
    hits: Hits


class LineTemplates:
    """Finds the lines of a block that patterns know, and remembers templates from block to block."""

    def __init__(self, patterns: Sequence[str], matcher: Callable[[Sequence[str]], Screen], steps: Set[int]) -> None:
        """``steps``: indexes of the patterns of step lines."""
        self._patterns = [Pattern(text) for text in patterns]
        self._screen = matcher([pattern.folded for pattern in self._patterns])
        self.name = self._screen.name
        self._steps = steps
        self._alone: dict[int, Callable[[bytes], bool]] = {}
        self._known: dict[bytes, Hits] = {}
        self._unknown: set[bytes] = set()
        self._bytes = 0

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Pairs (index of the pattern, offset where a match ends), which hold at least every match."""
        others, steps = self.hit_lines(block, list)
        return [(index, line.start + offset) for line in (*others, *steps) for index, offset in line.hits]

    def hit_lines(self, block: bytes, choose: Choose) -> tuple[list[HitLine], list[HitLine]]:
        """Lines of a block of whole lines with their hits besides steps, and step lines with their steps.

        ``choose`` takes those it wants of the numbers of all step lines, which come from the last to the first.
        """
        lines = block.translate(FOLD).split(b"\n")
        distinct = set(lines)
        # Not difference(): of a dictionary it goes through all that is known, for each line of a live log.
        known = {
            template: self._known[template] for template in self._known.keys() & distinct
        }  # learning may forget them
        found = self._learn({line for line in distinct - self._unknown if line not in known}) | known
        if not found:
            return [], []
        others, steps = {}, {}
        for template, hits in found.items():
            if other := tuple(hit for hit in hits if hit[0] not in self._steps):
                others[template] = other
            if step := tuple(hit for hit in hits if hit[0] in self._steps):
                steps[template] = step
        if len(lines) - len(distinct) >= MANY and (absent := self._absent(others, block)):
            kept = {t: tuple(hit for hit in hits if hit[0] not in absent) for t, hits in others.items()}
            others = {template: hits for template, hits in kept.items() if hits}
        numbers = sorted(_numbers(lines, others))
        stepped = sorted(choose(_numbers(lines, steps)))
        return _hit_lines(lines, len(block), numbers, others), _hit_lines(lines, len(block), stepped, steps)

    def _absent(self, found: Mapping[bytes, Hits], block: bytes) -> set[int]:
        """Patterns that ask for certain digits and match nowhere in the block."""
        doubtful = {index for hits in found.values() for index, _ in hits if self._patterns[index].sensitive}
        for index in doubtful - self._alone.keys():
            self._alone[index] = self._screen.alone(self._patterns[index].text)
        return {index for index in doubtful if not self._alone[index](block)}

    def _learn(self, fresh: Set[bytes]) -> dict[bytes, Hits]:
        """Those of new templates that patterns match."""
        if not fresh:
            return {}
        order = list(fresh)
        ends = list(accumulate(len(template) + 1 for template in order))  # each with the line end behind it
        matched: dict[int, dict[int, list[int]]] = {}
        for index, end in self._screen.scan(b"\n".join(order)):
            at = bisect_left(ends, end + 1)
            offsets = matched.setdefault(at, {}).setdefault(index, [])
            offset = end - (ends[at] - 1 - len(order[at]))
            if not offsets or (len(offsets) < TRIED and offset - offsets[-1] > WINDOW):
                offsets.append(offset)
        found = {}
        for at, hits in matched.items():
            template = order[at]
            ends_of = ((index, self._end(index, template, near)) for index, near in hits.items())
            if confirmed := [(index, last) for index, last in ends_of if last is not None]:
                # Whatever order a screen has: where one of two is kept, it is the same one.
                found[template] = tuple(sorted(confirmed, key=lambda hit: (hit[1], hit[0])))
        self._remember(order, found)
        return found

    def _end(self, index: int, template: bytes, near: Iterable[int]) -> int | None:
        """Where the pattern's first match in the line ends; None where a hit of the screen is none of this line alone."""
        pattern = self._patterns[index].in_template
        if len(template) <= LONGEST:
            match = pattern.search(template)
            return match.end() if match else None
        windows = (pattern.search(template, max(at - WINDOW, 0), at + 2 * WINDOW) for at in near)
        return next((match.end() for match in windows if match), None)

    def _remember(self, fresh: Iterable[bytes], found: Mapping[bytes, Hits]) -> None:
        short = [template for template in fresh if len(template) <= LONGEST]
        self._bytes += sum(map(len, short))
        if self._bytes > MOST_BYTES or len(self._known) + len(self._unknown) + len(short) > MOST:
            self._known, self._unknown, self._bytes = {}, set(), sum(map(len, short))
        self._known.update((template, found[template]) for template in short if template in found)
        self._unknown.update(template for template in short if template not in found)


def _numbers(lines: Sequence[bytes], templates: Mapping[bytes, Hits]) -> Iterator[int]:
    """Numbers of the lines whose template is one of these, from the last to the first."""
    if not templates:
        return iter(())
    return compress(range(len(lines) - 1, -1, -1), map(templates.__contains__, reversed(lines)))


def _hit_lines(
    lines: Sequence[bytes], size: int, numbers: Sequence[int], templates: Mapping[bytes, Hits]
) -> list[HitLine]:
    """The lines with these numbers (ascending), which lie in a block of ``size`` bytes."""
    if not numbers:
        return []
    first = numbers[0]
    last = lines[first:]
    lengths = list(accumulate(len(line) + 1 for line in last)) if len(numbers) > 1 else [len(last[0]) + 1]
    begin = size + 1 - sum(len(line) + 1 for line in last)
    found = []
    for number in numbers:
        template = lines[number]
        end = begin + lengths[number - first] - 1  # the line's end is not part of it
        found.append(HitLine(number, end - len(template), end, templates[template]))
    return found
