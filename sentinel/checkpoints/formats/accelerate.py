"""What Hugging Face Accelerate's ``save_state`` leaves: a model, optimizers, schedulers, and ``random_states_<rank>.pkl``.

Each rank writes its random state after everything else, so they are the end markers; they must be 0..W-1, and W is
written nowhere: it is compared with the folder beside. The model may be safetensors, ``pytorch_model.bin``, or a folder of
FSDP (DCP) or DeepSpeed.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import dcp, deepspeed, hf_inside, one_save, safetensors_set, torch_file, tracked
from sentinel.checkpoints.formats.base import Ask, Finding, newer_than, no_owners, refuse_links, unfinished
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.content import Role
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

NAME = "accelerate"
_RANDOM = re.compile(r"random_states_(\d+)\.pkl")
_MODEL = re.compile(r"(pytorch_)?model.*\.(bin|safetensors)|.*fsdp.*\.bin")
# As Diffusers and PEFT name a part's weights in its folder; what else lies in folders is another program's.
_PART = re.compile(r".+/(?:(?:diffusion_)?(?:pytorch_)?model|adapter_model|[^/]*lora[^/]*)[^/]*\.(?:bin|safetensors)")
_ANY_STATE = re.compile(r".+/[^/]+\.(?:pt|pth|bin|safetensors)")

_BEFORE_RANDOM = re.compile(
    r"[^/]+\.safetensors|[^/]+\.index\.json|(pytorch_model|optimizer|scheduler|sampler|dl_state_dict)[^/]*\.bin|scaler\.pt"
)

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and any(_RANDOM.fullmatch(name) for name in tree.files)


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    ranks = {int(m.group(1)): name for name in tree.files if (m := _RANDOM.fullmatch(name))}
    hole = first_hole(ranks, 0, max(ranks) + 1)
    if hole is not None and not ask.part:
        raise unfinished(tree, ask, f"random_states_{hole}.pkl is missing")
    works, names = safetensors_set.check_models(tree, ask)
    finding = Finding(works=works, unsummed=list(names))
    random_states: dict[str, torch_file.TorchFile] = {}
    for name in sorted(ranks.values()):
        file = random_states[name] = torch_file.check_file(tree, name, ask)
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    files = hf_inside.check_pickled(tree, ask, finding, works)
    inner = hf_inside.folders(tree)
    for folder in inner:
        found = _inside(tree.below(folder), ask)
        works += list(found.works)
        finding.unsummed += [f"{folder}/{name}" for name in found.unsummed]
        finding.covered |= {f"{folder}/{name}" for name in found.covered}
    models = [name for name in (*names, *files) if _MODEL.fullmatch(name)]
    of_libraries = bool(inner or names or models)
    parts = _parts_of_a_pipeline(tree, ask, inner, finding, works, _PART if of_libraries else _ANY_STATE)
    if not of_libraries:
        parts += [name for name in files if torch_file.file_role(name) is Role.UNDECIDED]
        if not parts:
            raise Broken("no model in it: neither safetensors, nor .bin, nor a folder of FSDP or DeepSpeed")
        hf_inside.refuse_untrained(tree, files, parts)
    json_files.check_read_at_resume(tree)
    _written_first(tree, ranks[min(ranks)])
    _same_step(random_states)
    if parts or not models:
        _one_save_of_a_hook(tree, files, [*names, *parts])
    else:
        hf_inside.check_one_save(tree, files, names)
    _as_beside(tree, len(ranks))
    finding.works = works
    return finding


def _parts_of_a_pipeline(
    tree: Tree, ask: Ask, others: list[str], finding: Finding, works: list[Work], named: re.Pattern[str]
) -> list[str]:
    """The models in folders, as a hook saves each part of Diffusers' pipelines (``unet/``, ``unet_ema/``).

    ``named``: what they may be called; a hook of one's own, where the libraries saved no model, names them as it likes.
    """
    parts = [name for name in sorted(tree.files) if named.fullmatch(name)]
    parts = [name for name in parts if not any(name.startswith(f"{other}/") for other in others)]
    parts = [name for name in parts if name.endswith(".safetensors") or torch_file.is_torch(tree, name)]
    for name in (name for name in parts if not name.endswith(".safetensors")):
        file = torch_file.check_file(tree, name, ask)
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    for folder in sorted({name.rpartition("/")[0] for name in parts if name.endswith(".safetensors")}):
        more, inside = safetensors_set.check_models(tree.below(folder), ask)
        works += more
        finding.unsummed += [f"{folder}/{name}" for name in inside]
    return parts


def _one_save_of_a_hook(tree: Tree, files: dict[str, torch_file.TorchFile], saved: list[str]) -> None:
    """A hook may save a part of what the optimizer trains, under other names and shapes; adapters are always trained."""
    one_save.refuse_lost_state(tree, files)
    trained = [name for name in files if name.startswith("optimizer")]
    one_save.refuse_mixed(tree, [*trained, *(name for name in saved if "lora" in name)], saved)


def _written_first(tree: Tree, marker: str) -> None:
    """The main process writes model, optimizers, schedulers, samplers and scaler, and then its random state."""
    saved = [name for name in tree.files if name.endswith(".distcp") or _BEFORE_RANDOM.fullmatch(name)]
    newer_than(tree, saved, marker)
    one_save.refuse_older(tree, [*saved, marker], marker)
    if not any("/" in name for name in saved):
        one_save.refuse_pause(tree, [*saved, marker])


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
    """One that lacks what the step beside it has is doubtful."""
    mine = {name for name in tree.files if "/" not in name}
    name, theirs = hf_inside.beside(tree)
    usual = sum(bool(_RANDOM.fullmatch(file)) for file in theirs)
    lacking = sorted(n for n in theirs - mine if n.endswith((".bin", ".safetensors", ".pkl")))
    if usual and (lacking or usual > ranks):
        raise NotKnown(f"{visible((lacking or ['a rank'])[0])} is missing, which {visible(name)} has: half deleted?")
