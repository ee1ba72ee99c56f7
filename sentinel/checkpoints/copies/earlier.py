"""Tells a part that another node copied of an earlier save from one of the save that is being copied.

A run that died and was restarted saves a step anew. What a node had copied of the first save of that step still lies where
the copy is put together, has the lengths that the second one names, and its checksums match.
"""

from __future__ import annotations

from sentinel.checkpoints.files import Entry, Tree
from sentinel.checkpoints.formats.base import SKEW_S
from sentinel.checkpoints.formats.one_save import RANKS_HANG_S, SLOW_BYTES_PER_S
from sentinel.checkpoints.steps import without_numbers
from sentinel.text import visible


def of_an_earlier_save(mine: Tree, together: Tree, now_s: float) -> str:
    """In words, why a file that other nodes put in is of another save than this node's; empty where nothing says so.

    Files are compared with those of this node that differ in numbers alone, as those of ranks do: what else lies in a save
    may have kept the time of a file that it was copied from.

    Args:
        mine: this node's part at its source.
        together: what all nodes put in up to now, this one just now.
        now_s: this node's time when it had put its part in; the place where it is put together may have a clock of its own.
    """
    kinds: dict[str, list[Entry]] = {}
    for name, entry in mine.files.items():
        kinds.setdefault(without_numbers(name), []).append(entry)
    there_now_s = max(
        (_put_there_s(together.files[name]) for name in mine.files if name in together.files), default=0.0
    )
    for name, entry in sorted(together.files.items()):
        own = kinds.get(without_numbers(name), []) if name not in mine.files else []
        doubt = own and (_copied_before(entry, own, there_now_s, now_s) or _written_apart(entry, own))
        if doubt:
            away = f"Copy it on the node that saved it now, or remove it from {visible(str(together.root))}"
            return f"{visible(name)} {doubt}: of an earlier save? {away}"
    return ""


def _copied_before(entry: Entry, own: list[Entry], there_now_s: float, now_s: float) -> str:
    """Whoever copies a part of a save does so after it was written, when the other nodes write theirs, too.

    Each clock is asked for its own times: since when a copy is there, and how old the files of this node are.
    """
    there_for_s = there_now_s - _put_there_s(entry)
    age_s = now_s - min(one.mtime_s for one in own)
    if age_s < 0 or there_for_s <= age_s + SKEW_S:  # files of a time to come: how old they are is not known
        return ""
    return f"was copied {there_for_s - age_s:.0f} s before this node's files were written"


def _written_apart(entry: Entry, own: list[Entry]) -> str:
    """The ranks of a job write their parts of a save at about the same time."""
    first_s, last_s = min(one.mtime_s for one in own), max(one.mtime_s for one in own)
    apart_s = max(first_s - entry.mtime_s, entry.mtime_s - last_s)
    if apart_s <= RANKS_HANG_S + max(one.size for one in (entry, *own)) / SLOW_BYTES_PER_S:
        return ""
    return f"was written {apart_s:.0f} s {'before' if entry.mtime_s < first_s else 'after'} this node's files"


def _put_there_s(entry: Entry) -> float:
    """When a copy got its times: whoever drains it again gives them again."""
    return entry.ctime_ns / 1e9
