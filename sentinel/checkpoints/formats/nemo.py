"""NeMo 2 and Lightning's sharded checkpoints.

NeMo: ``<name>/weights`` (DCP) beside ``context``; a file ``<name>-unfinished`` next to the folder exists from before
the save, or the deletion, until after it. Lightning: a folder with DCP files and ``meta.pt``.
"""

from __future__ import annotations

import os

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats import dcp, megatron, safetensors_set, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.parsing import json_files

NAME = "nemo"


def recognise(tree: Tree) -> bool:
    if tree.single:
        return False
    weights = "weights" in tree.folders and ("context" in tree.folders or dcp.recognise(tree.below("weights")))
    return weights or ("meta.pt" in tree.files and dcp.recognise(tree))


def owners_by_name(tree: Tree) -> frozenset[int]:
    return dcp.owners_by_name(tree.below("weights") if "weights" in tree.folders else tree)


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    if os.path.lexists(unfinished_marker(tree)):
        raise unfinished(
            tree, ask, f"{unfinished_marker(tree).rpartition('/')[2]} exists: a save or a deletion broke off"
        )
    inside = "weights" in tree.folders
    weights = tree.below("weights") if inside else tree
    prefix = "weights/" if inside else ""
    if dcp.recognise(weights):
        finding = dcp.check(weights, ask)
        megatron.check_common(weights, ask)
    elif safetensors_set.recognise(weights):
        finding = safetensors_set.check(weights, ask)
    else:
        raise unfinished(tree, ask, "no weights in it: the save did not finish")
    json_files.check_read_at_resume(tree)
    finding.inside = {"weights"} if inside else set()
    finding.unsummed = [prefix + name for name in finding.unsummed]
    finding.covered = {prefix + name for name in finding.covered}
    for name in ("meta.pt", "weights/common.pt"):
        if name in tree.files:
            file = torch_file.check_file(tree, name, ask)
            finding.works = [*finding.works, *file.works]
            (finding.covered.add if file.summed else finding.unsummed.append)(name)
            steps = set(file.steps())
            if finding.step is None and len(steps) == 1:
                finding.step = steps.pop()
    extras.check(tree, ask, finding)
    if inside and "context" in tree.folders and not any(name.startswith("context/") for name in tree.files):
        raise NotKnown("its context folder is empty: being written or deleted")
    return finding


def unfinished_marker(tree: Tree) -> str:
    """Where NeMo puts the marker: beside the folder, without .ckpt and -EMA."""
    name = tree.root.name
    name = name.removesuffix(".ckpt").removesuffix("-EMA")
    return str(tree.root.parent / f"{name}-unfinished")
