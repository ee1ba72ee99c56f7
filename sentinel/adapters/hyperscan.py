"""Searches for all patterns in one pass with Hyperscan (on Arm: Vectorscan), or else with the plain screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sentinel.adapters import pattern_cache
from sentinel.errors import Unavailable
from sentinel.evidence.logs.prefilter import PlainScreen, Screen


class HyperscanScreen:
    """One automaton for all patterns; with ``keep`` its compiled form is cached for each set of rules.

    Raises:
        Unavailable: the library is not installed or cannot run here, or it refuses a pattern.
    """

    name = "hyperscan"

    def __init__(self, patterns: Sequence[str], *, keep: bool = False) -> None:
        try:
            import hyperscan
        except ImportError as error:
            raise Unavailable("hyperscan is not installed", fix="pip install hyperscan") from error
        self._library = hyperscan
        try:
            self._database = (_kept(hyperscan, patterns) if keep else None) or _compiled(hyperscan, patterns, keep)
        except hyperscan.error as error:
            raise Unavailable(f"hyperscan refuses the patterns: {error}", fix="sentinel rules test") from error

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        if not block:
            return []
        hits: list[tuple[int, int]] = []
        append = hits.append

        def seen(index: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            append((index, end))

        self._database.scan(block, match_event_handler=seen)
        return hits

    def alone(self, pattern: str) -> Callable[[bytes], bool]:
        screen = HyperscanScreen([pattern])
        return lambda block: bool(screen.scan(block))


def _kept(hyperscan: Any, patterns: Sequence[str]) -> Any:
    """The cached automaton; None if there is none, or it does not run on this processor."""
    stored = pattern_cache.load(pattern_cache.key_of(f"hyperscan {hyperscan.__version__}", patterns))
    if stored is None:
        return None
    try:
        database = hyperscan.loadb(stored, hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
    except hyperscan.error:
        return None
    return database


def _compiled(hyperscan: Any, patterns: Sequence[str], keep: bool) -> Any:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[pattern.encode("ascii") for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(patterns),
    )
    database.scratch = hyperscan.Scratch(database)
    if keep:
        key = pattern_cache.key_of(f"hyperscan {hyperscan.__version__}", patterns)
        pattern_cache.save(key, hyperscan.dumpb(database))
    return database


def best_screen(patterns: Sequence[str]) -> Screen:
    """A Hyperscan screen if it is installed and supports every pattern; else the plain screen."""
    try:
        return HyperscanScreen(patterns, keep=True)
    except Unavailable:
        return PlainScreen(patterns)
