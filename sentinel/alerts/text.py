"""Text from outside in messages: one line each, limited, without control characters. It is data, never markup. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMES = 8  # of a list; the rest is counted


def plain(text: str, most: int = 300) -> str:
    """Log text for a message: one line, no control characters, limited (it is data, never markup)."""
    shown = "".join(ch if ch.isprintable() else " " for ch in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - _MOST_NAMES
    return plain(", ".join(names[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
