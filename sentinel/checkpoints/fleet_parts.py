"""Facts about a job's checkpoints that follow from the parts of all its nodes together. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set

from sentinel.checkpoints.records import CANNOT_BE_READ, NO_ANSWER, Candidate, Part
from sentinel.model.intent import Intent

_NUMBER = re.compile(r"\d+")
_DIGITS = 18
_MOST_RANKS = 1024  # of a node; a checkpoint may state any number, and each rank is looked at


def world_size_of(parts: Sequence[Part], nodes: int) -> int | None:
    """Number of ranks of the job, inferred from its checkpoints; None if not known.

    A missing node is assumed to hold as many ranks as the others. Too large a number only sends the job back to a shared
    checkpoint; too small a number would miss a lost rank.
    """
    per_node = max((len(part.owners) for part in parts if part.tier == "local"), default=0)
    stated = (part.world_size or 0 for part in parts if part.tier == "global")
    written = max((ranks for ranks in stated if ranks <= _MOST_RANKS * nodes), default=0)
    return max(per_node * nodes, written) or None


def is_unread_root(part: Part) -> bool:
    """Whether it says that the folder itself could not be read. That older saves were left out is said in other words."""
    return part.key == "." and part.valid is None and part.reason.startswith((CANNOT_BE_READ, NO_ANSWER))


def may_not_exist(part: Part) -> bool:
    """Of an unread folder: it may be one that the job has yet to make."""
    return part.reason == f"{CANNOT_BE_READ} ({os.strerror(errno.ENOENT)})"


def root_of(part: Part, intent: Intent) -> str:
    """The root as written in the job's comment: parts of several hosts under one %N pattern belong together."""
    for root in (*intent.local_roots, *intent.global_roots):
        if root.replace("%N", part.host).rstrip("/") == part.root.rstrip("/"):
            return root
    return part.root


def rank_hosts(world: int | None, nodes: Sequence[str]) -> dict[int, str] | None:
    """The node of each rank, assuming block distribution with the same number of ranks on each node."""
    if not world or not nodes or world % len(nodes):
        return None
    each = world // len(nodes)
    return {rank: nodes[rank // each] for rank in range(world)}


def pattern_of(chosen: Candidate, intent: Intent) -> str:
    """The checkpoint's path for all nodes: with %N where it differs between nodes."""
    for host, path in chosen.paths.items():
        for root in intent.local_roots:
            base = root.replace("%N", host).rstrip("/")
            if "%N" in root and path.startswith(base + "/"):
                return root.rstrip("/") + path[len(base) :]
    return chosen.path


def later_than(parts: Sequence[Part], step: int | None, path: str = "", *, if_alone: int | None = None) -> list[Part]:
    """Those of a later step than ``step``; those whose step is not known, as of a torn one, where the number in their names
    is higher than in those of all saves beside them, named alike, of this step or before, and than that of ``path``.

    Args:
        if_alone: where there is no such save, the last number in the name of a later one is higher than this. Only numbers
            count in which saves named alike differ: one that none has otherwise may be a size or a year.
    """
    before = [path] if path else []
    if step is not None:
        before += [part.path for part in parts if part.step is not None and part.step <= step]
    highest: dict[tuple[str, int], int] = {}
    for one in before:
        for series, number in _series(one):
            highest[series] = max(number, highest.get(series, -1))
    seen: dict[tuple[str, int], set[int]] = {}
    for part in parts if if_alone is not None else ():
        for series, number in _series(part.path):
            seen.setdefault(series, set()).add(number)
    counted = {series for series, numbers in seen.items() if len(numbers) > 1}
    return [part for part in parts if _is_later(part, step, highest, if_alone, counted)]


def _is_later(
    part: Part,
    step: int | None,
    highest: Mapping[tuple[str, int], int],
    if_alone: int | None,
    counted: Set[tuple[str, int]],
) -> bool:
    if part.step is not None:
        return step is not None and part.step > step
    numbers = list(_series(part.path))
    beside = [number > highest[series] for series, number in numbers if series in highest]
    counts = [number for series, number in numbers if series in counted]
    return any(beside) or (not beside and bool(counts) and if_alone is not None and counts[-1] > if_alone)


def _series(path: str) -> Iterable[tuple[tuple[str, int], int]]:
    """Each number in a save's name, with what those share that differ in it alone: ``ckpt_40.pt``, ``ckpt_30.pt``."""
    folder, _, name = path.rpartition("/")
    for index, match in enumerate(_NUMBER.finditer(name)):
        if len(match[0]) <= _DIGITS:
            yield (f"{folder}/{name[: match.start()]}#{name[match.end() :]}", index), int(match[0])
