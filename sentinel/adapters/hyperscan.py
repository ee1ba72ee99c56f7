"""Searches for all patterns in one pass with Hyperscan (on Arm: Vectorscan), or else with the plain screen."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.adapters import pattern_cache
from sentinel.errors import Unavailable
from sentinel.evidence.logs.screen.literals import ORDINARY, ways_of
from sentinel.evidence.logs.screen.prefilter import PlainScreen, Screen, holds, line_at

# Letters in a row from which a word is looked for in place of a pattern that needs it; shorter words stand in many lines,
# and so do digits, which are all alike where templates are read.
TELLING = 5
_LETTERS = re.compile(rb"[a-z]{%d}" % TELLING)
REVISION = 1  # to raise where the lookups of the same patterns change: it is part of the cache's key
SHARING = 4  # patterns that need such a word; one of more ("runtimeerror") tells too little of which of them

# A pattern's index, and groups of words, in lower case, of each of which its line holds one.
Lookup = tuple[int, list[list[str]]]


class HyperscanScreen:
    """One automaton for all patterns; with ``keep`` its compiled form is cached for each set of rules.

    Where each match of a pattern holds one of a few telling words, the automaton looks for these, and what else the pattern
    needs is looked for in the lines that hold one: this is compiled in a third of the time that whole patterns would take.

    Raises:
        Unavailable: the library is not installed or cannot run here, or it refuses a pattern.
    """

    name = "hyperscan"

    def __init__(self, patterns: Sequence[str], *, keep: bool = False) -> None:
        try:
            import hyperscan
        except ImportError as error:
            raise Unavailable("hyperscan is not installed", fix="pip install hyperscan") from error
        self._library: Any = hyperscan
        key = pattern_cache.key_of(f"hyperscan {self._library.__version__} words {REVISION}", patterns)
        try:
            kept = _kept(hyperscan, key) if keep else None
            if kept is None:
                expressions, lookups = _lookups(patterns)
                kept = _compiled(hyperscan, expressions), lookups
                if keep:
                    pattern_cache.save(key, json.dumps(lookups).encode("ascii") + b"\n" + hyperscan.dumpb(kept[0]))
        except hyperscan.error as error:
            raise Unavailable(f"hyperscan refuses the patterns: {error}", fix="sentinel rules test") from error
        self._database, lookups = kept
        self._indexes = [index for index, _ in lookups]
        self._needs = [tuple(tuple(word.encode("ascii") for word in group) for group in needs) for _, needs in lookups]

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        lower = block.lower()
        answer: list[tuple[int, int]] = []
        start, line_end = 0, -1
        line = b""
        held: dict[int, bool] = {}  # whether the line holds what a lookup needs
        for lookup, end in _ends(self._database, block):
            if needs := self._needs[lookup]:
                if not start <= end <= line_end:  # hits mostly come in order
                    start, line_end = line_at(lower, end)
                    line, held = lower[start:line_end], {}
                if lookup not in held:
                    held[lookup] = holds(line, needs)
                if not held[lookup]:
                    continue
            answer.append((self._indexes[lookup], end))
        return answer

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        database = _compiled(self._library, [pattern])
        return lambda block: bool(_ends(database, block))


def _ends(database: Any, block: bytes) -> list[tuple[int, int]]:
    """Expressions that match, and where each match ends."""
    hits: list[tuple[int, int]] = []
    if block:
        append = hits.append

        def seen(index: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            append((index, end))

        database.scan(block, match_event_handler=seen)
    return hits


def _lookups(patterns: Sequence[str]) -> tuple[list[str], list[Lookup]]:
    """What the automaton looks for, and for each what it stands for."""
    ways = [(index, way) for index, pattern in enumerate(patterns) for way in ways_of(pattern)]
    sharing = Counter(
        word for _, word in {(index, word) for index, way in ways for group in way.groups for word in group}
    )
    expressions: list[str] = []
    lookups: list[Lookup] = []
    for index, way in ways:
        words = next((group for group in way.groups if all(_tells(word, sharing) for word in group)), ())
        if words:
            expressions.append("(?i)" + "|".join(re.escape(word.decode("ascii")) for word in words))
            lookups.append(
                (index, [[word.decode("ascii") for word in group] for group in way.groups if group is not words])
            )
        else:
            expressions.append(way.pattern)
            lookups.append((index, []))
    return expressions, lookups


def _tells(word: bytes, sharing: Mapping[bytes, int]) -> bool:
    """``sharing``: how many patterns need each word."""
    ordinary = word.strip().decode("ascii") in ORDINARY
    return not ordinary and sharing[word] <= SHARING and _LETTERS.search(word) is not None


def _kept(hyperscan: Any, key: str) -> tuple[Any, list[Lookup]] | None:
    """The cached automaton; None if there is none, it is not as it was saved, or it does not run on this processor."""
    stored = pattern_cache.load(key)
    if stored is None:
        return None
    told, _, automaton = stored.partition(b"\n")
    try:
        lookups = [(int(index), [list(map(str, group)) for group in needs]) for index, needs in json.loads(told)]
        database = hyperscan.loadb(automaton, hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
    except (hyperscan.error, ValueError, TypeError, RecursionError):
        return None
    return (database, lookups) if lookups else None


def _compiled(hyperscan: Any, expressions: Sequence[str]) -> Any:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[expression.encode("ascii") for expression in expressions],
        ids=list(range(len(expressions))),
        elements=len(expressions),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(expressions),
    )
    database.scratch = hyperscan.Scratch(database)
    return database


def best_screen(patterns: Sequence[str]) -> Screen:
    """A Hyperscan screen if it is installed and supports every pattern; else the plain screen."""
    try:
        return HyperscanScreen(patterns, keep=True)
    except Unavailable:
        return PlainScreen(patterns)
