"""A step folder that holds checkpoints of known formats in folders of its own.

``model/`` and ``optimizer/`` as DCP, a folder per role, what a trainer handed to Ray Train. All of them must hold, and state
the same step.
"""

from __future__ import annotations

from sentinel.checkpoints.files import Broken, Tree
from sentinel.checkpoints.formats import dcp as dcp_format
from sentinel.checkpoints.formats import (
    deepspeed,
    megatron,
    nemo,
    one_save,
    safetensors_set,
    torch_file,
    torch_folder,
)
from sentinel.checkpoints.formats.base import Ask, Finding, Format, refuse_links
from sentinel.checkpoints.formats.huggingface import hf_trainer
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

NAME = "nested"
_INSIDE: tuple[Format, ...] = (hf_trainer, megatron, deepspeed, nemo, dcp_format, safetensors_set)
_MOST = 64  # folders inside that are looked at


def _inside(tree: Tree) -> dict[str, Format]:
    """Folder directly inside -> its format. None of them is a checkpoint of a step of its own."""
    found: dict[str, Format] = {}
    names = {name.partition("/")[0] for name in tree.files if "/" in name}
    if len(names) > _MOST or any(step_of(name) is not None or number_of(name) is not None for name in names):
        return {}
    for folder in sorted(names):
        inner = tree.below(folder)
        known = next((format_ for format_ in _INSIDE if format_.recognise(inner)), None)
        if known is not None:
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
        found = known.check(inner, ask)
        if known is dcp_format or known is safetensors_set:
            one_save.check_optimizers(inner, torch_file.check_extras(inner, ask, found))
        whole.works = [*whole.works, *found.works]
        whole.unsummed += [f"{folder}/{name}" for name in found.unsummed]
        whole.covered |= {f"{folder}/{name}" for name in found.covered}
        whole.owners |= found.owners
        whole.world_size = max(whole.world_size or 0, found.world_size or 0) or None
        if found.step is not None:
            steps[folder] = found.step
    if len(set(steps.values())) > 1:
        low, high = min(steps, key=lambda name: steps[name]), max(steps, key=lambda name: steps[name])
        raise Broken(f"{visible(low)} is of step {steps[low]}, {visible(high)} of step {steps[high]}: two saves mixed")
    whole.step = next(iter(steps.values()), None)
    rest = Tree(tree.root, {n: e for n, e in tree.files.items() if n.partition("/")[0] not in inside or "/" not in n})
    one_save.check_optimizers(tree, torch_folder.check_loose(rest, ask, whole))
    return whole
