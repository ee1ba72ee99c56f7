"""``checkpoint-N`` of the Hugging Face Trainer.

``trainer_state.json`` is written last and states the step. The folder is written in place; a save on SIGTERM marks it
with ``checkpoint-is-incomplete.txt``. The model may be safetensors, a pickled ``pytorch_model.bin``, or a folder that
FSDP (DCP) or DeepSpeed wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from sentinel.checkpoints.files import Broken, NotKnown, Tree, is_file
from sentinel.checkpoints.formats import (
    dcp,
    deepspeed,
    deepspeed_universal,
    marks,
    megatron,
    nemo,
    safetensors_set,
    torch_file,
    torch_folder,
    tracked,
)
from sentinel.checkpoints.formats.base import (
    Ask,
    Finding,
    Format,
    neighbours,
    no_owners,
    refuse_links,
    unfinished,
)
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.huggingface import hf_inside, names
from sentinel.checkpoints.formats.huggingface.names import STATE
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.content import Role
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.text import visible

NAME = "hf_trainer"
_STATE_LIMIT_BYTES = 24 << 20
_FOLDER = re.compile(r"checkpoint-(\d+)")
_OF_DEEPSPEED = re.compile(r"global_step\d+")
_BESIDE = 2
_MOST_FOLDERS = 64  # directly inside a save, that are looked at
# Other programs' saves may have the Trainer's name: then those formats know what they must hold.
_OTHERS: tuple[Format, ...] = (tracked, megatron, deepspeed_universal, deepspeed, nemo)

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    if tree.single:
        return False
    if STATE in tree.files:
        return True
    # Half deleted, half written; accelerate's own folders of that name keep random_states_<rank>.pkl and no state.
    if not _FOLDER.fullmatch(tree.root.name) or any(name.startswith("random_states_") for name in tree.files):
        return False
    if not any("/" not in name for name in _states(tree)) and marks.folders(tree, marks.LIBRARIES):
        return False  # a step of something else that keeps their saves in folders
    shards = [name for name in tree.files if name.endswith((".distcp", ".metadata"))]
    if not tree.files or any("/" not in name for name in shards):  # the Trainer's own FSDP keeps them in folders
        return False
    return _is_the_trainers(tree) or not (shards or _is_anothers(tree))


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    if names.INCOMPLETE in tree.files:
        raise unfinished(tree, ask, f"marked incomplete by the Trainer ({names.INCOMPLETE})")
    if STATE not in tree.files:
        return _without_state(tree, ask)
    step = _state(tree, ask)
    finding = Finding(step=step)
    works, weights = safetensors_set.check_models(tree, ask)
    finding.unsummed += weights
    files = hf_inside.check_pickled(tree, ask, finding, works)
    finding.inside = set(hf_inside.folders(tree))
    inner = [_inner(tree, folder, ask) for folder in sorted(finding.inside)]
    _refuse_unnamed(tree, ask, finding.inside, step)
    for part in inner:
        works += list(part.works)
        finding.unsummed += part.unsummed
    models = weights or inner or any("model" in name and name.endswith(".bin") for name in files)
    # PEFT writes the adapter "default" at the top, and the others into folders of their names.
    adapters = any(name.startswith("adapter_model.") for name in (*weights, *files))
    parts = []
    if adapters or not models:
        parts = hf_inside.check_other_models(
            tree, ask, files, finding, works, alone=not models, named=hf_inside.ADAPTER
        )
    _ranks(tree, ask, files)
    json_files.check_read_at_resume(tree)
    _same_step(tree, files, step)
    # But for the arguments, other ranks' random states and what is added later, the state is written last.
    hf_inside.written_before(tree, STATE)
    if parts and not (models and all(name.endswith(".safetensors") for name in parts)):
        hf_inside.check_one_save_of_a_hook(tree, ask, files, [*weights, *parts])
    else:
        hf_inside.check_one_save(tree, ask, files, [*weights, *parts])
    _as_beside(tree)
    finding.works = works
    extras.check(tree, ask, finding, perhaps_anothers=True)
    return finding


def _state(tree: Tree, ask: Ask) -> int:
    try:
        state = json_files.read(tree, STATE, _STATE_LIMIT_BYTES)
    except ValueError:
        raise unfinished(tree, ask, f"{STATE} is not JSON (cut short or damaged)") from None
    step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is not int or step < 0:
        raise Broken(f"{STATE} states no global_step")
    named = _FOLDER.fullmatch(tree.root.name)
    if named and int(named.group(1)) != step:
        raise Broken(f"{STATE} is of step {step}, the folder of step {named.group(1)}")
    history = state.get("log_history") if isinstance(state, dict) else None
    if isinstance(history, list):
        later = [e["step"] for e in history if isinstance(e, dict) and type(e.get("step")) is int and e["step"] > step]
        if later:
            raise Broken(f"{STATE} states step {step} but its history goes to step {max(later)}")
    return step


def _is_the_trainers(tree: Tree) -> bool:
    """By what only the Trainer writes (its arguments, before the optimizer), or by the saves beside."""
    if not {names.ARGUMENTS, names.INCOMPLETE}.isdisjoint(tree.files):
        return True
    return any(is_file(folder / STATE) for folder in neighbours(tree.root, _BESIDE))


def _is_anothers(tree: Tree) -> bool:
    return any(other.recognise(tree) for other in _OTHERS)


def _holds_others(tree: Tree) -> bool:
    """Whether a folder inside is another program's save, of which nothing here knows what it must hold."""
    folders = sorted(folder for folder in tree.folders if "/" not in folder)
    if len(folders) > _MOST_FOLDERS or hf_inside.folders(tree):
        return True
    return any(_is_anothers(tree.below(folder)) for folder in (*folders, *marks.folders(tree)))


def _without_state(tree: Tree, ask: Ask) -> Finding:
    """A save of the Trainer that did not finish, or one of a training loop that somebody wrote: with an optimizer."""
    states = _states(tree)
    trainers = _is_the_trainers(tree) or any(names.RNG_STATE.fullmatch(name) for name in states)
    trainers = trainers or all(torch_file.file_role(name) is not Role.UNDECIDED for name in states)
    if not trainers and not _holds_others(tree) and (found := torch_folder.check(tree, ask)).resumable:
        return found
    begun = any("/" not in name and torch_file.file_role(name) is not Role.UNDECIDED for name in states)
    begun = begun and (trainers or all(names.OWN.fullmatch(name) for name in states))
    if begun and (names.ARGUMENTS in tree.files or not _is_anothers(tree)):
        raise unfinished(tree, ask, f"{STATE} is missing: the save did not finish")
    raise NotKnown(f"{STATE} is missing: not a whole checkpoint of the Trainer, or one of something else")


def _states(tree: Tree) -> list[str]:
    return [name for name in tree.files if name.endswith((*torch_file.SUFFIXES, ".safetensors"))]


def _inner(tree: Tree, folder: str, ask: Ask) -> Finding:
    inner = tree.below(folder)
    if tracked.recognise(inner):
        found = tracked.check(inner, ask)
    else:
        found = deepspeed.check(inner, ask) if deepspeed.recognise(inner) else dcp.check(inner, ask)
    return Finding(
        works=found.works,
        unsummed=[f"{folder}/{name}" for name in found.unsummed],
        covered={f"{folder}/{name}" for name in found.covered},
    )


def _refuse_unnamed(tree: Tree, ask: Ask, inner: Collection[str], step: int) -> None:
    """Refuse a folder of DeepSpeed's that its ``latest`` does not name: a resume asks for none else, and dies without.

    Raises:
        Broken: it names nothing that is there; or `BeingWritten` where it may still be.
        NotKnown: there is none, or it names the folder of another step though this one's is there.
    """
    of_deepspeed = {folder for folder in inner if _OF_DEEPSPEED.fullmatch(folder)}
    if not of_deepspeed or (ask.part and tracked.DEEPSPEED not in tree.files):
        return
    if tracked.DEEPSPEED not in tree.files:
        raise NotKnown(
            f"{tracked.DEEPSPEED} is missing, by which DeepSpeed finds {visible(min(of_deepspeed))}: half deleted?"
        )
    named = tracked.named_by(tree.path(tracked.DEEPSPEED))
    if named is None:
        raise unfinished(tree, ask, f"{tracked.DEEPSPEED} names no folder")
    if named not in tree.folders:
        raise unfinished(tree, ask, f"{tracked.DEEPSPEED} names {visible(named)}, which is not there")
    mine = f"global_step{step}"
    if named != mine and mine in of_deepspeed:
        raise NotKnown(
            f"{tracked.DEEPSPEED} names {visible(named)}, beside which {mine} is of this step: two saves mixed"
        )


def _ranks(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile]) -> None:
    ranks = {int(m.group(1)) for name in tree.files if (m := names.RNG_STATE.fullmatch(name)) and m.group(1)}
    hole = first_hole(ranks, 0, max(ranks, default=-1) + 1)
    if hole is not None:
        raise unfinished(tree, ask, f"rng_state_{hole}.pth is missing")
    # The arguments keep the state of the processes that saved them.
    arguments = files.get(names.ARGUMENTS)
    world = arguments.get("distributed_state", "num_processes") if arguments else None
    if ranks and type(world) is int and len(ranks) < world and not ask.part:
        raise unfinished(tree, ask, f"random states of {len(ranks)} ranks, training_args.bin was saved by {world}")
    if "optimizer.pt" in tree.files and "scheduler.pt" not in tree.files:
        raise unfinished(tree, ask, "optimizer.pt without scheduler.pt: half deleted or half written")
    if "scheduler.pt" in tree.files:
        hf_inside.refuse_without_optimizer(tree, "scheduler.pt")


def _same_step(tree: Tree, files: dict[str, torch_file.TorchFile], step: int) -> None:
    """Optimizer and scheduler count steps too; skipped steps make them lag, but not land on another checkpoint."""
    counts: dict[str, float | None] = {}
    # One that waits for a metric to improve is stepped by evaluations.
    if "scheduler.pt" in files and files["scheduler.pt"].get("num_bad_epochs") is None:
        counts["scheduler.pt"] = torch_file.number_in(
            tree, files["scheduler.pt"], files["scheduler.pt"].get("last_epoch")
        )
    if "optimizer.pt" in files:
        counts["optimizer.pt"] = torch_file.optimizer_step(tree, files["optimizer.pt"], "state")
    if counts.get("scheduler.pt") and "optimizer.pt" in files and hf_inside.lacks_moments(files["optimizer.pt"]):
        raise NotKnown(
            f"optimizer.pt holds no moments, scheduler.pt has made {counts['scheduler.pt']:.0f} steps: emptied?"
        )
    for name, count in counts.items():
        if count is None or count == step or count != int(count):
            continue
        if os.path.lexists(tree.root.parent / f"checkpoint-{int(count)}"):
            raise Broken(f"{name} is of step {int(count)}, {STATE} of step {step}: two saves mixed")
    if len(set(counts.values())) == 2 and None not in counts.values():
        one, two = sorted(value for value in counts.values() if value is not None)
        if two % max(one, 1):
            raise NotKnown(f"scheduler.pt and optimizer.pt count different steps ({one:.0f} and {two:.0f})")


def _as_beside(tree: Tree) -> None:
    """Which files a save consists of is the Trainer's setting; one that lacks what the step beside it has is doubtful.

    Of other files only those say something that every step beside has.
    """
    mine = {name for name in tree.files if "/" not in name}
    beside, theirs = hf_inside.beside(tree)
    lacking = sorted(name for name in theirs - mine if names.OWN.fullmatch(name))
    if STATE in theirs and lacking:
        raise NotKnown(f"{visible(lacking[0])} is missing, which {visible(beside)} has: half deleted?")
