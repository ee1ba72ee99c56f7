"""Holds the files that a save has one of for each rank against each other: how many there are is written nowhere else.

Without its last file a set has no hole. Random states, files whose name says *rank* and DCP's shards are one for each rank.
Models and optimizers need not be as many (tensor parallelism with a sharded optimizer, networks of which some are not
trained): there a save beside must have the file that is missing. Where one beside lacks it, too, a loop saves so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree, is_file
from sentinel.checkpoints.formats import marks
from sentinel.checkpoints.formats.base import NEAREST, Ask, neighbours
from sentinel.checkpoints.formats.huggingface import names
from sentinel.checkpoints.parsing.ranks import MOST_RANKS, first_hole
from sentinel.text import visible

_ENDING = r"\.(?:pt|pth|bin|ckpt|pkl|safetensors)(?:\.tar)?"
_NUMBERED = rf"(?:[-_]?states?)?(?:[-_.]?rank)?[-_]?)(?P<rank>\d{{1,6}})(?P<rest>{_ENDING})"
_LOOPS_OF_A_RANK = re.compile(rf"(?P<stem>(?:[\w.-]*[-_.])?rank[-_.]?)(?P<rank>\d{{1,6}})(?P<rest>{_ENDING})")
# Of ranks that differ in one dimension, of which there are fewer.
_OF_ONE_DIMENSION = re.compile(r"(?i)(?:^|[-_.])(?:[a-z]{1,2}p|parallel|local|node)[-_.]?rank")
_OF_A_RANK = (
    re.compile(r"(?P<stem>(?:[A-Za-z_.-]*[-_.])?opt(?:im[a-z]*)?" + _NUMBERED),
    re.compile(r"(?P<stem>(?:[A-Za-z_.-]*[-_.])?(?:models?|weights?|net(?:work)?|module|param(?:eter)?s)" + _NUMBERED),
    names.RANDOM_OF_A_RANK,
    names.OF_A_RANK,
    _LOOPS_OF_A_RANK,
)
_OF_EACH_RANK = re.compile(r"(?i)rank|rng|random")
_SHARD = re.compile(r"__(\d{1,6})_\d+\.distcp|__(\d{1,6})\.metadata")


@dataclass(slots=True)
class _Set:
    """Files of one folder whose names differ in the number of a rank."""

    folder: str
    stem: str
    rest: str
    ranks: dict[int, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max(self.ranks)

    @property
    def first(self) -> int:
        return min(self.ranks)

    def name(self, rank: int) -> str:
        digits = self.ranks[self.last]
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 1
        return f"{self.stem}{rank:0{width}}{self.rest}"


def refuse_fewer(tree: Tree, ask: Ask) -> None:
    """`NotKnown` where a set lacks the file of a rank of which another set, or DCP, has one.

    The other is in the same folder, or in one above or below it: beside it may be another program's of other ranks.
    """
    sets = list(_sets(tree))
    others = marks.of_other_steps(tree, {one.folder for one in sets})
    sets = [one for one in sets if one.folder not in others]
    beside = neighbours(tree.root, NEAREST) if sets else []
    here: dict[_Place, _Said] = {}
    below: dict[_Place, _Said] = {}  # the same of a folder and all in it
    for folder, first, said in _all_said(tree, sets, ask.left_over):
        here[folder, first] = max(here.get((folder, first), said), said)
        for above in _up_from(folder):
            below[above, first] = max(below.get((above, first), said), said)
    for one in sets:
        around = [here.get((folder, one.first)) for folder in _up_from(one.folder)]
        last, by = max(said for said in (*around, below[one.folder, one.first]) if said is not None)
        lacking = one.name(one.last + 1)
        if one.last < last <= MOST_RANKS and _is_missing(beside, [lacking, one.name(last)], by, len(one.ranks)):
            raise NotKnown(
                f"{visible(lacking)} is missing, and {visible(by)} is there: of a rank, or one that is not saved?"
            )


_Place = tuple[str, int]  # a folder, and the number with which its ranks begin
_Said = tuple[int, str]  # the last rank, and the file that says so


def _all_said(tree: Tree, sets: list[_Set], left_over: Collection[Path]) -> Iterator[tuple[str, int, _Said]]:
    for one in sets:
        yield one.folder, one.first, (one.last, one.name(one.last))
    for name in tree.files:
        folder, _, file = name.rpartition("/")
        if (match := _SHARD.fullmatch(file)) and tree.path(name) not in left_over:
            yield folder, 0, (int(match.group(1) or match.group(2)), name)


def _up_from(folder: str) -> Iterator[str]:
    """The folder and those above it, up to the save's own."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _sets(tree: Tree) -> Iterator[_Set]:
    """Sets that begin at rank 0 or 1 and have no hole. What has no number beside it (optimizer.bin) is no rank's."""
    found: dict[tuple[str, str], _Set] = {}
    for name in tree.files:
        folder, slash, file = name.rpartition("/")
        match = next((match for pattern in _OF_A_RANK if (match := pattern.fullmatch(file))), None)
        if match and _OF_ONE_DIMENSION.search(file) is None:
            stem, rank, rest = match.groups()
            key = (folder + slash + stem, rest)
            found.setdefault(key, _Set(folder, folder + slash + stem, rest)).ranks[int(rank)] = rank
    for one in found.values():
        alone = one.stem.rstrip("-_.") + one.rest in tree.files
        if one.first <= 1 and not alone and first_hole(one.ranks, one.first, one.last + 1) is None:
            yield one


def _is_missing(beside: list[Path], lacking: list[str], by: str, here: int) -> bool:
    """Whether ``by`` says that ``lacking`` were saved: by what it is, or by the saves beside that have all of them.

    A save beside without ``by`` is itself torn, or of something else, and says nothing. ``here``: how many files the set
    has; a loop may save one of its first rank only.
    """
    whole = [folder for folder in beside if is_file(folder / by)]
    if any(not is_file(folder / name) for folder in whole for name in lacking):
        return False
    if here == 1 and _LOOPS_OF_A_RANK.fullmatch(lacking[0].rpartition("/")[2]):
        return bool(whole)
    file = by.rpartition("/")[2]
    return bool(whole) or _SHARD.fullmatch(file) is not None or _OF_EACH_RANK.search(file) is not None
