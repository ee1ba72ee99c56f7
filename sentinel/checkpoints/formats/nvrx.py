"""NVIDIA Resiliency Extension, local checkpoints: ``<session>/<holder rank>/iter_<7 digits>_<owner rank>_local.pt``.

Files are written as ``...dirty.pt`` and renamed, without fsync: after a node crash a file of the final name may be
short or zero. An iteration is complete when the owners are exactly 0..W-1; several iterations may lie in one session
(a newer one that was being written), so one is asked for by number, else the newest is meant.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, refuse_links, unfinished
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.text import visible, whole_number

NAME = "nvrx_local"
FILE = re.compile(r"(?:(?:(.*)/)?(\d+)/)?iter_(\d{7,})_(\d+)_local(\.dirty)?\.pt")


def recognise(tree: Tree) -> bool:
    return any(FILE.fullmatch(name) for name in tree.files)


def iterations(tree: Tree) -> list[int]:
    """The iterations that lie here, newest first."""
    return sorted({int(m.group(3)) for name in tree.files if (m := FILE.fullmatch(name))}, reverse=True)


def owners_by_name(tree: Tree) -> frozenset[int]:
    return frozenset(int(m.group(4)) for name in tree.files if (m := FILE.fullmatch(name)))


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    wanted = ask.step if ask.step is not None else iterations(tree)[0]
    files: dict[int, list[str]] = {}
    dirty: list[str] = []
    for name in sorted(tree.files):
        match = FILE.fullmatch(name)
        if match and int(match.group(3)) == wanted:
            if match.group(5):
                dirty.append(name)
            else:
                files.setdefault(int(match.group(4)), []).append(name)
    if not files:
        raise unfinished(tree, ask, f"{visible(dirty[0])} was not finished" if dirty else f"no iteration {wanted}")
    works: list[Work] = []
    unsummed: list[str] = []
    covered: set[str] = set()
    stated: set[int] = set()
    for owner, names in files.items():
        for name in names:
            file = torch_file.check_file(tree, name, ask)
            _same(file, wanted, owner)
            stated |= _stated_world(file)
            works += file.works
            if file.summed:
                covered.add(name)
            else:
                unsummed.append(name)
    # A holder's folder that has nothing left in it still says that there was such a rank.
    if len(stated) > 1:
        raise Broken(f"the shards were saved by jobs of different sizes: {sorted(stated)[:4]} ranks")
    world = max([*files, *_holders(tree), *(size - 1 for size in stated)]) + 1
    missing = first_hole(files, 0, world)
    unmade = [name for name in dirty if int(_owner(name)) not in files]
    if unmade and not ask.part:
        raise unfinished(tree, ask, f"{visible(unmade[0])} was not finished")
    if not ask.part and not tree.single and _one_rank(tree, files):
        raise NotKnown(f"whole, but only the shard of rank {max(files)}: the other ranks' lie elsewhere")
    if missing is not None and not ask.part and not tree.single:
        raise unfinished(tree, ask, f"the shard of rank {missing} of {world} is missing")
    return Finding(
        step=wanted,
        owners=frozenset(files),
        world_size=next(iter(stated), None) if ask.part or tree.single else world,
        whole=not ask.part,
        works=works,
        unsummed=unsummed,
        covered=covered,
        note="whole: the shard of one rank" if tree.single else "",
    )


def _holders(tree: Tree) -> list[int]:
    names = (folder.rpartition("/")[2] for folder in tree.folders)
    return [rank for name in names if (rank := whole_number(name)) is not None]


def _one_rank(tree: Tree, files: dict[int, list[str]]) -> bool:
    """Whether this is the folder of one holder, not a session."""
    return len(files) == 1 and not any("/" in name for name in tree.files)


def _owner(name: str) -> str:
    match = FILE.fullmatch(name)
    return match.group(4) if match else "-1"


def _same(file: torch_file.TorchFile, wanted: int, owner: int) -> None:
    """What the state says of its iteration must be what the name says."""
    for keys in (("iteration",), ("state_dict", "iteration"), ("state_dict", "common_state", "iteration")):
        inner = file.get(*keys)
        if type(inner) is int and inner != wanted:
            raise Broken(f"{visible(file.name)}: its state is of iteration {inner} (rank {owner})")


def _stated_world(file: torch_file.TorchFile) -> set[int]:
    """The number of ranks, where Megatron's arguments are in the state."""
    inside = ((), ("state_dict",), ("common_state",), ("state_dict", "common_state"))
    found = {file.get(*keys, "args", "world_size") for keys in inside}
    return {size for size in found if type(size) is int and size > 0}
