"""Text from outside in messages: one line each, limited, without control characters. It is data, never markup. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from sentinel.model.records import Outcome
from sentinel.model.vocabulary import HELD_BY_OTHERS
from sentinel.text import printable

_MOST_NAMES = 8  # of a list; the rest is counted

# A GPU's index or PCI address, with its node where that is known: "n2:5", "n2:0000:61:00", "0000:61:00.0".
_GPU = re.compile(r"(?:(?P<node>[^:]+):)?(?P<gpu>\d+|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)")

# What launchers put before a line of one rank: "[rank3]:", "[default7]:", "3: ", "node5: ".
_RANK = re.compile(r"^(?:\s*\[?(?:rank|default|node|gpu)?[-_ ]?\d+\]?\s*:\s*)+", re.IGNORECASE)


def plain(text: str, most: int = 300) -> str:
    """Log text for a message: one line, no control characters, limited (it is data, never markup)."""
    shown = printable(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def span_words(since: datetime, now: datetime) -> str:
    seconds = max(0.0, (now - since).total_seconds())
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - _MOST_NAMES
    return plain(", ".join(names[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")


def culprit_words(nodes: Sequence[str], gpus: Sequence[str] = (), ranks: Sequence[int] = ()) -> str:
    """``GPU 5 of n2; node n3; ranks 0, 1``. A node whose GPU is named is not named again."""
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        named = _GPU.fullmatch(gpu)
        node, index = (named["node"] or "", named["gpu"]) if named is not None else ("", gpu)
        by_node.setdefault(node, []).append(index)
    parts = [
        f"{'GPUs' if len(found) > 1 else 'GPU'} {listed(found)}{f' of {plain(node, 64)}' if node else ''}"
        for node, found in list(by_node.items())[:_MOST_NAMES]
    ]
    parts += [f"and {more} more nodes with such GPUs"] if (more := len(by_node) - _MOST_NAMES) > 0 else []
    others = [node for node in nodes if node not in by_node]
    parts += [f"{'nodes' if len(others) > 1 else 'node'} {listed(others)}"] if others else []
    numbers = listed([str(rank) for rank in sorted(ranks)])
    parts += [f"{'ranks' if len(ranks) > 1 else 'rank'} {numbers}"] if ranks else []
    return "; ".join(parts)


def unranked(text: str) -> str:
    """The line without what a launcher puts before it to say which rank printed it."""
    return _RANK.sub("", text) or text


def without_repeats(texts: Sequence[str]) -> list[str]:
    """The texts that say more than another of them: one that stands whole within another is left out."""
    return [text for text in texts if not any(text != other and text in other for other in texts)]


def counted(texts: Sequence[str], most: int = 160) -> list[str]:
    """These lines, each once: what many ranks say alike is one line with their number."""
    alike: dict[str, dict[str, None]] = {}
    for text in without_repeats(texts):
        alike.setdefault(unranked(text), {})[text] = None
    return [
        plain(next(iter(lines)) if len(lines) == 1 else text, most) + (f" ({len(lines):,} alike)" * (len(lines) > 1))
        for text, lines in alike.items()
    ]


def held_by_others(outcomes: Sequence[Outcome]) -> bool:
    """Whether somebody held the job in the middle of its restart: Sentinel does not hold it, nor let it go."""
    return any(outcome.data.get(HELD_BY_OTHERS) for outcome in outcomes)
