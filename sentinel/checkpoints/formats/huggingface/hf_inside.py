"""What the folders of the Hugging Face Trainer and of Accelerate have in common: torch files, and folders of FSDP and
DeepSpeed inside."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sentinel.checkpoints.files import Broken, Foreign, NotKnown, TooLarge, Tree, opened
from sentinel.checkpoints.formats import one_save, safetensors_file, safetensors_set, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, neighbours, newer_than, unfinished
from sentinel.checkpoints.formats.beside.trained import Trained, moments_of
from sentinel.checkpoints.formats.dcp_parts.pieces import Shape
from sentinel.checkpoints.formats.huggingface import names
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.content import Role
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

PICKLED_INDEX = "pytorch_model.bin.index.json"
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.bin")
# As llama.cpp's files begin (ggml's numbers), and CTranslate2's: a version, and the length and name of a model's kind.
_OTHER_PROGRAMS = re.compile(rb"lmgg|fmgg|tjgg|algg|GGUF|[\x01-\x0f]\0\0\0[\x01-\xff]\0[A-Za-z]{4}", re.DOTALL)
# As Diffusers and PEFT name a model's weights in its folder; what else lies in folders is another program's.
_IN_FOLDER = re.compile(
    r".+/(?:(?:diffusion_)?(?:pytorch_)?model|adapter_model|[^/]*lora[^/]*)[^/]*\.(?:bin|safetensors)"
)
ADAPTER = re.compile(r"[^/]+/adapter_model\.(?:bin|safetensors)")
_ANY_STATE = re.compile(r".+/[^/]+\.(?:pt|pth|bin|safetensors)|(?:.+/)?[^/]+\.(?:ckpt|tar)")
_PROGRAM = re.compile(r".+\.(?:pt|pth|bin|ckpt|ts|jit|ptl|torchscript)")  # as people call TorchScript's files
# What else a model may be kept in, of which nothing is read beside the libraries' files.
_NOT_READ = re.compile(r"(?!.*random_states_\d+\.pkl$).+\.(?:pkl|pickle|msgpack|npz|npy|h5|hdf5|gguf|tar|pt2|onnx|ort)")


def written_before(tree: Tree, marker: str) -> None:
    """Refuse a save of which a file was written after the one that ends it, or long before.

    A file under a name that the libraries do not write may have been added by a user later, as may one that was gathered
    from shards: that is not known.
    """
    saved = [name for name in tree.files if names.BEFORE_END.fullmatch(name)]
    gathered = bool(folders(tree))
    added = [
        name
        for name in saved
        if not names.OWN_BEFORE_END.fullmatch(name) or (gathered and names.OWN_WEIGHTS.fullmatch(name))
    ]
    newer_than(tree, (name for name in saved if name not in added), marker)
    try:
        newer_than(tree, added, marker)
    except Broken as error:
        raise NotKnown(f"{error.reason}, or added later?") from None
    one_save.refuse_older(tree, [*saved, marker], marker)
    if not any("/" in name for name in saved):
        one_save.refuse_pause(tree, [*saved, marker])


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
        custom = names.CUSTOM.fullmatch(name) is not None
        if custom or ("/" not in name and name.endswith((".pt", ".pth", ".bin"))):
            if not (names.OWN.fullmatch(name) or torch_file.is_torch(tree, name)):
                _refuse_damaged_start(tree, name)
                continue
            try:
                files[name] = (check_last if custom else torch_file.check_file)(tree, name, ask)
            except Foreign:
                continue
            _as_named(files[name])
            works += files[name].works
            (finding.covered.add if files[name].summed else finding.unsummed.append)(name)
    numbered = [m for name in files if (m := _NUMBERED.fullmatch(name))]
    if PICKLED_INDEX in tree.files:
        held = {name: set(f.value) for name, f in files.items() if isinstance(f.value, dict)}
        safetensors_set.check_index(tree, ask, PICKLED_INDEX, held)
        newer_than(tree, [name for name in files if _NUMBERED.fullmatch(name)], PICKLED_INDEX)
    elif numbered:
        raise unfinished(tree, ask, f"{PICKLED_INDEX} is missing: the save did not finish")
    for stem, _, total in (m.groups() for m in numbered):
        for index in range(1, int(total) + 1):
            needed = f"{stem}-{index:05d}-of-{total}.bin"
            if needed not in files:
                raise unfinished(tree, ask, f"{visible(needed)} is missing")
    _holes(tree, ask, files)
    return files


def check_last(tree: Tree, name: str, ask: Ask) -> torch_file.TorchFile:
    """A file that Accelerate writes when all others are there: a rank's random state, an object that a program registered.

    Such an object may keep more than is taken into memory, a dataset's order for one.
    """
    try:
        return torch_file.check_file(tree, name, ask)
    except TooLarge:
        return torch_file.check_records(tree, name, ask)
    except Broken as error:
        raise unfinished(tree, ask, error.reason) from None


def _refuse_damaged_start(tree: Tree, name: str) -> None:
    """`NotKnown` for what does not begin as torch's file, and is not shown to be another program's.

    Some are known by their first bytes; others begin alike in the save beside, which damage does not.
    """
    start = _start(tree.path(name), name)
    if _OTHER_PROGRAMS.match(start) or any(start[:4] == _start(at / name, name)[:4] for at in neighbours(tree.root, 2)):
        return
    raise NotKnown(f"{visible(name)} does not begin as a file of torch.save: another program's, or damaged")


def _start(path: Path, name: str) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    try:
        with opened(path, name) as handle:
            return handle.read(0, min(16, handle.size))
    except NotKnown:
        return b""


def _as_named(file: torch_file.TorchFile) -> None:
    """`NotKnown` for an optimizer's file that holds no state of one, and for a model's that does."""
    if not isinstance(file.value, dict):
        return
    of_optimizer = isinstance(file.value.get("state"), dict) or "param_groups" in file.value
    if names.OPTIMIZER.fullmatch(file.name) and not of_optimizer:
        raise NotKnown(f"{visible(file.name)} holds no state of an optimizer: another file under its name?")
    if file.name.startswith("pytorch_model") and of_optimizer:
        raise NotKnown(f"{visible(file.name)} holds the state of an optimizer: another file under its name?")


def _holes(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile]) -> None:
    ranks: dict[str, set[int]] = {}
    for name in files:
        match = names.OF_A_RANK.fullmatch(name)
        if match:
            ranks.setdefault(match.group(1), set()).add(int(match.group(2)))
    for stem, found in ranks.items():
        hole = first_hole(found, 0, max(found) + 1)
        if hole is not None and not ask.part:
            raise unfinished(tree, ask, f"{visible(stem)}{hole}.bin is missing")


def check_one_save(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile], models: list[str]) -> None:
    """Model, optimizer and random states are of one save, as far as that can be shown; the optimizer is this model's."""
    if any(names.OF_A_RANK.fullmatch(name) for name in files):
        return  # each rank's file holds a stretch of all parameters, whose shapes are not in it
    one_save.refuse_lost_state(tree, files)
    models = [*models, *(name for name in files if name.startswith("pytorch_model"))]
    every_optimizer = [name for name in files if names.OPTIMIZER.fullmatch(name)]
    optimizers = [name for name in every_optimizer if _has_state(files[name])]
    trained = Trained(tree, files, every_optimizer, models)
    sizes = trained.sizes_of(models)
    parameters = sum(one_save.parameters(files[name].value) for name in optimizers)
    # Where parts of the model are frozen, their files are the same in every save; in 16 bits a step may change nothing.
    whole = parameters and parameters >= sizes.total()
    must_change = [*optimizers, *(models if whole or (trained.all_here() and trained.exact()) else ())]
    one_save.refuse_mixed(tree, ask, must_change, models, explains=trained.explains)
    randoms = [name for name in tree.files if names.RANDOM.fullmatch(name)]
    one_save.refuse_mixed(tree, ask, randoms)
    for name in optimizers if models else ():
        _of_this_model(files[name], sizes)


def _has_state(file: torch_file.TorchFile) -> bool:
    return bool(file.get("state"))


def refuse_without_optimizer(tree: Tree, schedule: str) -> None:
    """`NotKnown` for the schedule of an optimizer that is not there, in whatever file or folder.

    DeepSpeed without ZeRO keeps it in the model's file.
    """
    if not any("optim" in name.lower() or name.endswith("_model_states.pt") for name in (*tree.files, *tree.links)):
        raise NotKnown(f"{schedule} is there and no optimizer: half deleted?")


def lacks_moments(file: torch_file.TorchFile) -> bool:
    """Whether an optimizer of Adam's kind has parameters and no state: as before its first step."""
    groups = file.get("param_groups")
    groups = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return file.get("state") == {} and any("betas" in group and group.get("params") for group in groups)


def check_other_models(
    tree: Tree,
    ask: Ask,
    files: dict[str, torch_file.TorchFile],
    finding: Finding,
    works: list[Work],
    *,
    alone: bool,
    named: re.Pattern[str] = _IN_FOLDER,
) -> list[str]:
    """The models in folders: parts of Diffusers' pipelines (``unet/``, ``unet_ema/``), PEFT's adapters with names.

    ``alone``: the libraries saved no other model; then whatever else is a state must be it, under the name of somebody's.
    """
    states = [name for name in sorted(tree.files) if (_ANY_STATE if alone else named).fullmatch(name)]
    of_shards = tuple(f"{folder}/" for folder in folders(tree))
    states = [name for name in states if not name.startswith(of_shards)]
    found = [name for name in states if name.endswith(".safetensors") or torch_file.is_torch(tree, name)]
    models, broken = _check_each(tree, ask, found, finding, works)
    if alone:
        # An average of the model may be among the objects that a program registered, and is not the model.
        others = [name for name in files if not names.CUSTOM.fullmatch(name)]
        models += [name for name in others if torch_file.file_role(name) is Role.UNDECIDED]
    for name, error in broken.items():
        if alone and (not models or _IN_FOLDER.fullmatch(name)):
            raise error
        raise NotKnown(error.reason) from None  # it may be an export: what is invalid is moved aside
    programs = check_programs(tree, ask, finding, works) if alone and not models else {}
    models += programs
    if alone and not models:
        unread = next((name for name in sorted(tree.files) if _NOT_READ.fullmatch(name)), None)
        if unread is not None:
            raise NotKnown(f"no model in it that is read: {visible(unread)} may be one")
        raise unfinished(tree, ask, "no model in it: neither safetensors, nor .bin, nor a folder of FSDP or DeepSpeed")
    if alone:
        _refuse_untrained(tree, files, models, programs)
    return models


def check_programs(tree: Tree, ask: Ask, finding: Finding, works: list[Work]) -> dict[str, torch_file.TorchFile]:
    """Models that somebody saved as TorchScript: whole. Beside any other model such a file is an export."""
    found: dict[str, torch_file.TorchFile] = {}
    for name in sorted(name for name in tree.files if _PROGRAM.fullmatch(name)):
        if not zips.looks_like_zip(_start(tree.path(name), name)):
            continue
        try:
            torch_file.check_file(tree, name, Ask("structural", 0.0))
            continue  # a state of something else
        except Foreign:
            pass
        except Broken as error:
            raise NotKnown(error.reason) from None
        try:
            file = found[name] = torch_file.check_program(tree, name, ask)
        except Broken as error:  # it may be an export: what is invalid is moved aside
            raise NotKnown(error.reason) from None
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    return found


def _check_each(
    tree: Tree, ask: Ask, states: list[str], finding: Finding, works: list[Work]
) -> tuple[list[str], dict[str, Broken]]:
    """The whole ones of these models, and what is wrong with the others; an exported program is none."""
    whole: list[str] = []
    broken: dict[str, Broken] = {}
    for name in (name for name in states if not name.endswith(".safetensors")):
        try:
            file = torch_file.check_file(tree, name, ask)
        except Foreign:
            continue
        except Broken as error:
            broken[name] = error
            continue
        works += file.works
        whole.append(name)
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    folders_of: dict[str, list[str]] = {}
    for name in (name for name in states if name.endswith(".safetensors")):
        folders_of.setdefault(name.rpartition("/")[0], []).append(name)
    for folder, inside in sorted(folders_of.items()):
        try:
            more, held = safetensors_set.check_models(tree.below(folder), ask)
        except Broken as error:
            broken[inside[0]] = error
            continue
        works += more
        whole += inside
        finding.unsummed += [f"{folder}/{name}" for name in held]
    return whole, broken


def check_one_save_of_a_hook(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile], saved: list[str]) -> None:
    """A hook may save a part of what the optimizer trains, under other names and shapes; adapters are always trained."""
    one_save.refuse_lost_state(tree, files)
    trained = [name for name in files if name.startswith("optimizer")]
    of_a_hook = Trained(tree, files, trained, saved)
    must_change = [*trained, *(name for name in saved if "lora" in name)]
    one_save.refuse_mixed(tree, ask, must_change, saved, explains=of_a_hook.explains)


def _refuse_untrained(
    tree: Tree,
    files: dict[str, torch_file.TorchFile],
    models: list[str],
    programs: Mapping[str, torch_file.TorchFile],
) -> None:
    """`NotKnown` where no tensor of these models has a shape that the optimizer trains: they are another program's."""
    moments = set().union(*(moments_of(file.opened, file.get("state")) for file in files.values()))
    only_shapes = Ask("structural", 0.0)
    held = {
        name: programs.get(name) or torch_file.check_file(tree, name, only_shapes)
        for name in models
        if not name.endswith(".safetensors")
    }
    sizes = _model_sizes(tree, held, models)
    listed = all(file.opened for file in held.values())  # torch's older format is not gone through for tensors
    if (listed and not sizes) or (moments and sizes and moments.isdisjoint(sizes)):
        raise NotKnown(f"{visible(models[0])} has no shape of those that the optimizer trains: the model is missing?")


def _model_sizes(tree: Tree, files: dict[str, torch_file.TorchFile], models: list[str]) -> Counter[Shape]:
    """The shapes of all tensors of the models."""
    sizes: list[Shape] = []
    for name in models:
        if name in files:
            opened = files[name].opened
            sizes += [tensor.size for tensor in opened.pickled.tensors] if opened else []
        elif name in tree.files:
            sizes += safetensors_file.shapes(tree, name)
    return Counter(sizes)


def _of_this_model(file: torch_file.TorchFile, sizes: Counter[Shape]) -> None:
    """`NotKnown` for an optimizer whose moments have shapes that no tensor of the model has: it is another model's.

    Each parameter may be in the model under several names, but not under none.
    """
    moments = moments_of(file.opened, file.get("state"))
    foreign = {shape for shape, count in moments.items() if count > sizes[shape]} if sizes else set()
    if foreign:
        raise NotKnown(
            f"{visible(file.name)} has moments of shape {min(foreign)} for {moments[min(foreign)]} parameters,"
            f" the model has {sizes[min(foreign)]} of that shape: of another model?"
        )
