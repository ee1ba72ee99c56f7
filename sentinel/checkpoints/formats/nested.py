"""A step folder that holds checkpoints of known formats in folders of its own.

``model/`` and ``optimizer/`` as DCP, a folder per role, what a trainer handed to Ray Train, Accelerate's state some folders
deep. All of them must hold, and state the same step.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import dcp as dcp_format
from sentinel.checkpoints.formats import (
    deepspeed,
    marks,
    megatron,
    nemo,
    one_save,
    safetensors_set,
    torch_folder,
    tracked,
)
from sentinel.checkpoints.formats.base import Ask, Finding, Format, refuse_links
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.huggingface import accelerate, hf_trainer
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

NAME = "nested"
_MARKED: tuple[Format, ...] = (hf_trainer, accelerate, tracked, megatron, deepspeed, nemo, dcp_format)
_TEXTS = (".json", ".txt", ".md", ".jinja", ".yaml")  # no numbers are read of these
_MOST = 64  # folders inside that are looked at


def _inside(tree: Tree) -> dict[str, Format]:
    """Folder -> its format, of those directly inside and of marked ones further down; none is another step's."""
    names = {name.partition("/")[0] for name in tree.files if "/" in name}
    if len(names) > _MOST or any(step_of(name) is not None or number_of(name) is not None for name in names):
        return {}
    found = _recognised(tree, sorted(names), (*_MARKED, safetensors_set))
    try:
        marked = marks.folders(tree)
    except NotKnown:  # too many: no format is found by them
        marked = []
    for folder, known in _recognised(tree, marked, _MARKED).items():
        above = [folder[: match.start()] for match in re.finditer("/", folder)]
        if found.keys().isdisjoint(above):
            found.setdefault(folder, known)
    return found


def _recognised(tree: Tree, folders: list[str], formats: tuple[Format, ...]) -> dict[str, Format]:
    found: dict[str, Format] = {}
    for folder in folders:
        inner = tree.below(folder)
        known = next((format_ for format_ in formats if format_.recognise(inner)), None)
        if known is not None and marks.holds_state(inner):
            found[folder] = known
    return found


def recognise(tree: Tree) -> bool:
    return not tree.single and bool(_inside(tree))


def owners_by_name(tree: Tree) -> frozenset[int]:
    return frozenset(
        rank for folder, known in _inside(tree).items() for rank in known.owners_by_name(tree.below(folder))
    )


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    whole = Finding()
    inside = _inside(tree)
    steps: dict[str, int] = {}
    for folder, known in inside.items():
        inner = tree.below(folder)
        found = _checked(known, inner, ask, folder)
        if known is dcp_format or known is safetensors_set:
            extras.check(inner, ask, found)
        _add(whole, folder, found)
        whole.owners |= found.owners
        whole.world_size = max(whole.world_size or 0, found.world_size or 0) or None
        if found.step is not None:
            steps[folder] = found.step
    if len(set(steps.values())) > 1:
        low, high = min(steps, key=lambda name: steps[name]), max(steps, key=lambda name: steps[name])
        raise Broken(f"{visible(low)} is of step {steps[low]}, {visible(high)} of step {steps[high]}: two saves mixed")
    whole.step = next(iter(steps.values()), None)
    prefixes = tuple(f"{folder}/" for folder in inside)
    rest = Tree(tree.root, {name: entry for name, entry in tree.files.items() if not name.startswith(prefixes)})
    loose = torch_folder.check_loose(rest, ask, whole)
    one_save.check_optimizers(tree, ask, loose)
    torch_folder.check_states(tree, ask, loose)
    extras.check_unnamed(rest, ask, whole)
    return whole


def _checked(known: Format, inner: Tree, ask: Ask, folder: str) -> Finding:
    """What its format finds in a folder; further down it may be no part of this save, and what is invalid is moved aside."""
    try:
        return known.check(inner, ask)
    except Broken as error:
        if "/" not in folder:
            raise
        raise NotKnown(f"the save in {visible(folder)}: {error.reason}") from None


def check_inside(tree: Tree, ask: Ask, finding: Finding) -> None:
    """Saves in folders of another save are a part of it (an optimizer, an average, a critic), and looked at as such.

    Raises:
        NotKnown: one of them is not whole. It may be no part of this one: what is invalid is moved aside.
    """
    for folder, known in _recognised(tree, marks.folders(tree), _MARKED).items():
        if folder in finding.inside:
            continue
        inner = tree.below(folder)
        try:
            found = known.check(inner, ask)
        except (Broken, NotKnown) as error:
            raise NotKnown(f"the save in {visible(folder)}: {error.reason}") from None
        states = (name for name in inner.files if not name.endswith(_TEXTS))
        # The save around them reads these files; numbers are not looked at where it knows a file by its digest.
        if ask.level != "content" and all(f"{folder}/{name}" in finding.covered for name in states):
            found.works = ()
        _add(finding, folder, found)


def refuse_other_saves(tree: Tree) -> None:
    """
    Raises:
        NotKnown: folders in this one hold saves of steps, or numbered ones. Of these the files beside them say nothing.
    """
    top = {name.partition("/")[0] for name in tree.files if "/" in name}
    steps = {name: step_of(name) for name in top if step_of(name) is not None}
    numbers = {name: number_of(name) for name in top if not name.isdigit()}  # bare digits are ranks, too
    named = sorted(steps | {name: number for name, number in numbers.items() if number is not None})
    formats = (*_MARKED, safetensors_set, torch_folder)
    first = next((name for name in named if _recognised(tree, [name], formats)), None)
    if first is not None:
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        raise NotKnown(f"it holds saves in folders of their own ({visible(first)}{more}): name one, or all of them")


def _add(whole: Finding, folder: str, found: Finding) -> None:
    whole.inside |= {folder, *(f"{folder}/{name}" for name in found.inside)}
    whole.works = [*whole.works, *found.works]
    whole.unsummed += [f"{folder}/{name}" for name in found.unsummed]
    whole.covered |= {f"{folder}/{name}" for name in found.covered}
