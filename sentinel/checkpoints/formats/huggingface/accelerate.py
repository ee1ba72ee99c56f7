"""What Hugging Face Accelerate's ``save_state`` leaves: a model, optimizers, schedulers, and ``random_states_<rank>.pkl``.

Each rank writes its random state after everything else, so they are the end markers; they must be 0..W-1, and W is
written nowhere: it is compared with the folder beside. The model may be safetensors, ``pytorch_model.bin``, or a folder of
FSDP (DCP) or DeepSpeed.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import dcp, deepspeed, safetensors_set, torch_file, tracked
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.huggingface import counted_steps, hf_inside, names
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.text import visible

NAME = "accelerate"
_MODEL = re.compile(r"(pytorch_)?model.*\.(bin|safetensors)|.*fsdp.*\.bin")  # a hook's, too

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and any(names.RANDOM_STATES.fullmatch(name) for name in tree.files)


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    ranks = {int(m.group(1)): name for name in tree.files if (m := names.RANDOM_STATES.fullmatch(name))}
    hole = first_hole(ranks, 0, max(ranks) + 1)
    if hole is not None and not ask.part:
        raise unfinished(tree, ask, f"random_states_{hole}.pkl is missing")
    works, weights = safetensors_set.check_models(tree, ask)
    finding = Finding(works=works, unsummed=list(weights))
    random_states: dict[str, torch_file.TorchFile] = {}
    for name in sorted(ranks.values()):
        file = random_states[name] = hf_inside.check_last(tree, name, ask)
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    files = hf_inside.check_pickled(tree, ask, finding, works)
    inner = hf_inside.folders(tree)
    finding.inside = set(inner)
    for folder in inner:
        found = _inside(tree.below(folder), ask)
        works += list(found.works)
        finding.unsummed += [f"{folder}/{name}" for name in found.unsummed]
        finding.covered |= {f"{folder}/{name}" for name in found.covered}
    models = [name for name in (*weights, *files) if _MODEL.fullmatch(name)]
    parts = hf_inside.check_other_models(tree, ask, files, finding, works, alone=not (inner or weights or models))
    if "scheduler.bin" in tree.files:
        hf_inside.refuse_without_optimizer(tree, "scheduler.bin")
    json_files.check_read_at_resume(tree)
    # The main process writes model, optimizers, schedulers, samplers and scaler, and then its random state.
    hf_inside.written_before(tree, ranks[min(ranks)])
    _same_step(random_states)
    counted_steps.refuse_others(tree, ask, {**files, **random_states}, ranks[min(ranks)])
    if parts or not models:
        hf_inside.check_one_save_of_a_hook(tree, ask, files, [*weights, *parts])
    else:
        hf_inside.check_one_save(tree, ask, files, weights)
    _as_beside(tree, len(ranks))
    finding.works = works
    extras.check(tree, ask, finding, perhaps_anothers=True)
    return finding


def _same_step(files: dict[str, torch_file.TorchFile]) -> None:
    """Every rank states the same number of steps beside its random state."""
    steps = {name: step for name, file in files.items() if type(step := file.get("step")) is int}
    if len(set(steps.values())) > 1:
        low, high = min(steps, key=lambda name: steps[name]), max(steps, key=lambda name: steps[name])
        raise Broken(f"{low} is of step {steps[low]}, {high} of step {steps[high]}: two saves mixed")


def _inside(tree: Tree, ask: Ask) -> Finding:
    if tracked.recognise(tree):
        return tracked.check(tree, ask)
    return deepspeed.check(tree, ask) if deepspeed.recognise(tree) else dcp.check(tree, ask)


def _as_beside(tree: Tree, ranks: int) -> None:
    """One that lacks a file of Accelerate's which the step beside it has is doubtful; of others every step must have it."""
    mine = {name for name in tree.files if "/" not in name}
    beside, theirs = hf_inside.beside(tree)
    usual = sum(bool(names.RANDOM_STATES.fullmatch(file)) for file in theirs)
    lacking = sorted(name for name in theirs - mine if names.OWN.fullmatch(name))
    if usual and (lacking or usual > ranks):
        raise NotKnown(f"{visible((lacking or ['a rank'])[0])} is missing, which {visible(beside)} has: half deleted?")
