"""One torch file per rank, those of all steps in one folder: Composer's ``ep0-ba10-rank3.pt`` where each rank saves its own.

The answer about one of them is about all of its step: ranks without a hole, every file whole, all of one step and one save,
and none missing that the step beside it has.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree, entry_of
from sentinel.checkpoints.formats import torch_folder
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, settled_since
from sentinel.checkpoints.steps import without_numbers
from sentinel.text import visible

NAME = "torch_ranks"
_FILE = re.compile(r"(?P<stem>.+[-_.]rank[-_]?)(?P<rank>\d{1,6})(?P<rest>\.(?:pt|pth|ckpt|pt\.tar))")

owners_by_name = no_owners


def set_of(name: str) -> tuple[str, int] | None:
    """What the files of one step have in common, and the rank of this one; None for other names."""
    match = _FILE.fullmatch(name)
    return (f"{match['stem']}*{match['rest']}", int(match["rank"])) if match else None


def recognise(tree: Tree) -> bool:
    return tree.single and bool(_sets(tree)[0])


def check(tree: Tree, ask: Ask) -> Finding:
    sets, (most, other) = _sets(tree)
    mine, _ = set_of(tree.root.name) or ("", 0)
    if len(sets[mine]) < most:
        raise NotKnown(f"{len(sets[mine])} ranks' files, {visible(other)} has {most}: half written or half deleted?")
    whole = Tree(tree.root.parent)
    for file in sets[mine].values():
        whole.files[file] = entry_of(os.lstat(whole.root / file))
    finding = torch_folder.check(whole, ask)
    finding.owners, finding.world_size = frozenset(), most
    return finding


_Sets = dict[str, dict[int, str]]
_Most = tuple[int, str]  # how many files the largest set has, and its name


def files_by_step(folder: Path) -> dict[str, dict[int, str]]:
    """The files of each step in a folder, by what their names share and by rank.

    Thousands of steps may lie there, and each of them is asked: they are kept while the folder does not change.

    Raises:
        OSError: it cannot be listed.
    """
    changed_ns = settled_since(folder)
    return _list(folder) if changed_ns is None else _list_once(folder, changed_ns)


def _sets(tree: Tree) -> tuple[_Sets, _Most]:
    """The sets of the folder whose names differ from this one's in numbers alone; none where no rank but 0 has files."""
    own = set_of(tree.root.name)
    if own is None:
        return {}, (0, "")
    shape, folder = without_numbers(own[0]), tree.root.parent
    changed_ns = settled_since(folder)
    return _of_shape(_list(folder), shape) if changed_ns is None else _of_shape_once(folder, shape, changed_ns)


@lru_cache(maxsize=2)
def _of_shape_once(folder: Path, shape: str, changed_ns: int) -> tuple[_Sets, _Most]:
    return _of_shape(_list_once(folder, changed_ns), shape)


def _of_shape(listed: _Sets, shape: str) -> tuple[_Sets, _Most]:
    found = {name: ranks for name, ranks in listed.items() if without_numbers(name) == shape}
    if not any(max(ranks) for ranks in found.values()):
        return {}, (0, "")
    return found, max((len(ranks), name) for name, ranks in found.items())


@lru_cache(maxsize=2)
def _list_once(folder: Path, changed_ns: int) -> _Sets:
    del changed_ns
    return _list(folder)


def _list(folder: Path) -> _Sets:
    found: _Sets = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            known = set_of(entry.name)
            if known is not None and entry.is_file(follow_symlinks=False):
                found.setdefault(known[0], {})[known[1]] = entry.name
    return found
