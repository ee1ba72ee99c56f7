"""Checks whether a save lacks what those beside it have: a load may need what nothing in a save names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats import one_save
from sentinel.checkpoints.formats.base import neighbours
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.steps import without_numbers
from sentinel.text import visible

_NEIGHBOURS = 2
# Names of files that a load may need. Data (.npy, .pkl, .json) may be results, which come when a save is over, unless its
# name says that it is the run's state (lingua's train_state_00000.json).
_STATE = re.compile(
    r"(?s:.*)\.(?:pt|pth|bin|ckpt|tar|safetensors)"
    r"|(?:.*[^a-z])?(?:states?|progress|training_step|param_groups|(?:lr_?)?scheduler|sampler|(?:data_?)?loader|rng)(?:[^a-z].*)?"
    r"\.(?:json|pkl|pickle|npy|npz)"
    r"|(?s:.*)\.index\.json"  # without which a load does not find the shards
    r"|(?:.*[^a-z])?(?:optimizer|(?:lr_?)?scheduler|sampler|rng)",  # as Colossal-AI calls a file of torch
    re.IGNORECASE,
)
_DEPTH = 3  # of folders in a save: model/pp_00/tp_00/sdp_00.pt
_OF_A_RANK = re.compile(r"([^0-9]*)(\d{1,6})(\.[a-z]+)")
_UNIVERSAL = "zero"  # the folder of parameters in such a save


def refuse_lacking(tree: Tree) -> None:
    """`NotKnown` where every save beside this one has a file of a state, or a folder of shards, that is missing here.

    A load may need what nothing in a save names. Numbers in names are ranks and steps: there may be fewer of them.
    """
    mine = {without_numbers(name): name for name in (*tree.files, *tree.links, *tree.folders)}
    lacking: dict[str, str] = {}
    beside = _of_its_form(tree, neighbours(tree.root, 2 * _NEIGHBOURS))[:_NEIGHBOURS]
    _refuse_holes(tree, beside)
    for index, folder in enumerate(beside):
        try:
            theirs = _saved_in(folder, mine)
        except OSError:  # what it has is not known
            return
        lacking = {kind: name for kind, name in theirs.items() if kind not in mine and (not index or kind in lacking)}
        if not lacking:
            return
    if lacking:
        name = visible(min(lacking.values()))
        raise NotKnown(f"{name} is missing, which {visible(beside[0].name)} has: half deleted or half written?")


def _of_its_form(tree: Tree, folders: Iterable[Path]) -> list[Path]:
    """DeepSpeed's universal saves lie beside those that they were made of, and hold other files.

    Where that cannot be looked at, a save beside is none.
    """
    return [folder for folder in folders if _is_universal(folder) is (_UNIVERSAL in tree.folders)]


def _is_universal(folder: Path) -> bool | None:
    try:
        return (folder / _UNIVERSAL).is_dir()
    except OSError:
        return None


def _saved_in(folder: Path, mine: Mapping[str, str]) -> dict[str, str]:
    """The kinds of files with a state, and of folders of shards, that this save has, without what was put in afterwards."""
    times: dict[str, tuple[float, str]] = {}
    for path in _files_in(folder):
        inside = str(path.relative_to(folder))
        shards = path.name == ".metadata"
        if not shards and (path.name.startswith(".") or _STATE.fullmatch(path.name) is None):
            continue
        here = (path.lstat().st_mtime, inside)
        times[without_numbers(inside)] = min(times.get(without_numbers(inside), here), here)
    last_s = max((at for kind, (at, _) in times.items() if kind in mine), default=None)
    if last_s is None:
        return {}
    return {kind: name for kind, (at, name) in times.items() if at <= last_s + one_save.RANKS_HANG_S}


def _files_in(folder: Path) -> Iterator[Path]:
    """The files of a save down to the depth of folders of ranks; no link is followed."""
    pending = [] if folder.is_symlink() else [(folder, 0)]
    while pending:
        here, depth = pending.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
                elif depth < _DEPTH and entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), depth + 1))


def _refuse_holes(tree: Tree, beside: Sequence[Path]) -> None:
    """`NotKnown` where a rank's file is missing that every save beside has, and a later rank's is here.

    Fewer ranks than before have no hole. Numbers count from 0 or from 1: what begins later is no rank's.
    """
    ranks: dict[tuple[str, str], dict[int, str]] = {}
    for name in tree.files:
        folder, slash, file = name.rpartition("/")
        match = _OF_A_RANK.fullmatch(file)
        if match and _STATE.fullmatch(file):
            ranks.setdefault((folder + slash + match[1], match[3]), {})[int(match[2])] = match[2]
    for (before, after), numbers in ranks.items():
        low, high = min(numbers), max(numbers)
        width = max(len(digits) if digits[0] == "0" else 1 for digits in numbers.values())
        holes = {first_hole(numbers, first, high + 1) for first in (0, 1)} - {None} if low <= 1 else set()
        for hole in sorted(number for number in holes if number is not None):
            name = f"{before}{hole:0{width}}{after}"
            if beside and all(one_save.file_inside(folder, name) for folder in beside):
                raise NotKnown(f"{visible(name)} is missing, which {visible(beside[0].name)} has: half deleted?")
