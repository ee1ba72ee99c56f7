"""Hyperscan: all patterns in one pass over a block of many lines. Optional; without it the plain screen answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentinel.errors import Unavailable
from sentinel.evidence.screen import PlainScreen, Screen


class HyperscanScreen:
    """One automaton for all patterns.

    Raises:
        Unavailable: the library is not installed, or it refuses a pattern.
    """

    name = "hyperscan"

    def __init__(self, patterns: Sequence[str]) -> None:
        try:
            import hyperscan
        except ImportError as error:
            raise Unavailable("hyperscan is not installed", fix="pip install 'slurm-sentinel[screen]'") from error
        flags = hyperscan.HS_FLAG_MULTILINE
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            self._database.compile(
                expressions=[pattern.encode("ascii") for pattern in patterns],
                ids=list(range(len(patterns))),
                elements=len(patterns),
                flags=[flags] * len(patterns),
            )
            self._scratch = hyperscan.Scratch(self._database)
            self._database.scratch = self._scratch
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


def best_screen(patterns: Sequence[str]) -> Screen:
    """Hyperscan where it is installed and takes every pattern; else the plain screen."""
    try:
        return HyperscanScreen(patterns)
    except Unavailable:
        return PlainScreen(patterns)
