"""DeepSpeed's universal checkpoint: ``zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt`` beside the model states.

It is made from an ordinary one by a program of its own and loads at any number of ranks. Every parameter that the model
states name must have its folder, and every folder the same files as the others.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import one_save, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links, unfinished
from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.checkpoints.reading import Work
from sentinel.inert_pickle import Opaque
from sentinel.text import visible

NAME = "deepspeed_universal"
_PARAMETER = re.compile(r"zero/(.+)/([^/]+)\.pt")
_WEIGHT = "fp32"
_MOMENTS = frozenset(("exp_avg", "exp_avg_sq"))  # of Adam: both or none

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and "zero" in tree.folders and any(_PARAMETER.fullmatch(name) for name in tree.files)


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    kinds: dict[str, set[str]] = {
        folder.removeprefix("zero/"): set() for folder in tree.folders if folder.startswith("zero/")
    }
    finding = Finding()
    works: list[Work] = []
    states: list[TorchFile] = []
    for name in sorted(tree.files):
        if not name.endswith(".pt"):
            continue
        match = _PARAMETER.fullmatch(name)
        if match:
            kinds.setdefault(match.group(1), set()).add(match.group(2))
        file = torch_file.check_file(tree, name, ask)
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
        if "/" not in name and name.endswith("model_states.pt"):
            states.append(file)
    if not states:
        raise unfinished(tree, ask, "no model states: it was not finished")
    every = set().union(*kinds.values()) | {_WEIGHT}
    for parameter, mine in sorted(kinds.items()):
        if mine != every and not _holds_folders(parameter, kinds):
            raise unfinished(tree, ask, f"{min(every - mine)}.pt of {visible(parameter)} is missing")
    if every == {_WEIGHT} or len(every & _MOMENTS) == 1:
        raise NotKnown("weights without the whole state of an optimizer: half deleted, or for inference only")
    named = {name for file in states for name in _parameters(file)}
    if named & kinds.keys() and named - kinds.keys():
        raise unfinished(tree, ask, f"the parameter {visible(min(named - kinds.keys()))} is missing")
    steps = {step for file in states if type(step := file.get("global_steps")) is int}
    if len(steps) > 1:
        raise Broken(f"the model states are of different steps: {sorted(steps)[:4]}")
    finding.step = next(iter(steps), None)
    changing = [name for name in tree.files if (match := _PARAMETER.fullmatch(name)) and match.group(2) != "step"]
    one_save.refuse_older(tree, changing)
    # Weights and moments change in every step: one that is that of another save shows that two were mixed.
    finding.works = [*works, Work(0, lambda _: one_save.refuse_mixed(tree, ask, changing))]
    return finding


def _holds_folders(folder: str, kinds: dict[str, set[str]]) -> bool:
    """Whether it only leads to the folders of parameters."""
    return not kinds[folder] and any(other.startswith(folder + "/") for other in kinds)


def _parameters(file: TorchFile) -> set[str]:
    """The names of the parameters whose shapes the model states list."""
    groups = file.get("param_shapes")
    found: set[str] = set()
    for group in groups if isinstance(groups, list) else [groups]:
        if isinstance(group, Opaque) and group.items:
            names = [item[0] for item in group.items if isinstance(item, tuple)]
        else:
            names = list(group) if isinstance(group, dict) else []
        found |= {name for name in names if isinstance(name, str)}
    return found
