"""What the folders of the Hugging Face Trainer and of Accelerate have in common: torch files, and folders of FSDP and
DeepSpeed inside."""

from __future__ import annotations

import os
import re

from sentinel.checkpoints.files import Tree, visible
from sentinel.checkpoints.formats import safetensors_set, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, neighbours, unfinished
from sentinel.checkpoints.work import Work

PICKLED_INDEX = "pytorch_model.bin.index.json"
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.bin")
_FSDP_RANK = re.compile(r"(.*_fsdp_\d+_rank|.*_fsdp_rank)(\d+)\.bin")


def beside(tree: Tree) -> tuple[str, set[str]]:
    """The nearest step beside this one and its files; none where there is none."""
    for folder in neighbours(tree.root, 1):
        try:
            with os.scandir(folder) as entries:
                return folder.name, {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        except OSError:
            break
    return "", set()


def folders(tree: Tree) -> list[str]:
    """Folders that FSDP or DeepSpeed wrote inside."""
    found = {name.rpartition("/")[0] for name in tree.files if name.endswith((".distcp", "/.metadata"))}
    found |= {name for name in tree.folders if "/" not in name and re.fullmatch(r"global_step\d+", name)}
    found |= {name.partition("/")[0] for name in tree.files if re.fullmatch(r"[^/]+/latest", name)}
    return sorted(name for name in found if name)


def check_pickled(tree: Tree, ask: Ask, finding: Finding, works: list[Work]) -> dict[str, torch_file.TorchFile]:
    """All torch files directly in the folder; a model in numbered files against its index; files of ranks without a hole."""
    files: dict[str, torch_file.TorchFile] = {}
    for name in sorted(tree.files):
        if "/" not in name and name.endswith((".pt", ".pth", ".bin")):
            files[name] = torch_file.check_file(tree, name, ask)
            works += files[name].works
            (finding.covered.add if files[name].summed else finding.unsummed.append)(name)
    numbered = [m for name in files if (m := _NUMBERED.fullmatch(name))]
    if PICKLED_INDEX in tree.files:
        held = {name: set(f.value) for name, f in files.items() if isinstance(f.value, dict)}
        safetensors_set.check_index(tree, ask, PICKLED_INDEX, held)
    elif numbered:
        raise unfinished(tree, ask, f"{PICKLED_INDEX} is missing: the save did not finish")
    for stem, _, total in (m.groups() for m in numbered):
        for index in range(1, int(total) + 1):
            needed = f"{stem}-{index:05d}-of-{total}.bin"
            if needed not in files:
                raise unfinished(tree, ask, f"{visible(needed)} is missing")
    _holes(tree, ask, files)
    return files


def _holes(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile]) -> None:
    ranks: dict[str, set[int]] = {}
    for name in files:
        match = _FSDP_RANK.fullmatch(name)
        if match:
            ranks.setdefault(match.group(1), set()).add(int(match.group(2)))
    for stem, found in ranks.items():
        missing = set(range(max(found) + 1)) - found
        if missing and not ask.part:
            raise unfinished(tree, ask, f"{visible(stem)}{min(missing)}.bin is missing")
