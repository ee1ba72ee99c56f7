"""Files whose names do not say that they are checkpoints: which of them are, in what order, and which are to be trusted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sentinel.checkpoints.records import Part
from sentinel.checkpoints.validate import ONLY_WEIGHTS
from sentinel.text import visible

# Of those, what damaged ones have.
_NAMED = re.compile(r"ckpt|checkpoint|snapshot|latest|last|best|final|epoch|iter|\d\.", re.IGNORECASE)
# In which the files of one save differ: the number of a rank or part, and the kind of state.
_OF_A_RANK = re.compile(r"(?<![a-z])(?:rank|shard|part|worker|process|tp|pp|dp|mp)[-_.=]?\d+|\d+[-_]of[-_]\d+")
_KIND = re.compile(
    r"model|optim|optimizer|opt|sched|scheduler|scaler|ema|state|dict|weights|net|network|checkpoint|ckpt|g|d|gen|generator"
    r"|disc|discriminator|netg|netd|actor|critic|encoder|decoder|pt|pth|tar"
)


def may_be_resumed(part: Part) -> bool:
    """Whether a file whose name says little is a checkpoint, as its step or number tells; if damaged, as its name does."""
    if part.valid:
        return any(value is not None for value in (part.step, part.number, part.epoch))
    return part.reason != ONLY_WEIGHTS and _NAMED.search(Path(part.path).name) is not None


def on_one_scale(parts: list[Part]) -> list[Part]:
    """Files whose names number no save (``checkpoint.pth``, ``last.pt``) are numbered by the epoch that they state inside.

    Of numbered ones beside them, some count from 0 where their state counts from 1: the others are counted as their names
    do. Where these differ, or state no epoch, the two cannot be compared: such a file has no number.
    """
    offsets: dict[str, set[int | None]] = {}
    for part in parts:
        if part.number is not None and part.valid:
            offset = part.number - part.epoch if part.epoch is not None else None
            offsets.setdefault(part.path.rpartition("/")[0], set()).add(offset)
    numbered: list[Part] = []
    for part in parts:
        here = offsets.get(part.path.rpartition("/")[0], {0})
        offset = next(iter(here)) if len(here) == 1 else None
        counted = None if part.epoch is None or offset is None else max(0, part.epoch + offset)
        numbered.append(replace(part, number=counted) if part.number is None else part)
    return numbered


def judged(parts: list[Part]) -> list[Part]:
    """Files whose names say little: with one not whole nothing of its save is proven (``G_500.pth``, ``D_500.pth``).

    None is invalid: what is would be moved aside, and this may be another program's.
    """
    damaged: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        if not part.valid:
            damaged.setdefault(_save_of(part), []).append(part)
    answers: list[Part] = []
    for part in parts:
        beside = damaged.get(_save_of(part), []) if part.valid else []
        other = next((one for one in beside if None in (one.step, part.step) or one.step == part.step), None)
        reason = (
            part.reason
            if other is None
            else f"{visible(Path(other.path).name)} beside it, of the same save, is not whole"
        )
        answers.append(replace(part, valid=True if part.valid and other is None else None, reason=reason))
    return answers


def _save_of(part: Part) -> tuple[str, ...]:
    """What the names of the files of one save share: all but the number of a rank and the kind of state."""
    folder, _, name = part.path.rpartition("/")
    words = re.findall(r"[a-z]+|\d+", _OF_A_RANK.sub("", name.lower()))
    shared = [word.lstrip("0") or "0" if word.isdigit() else word for word in words if not _KIND.fullmatch(word)]
    return (folder, *shared) if any(word.isdigit() for word in shared) else (folder, name)
