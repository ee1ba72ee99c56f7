"""DeepSpeed: ``global_step<N>`` with ZeRO's shards.

The tracker ``latest`` is written before the other ranks have finished, so it proves nothing; what proves completeness
are the numbers inside: ``partition_count`` x model-parallel ranks optimizer shards (zero_to_fp32 counts the same way),
and the same step in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import one_save, torch_file
from sentinel.checkpoints.formats.base import NEAREST, Ask, Finding, neighbours, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras, far_saves, layers
from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

NAME = "deepspeed"
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")
_ZERO3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_EXPERT = re.compile(r"(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_EXPERT_OPTIM = re.compile(r"expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_ALL = (_OPTIM, _ZERO3, _MODEL, layers.PATTERN, _EXPERT, _EXPERT_OPTIM)


def recognise(tree: Tree) -> bool:
    return not tree.single and any(pattern.fullmatch(name) for name in tree.files for pattern in _ALL)


def owners_by_name(tree: Tree) -> frozenset[int]:
    return frozenset(rank for rank, _ in _pairs(tree.files, _OPTIM))


def _pairs(names: Iterable[str], pattern: re.Pattern[str]) -> set[tuple[int, int]]:
    return {(int(m.group(1)), int(m.group(2))) for name in names if (m := pattern.fullmatch(name))}


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    files = {
        name: torch_file.check_file(tree, name, ask)
        for name in sorted(tree.files)
        if "/" not in name and name.endswith(".pt")
    }
    left = _left_over(files)
    own = {name: file for name, file in files.items() if name not in left}
    if left:
        ask.say(f"{visible(min(left))} is of a save by more ranks, which no load of this one reads")
    optim = _pairs(own, _OPTIM)
    zero3 = _pairs(own, _ZERO3)
    models = {int(m.group(1)) for name in tree.files if (m := _MODEL.fullmatch(name))}
    shown = [file for name, file in own.items() if _MODEL.fullmatch(name) or _ZERO3.fullmatch(name)]
    if not shown and not any(layers.PATTERN.fullmatch(name) for name in files):
        raise unfinished(tree, ask, "no model states: the save did not finish")
    mp = _one(shown, "mp_world_size") or len({m for _, m in optim | zero3} | models) or 1
    dp = _one(shown, "dp_world_size")
    partitions = _partitions(own)
    if not ask.part:
        _complete(tree, ask, optim, zero3, models, (mp, dp, partitions, _zero_stage(shown)))
        layers.refuse_missing(tree, ask, shown)
        one_save.refuse_lost_state(tree, own)
    step = _same_step(tree, own, shown)
    ours = [
        name for name in own if any(pattern.fullmatch(name) for pattern in _ALL)
    ]  # others may be made of them later
    one_save.refuse_pause(tree, ours, one_save.RANKS_HANG_S)
    works: list[Work] = [work for file in own.values() for work in file.works]
    partitions_of = [name for name in own if _OPTIM.fullmatch(name)]
    works.append(Work(0, lambda _: one_save.refuse_twins(tree, partitions_of)))
    if not ask.part:
        works.append(Work(0, lambda _: layers.refuse_mixed(tree, ask, own, shown)))
    if not ask.part and _counts(tree, own):
        works.append(Work(0, lambda _: _refuse_earlier(tree, partitions_of, shown)))
    finding = Finding(
        step=step,
        owners=frozenset(rank for rank, _ in optim),
        world_size=(partitions or dp or 1) * mp if partitions or dp else None,
        whole=True,
        works=works,
        unsummed=[name for name, file in files.items() if not file.summed],
        covered={name for name, file in files.items() if file.summed},
    )
    extras.check(tree, ask, finding, perhaps_anothers=True)
    return finding


def _left_over(files: dict[str, TorchFile]) -> set[str]:
    """Shards of ranks that this save has none of, which state another number of them than its own do.

    A run that went back and has fewer ranks saves a step again over the older save, whose last ranks' shards stay. DeepSpeed
    reads those of as many ranks as the model states say (which may be fewer than there are, with sequences in parts).
    """
    first = [file for name, file in files.items() if _MODEL.fullmatch(name) or (0, 0) in _pairs([name], _ZERO3)]
    stated = {value for file in first if type(value := file.get("dp_world_size")) is int}
    ranks = stated.pop() if len(stated) == 1 else 0
    counts: dict[str, tuple[int, object]] = {}  # (its rank, of how many)
    for name, file in files.items():
        for pattern, count in ((_OPTIM, _partition_count(file)), (_ZERO3, file.get("dp_world_size"))):
            if match := pattern.fullmatch(name):
                counts[name] = int(match.group(1)), count
    mine = {count for rank, count in counts.values() if rank < ranks}
    if mine != {ranks}:
        return set()
    return {name for name, (rank, count) in counts.items() if rank >= ranks and type(count) is int and count > rank}


def _one(files: Iterable[TorchFile], key: str) -> int | None:
    """The number that all of these files give for that key; `Broken` where they differ."""
    found = {value for file in files if type(value := file.get(key)) is int}
    if len(found) > 1:
        raise Broken(f"the model states disagree about {key}: {sorted(found)[:4]}")
    return next(iter(found), None)


def _zero_stage(files: Iterable[TorchFile]) -> int:
    for file in files:
        stage = file.get("ds_config", "zero_optimization", "stage")
        if type(stage) is int:
            return stage
    return 0


def _partitions(files: dict[str, TorchFile]) -> int | None:
    """The number of optimizer shards of one model-parallel rank, as the shards themselves state it."""
    found: set[int] = set()
    for name, file in files.items():
        if _OPTIM.fullmatch(name):
            count = _partition_count(file)
            if count is not None:
                found.add(count)
    if len(found) > 1:
        raise Broken(f"the optimizer shards disagree about their number: {sorted(found)[:4]}")
    return next(iter(found), None)


def _partition_count(file: TorchFile) -> int | None:
    count = file.get("optimizer_state_dict", "partition_count")
    if isinstance(count, (list, tuple)):
        count = max((c for c in count if type(c) is int), default=None)
    return count if type(count) is int else None


def _complete(
    tree: Tree,
    ask: Ask,
    optim: set[tuple[int, int]],
    zero3: set[tuple[int, int]],
    models: set[int],
    sizes: tuple[int, int | None, int | None, int],
) -> None:
    mp, dp, partitions, stage = sizes
    if optim or stage:
        count = partitions or dp or max((rank for rank, _ in optim), default=-1) + 1
        _grid(tree, ask, "optimizer shard", optim, (count, mp))
    if stage == 3 or zero3:
        _grid(tree, ask, "model shard", zero3, (dp or partitions or max((r for r, _ in zero3), default=0) + 1, mp))
    elif len(models) != mp or first_hole(models, 0, mp) is not None:
        raise unfinished(tree, ask, f"model states of {len(models)} model-parallel ranks, {mp} are needed")
    found = {a for a, _ in _pairs(tree.files, _EXPERT_OPTIM)}
    hole = first_hole(found, 0, max(found, default=-1) + 1)
    if hole is not None:
        raise unfinished(tree, ask, f"the states of expert rank {hole} are missing")
    _experts(tree, ask)


def _grid(tree: Tree, ask: Ask, what: str, have: set[tuple[int, int]], size: tuple[int, int]) -> None:
    over = min(((dp, mp) for dp, mp in have if dp >= size[0] or mp >= size[1]), default=None)
    if over is not None:
        raise Broken(f"{what} of rank {over[0]}/{over[1]}, but there are {size[0]} x {size[1]} ranks: wrong world size")
    if len(have) < size[0] * size[1]:
        hole = next(at for at in range(len(have) + 1) if (at // size[1], at % size[1]) not in have)
        dp, mp = hole // size[1], hole % size[1]
        raise unfinished(tree, ask, f"{what} of rank {dp}/{mp} is missing: {len(have)} of {size[0] * size[1]}")


def _experts(tree: Tree, ask: Ask) -> None:
    layers: dict[str, set[int]] = {}
    for name in tree.files:
        match = _EXPERT.fullmatch(name)
        if match:
            layers.setdefault(match.group(1) or "", set()).add(int(match.group(2)))
    most = max((max(experts) + 1 for experts in layers.values()), default=0)
    for layer, experts in layers.items():
        hole = first_hole(experts, 0, most)
        if hole is not None:
            raise unfinished(tree, ask, f"expert {hole} of layer {visible(layer)} is missing")


def _same_step(tree: Tree, files: dict[str, TorchFile], shown: list[TorchFile]) -> int | None:
    """The step of the model states; the optimizer shards of all ranks must have made the same number of steps."""
    step = _one(shown, "global_steps")
    counts = _counts(tree, files)
    if len(set(counts.values())) > 1:
        low, high = min(counts.values()), max(counts.values())
        raise Broken(f"the optimizer shards are of different steps ({low:.0f} and {high:.0f}): two saves mixed")
    named = re.fullmatch(r"global_step(\d+)", tree.root.name)
    if step is not None and named and int(named.group(1)) != step:
        raise Broken(f"the model states are of step {step}, the folder of step {named.group(1)}")
    if counts and step is not None and next(iter(counts.values())) > step:
        raise Broken(
            f"the optimizer has made {next(iter(counts.values())):.0f} steps, the model {step}: two saves mixed"
        )
    return step


def _counts(tree: Tree, files: dict[str, TorchFile]) -> dict[str, float]:
    """The steps that the optimizer shards have made, where their optimizer counts them."""
    counts: dict[str, float] = {}
    for name, file in files.items():
        if _OPTIM.fullmatch(name):
            for path in (("base_optimizer_state", "state"), ("optimizer_state_dict", "state"), ("state",)):
                made = torch_file.optimizer_step(tree, file, "optimizer_state_dict", *path)
                if made is not None:
                    counts[name] = made
                    break
    return counts


def _refuse_earlier(tree: Tree, shards: list[str], shown: list[TorchFile]) -> None:
    """`NotKnown` where all optimizer shards are those of another save, and the model has made steps in between.

    Steps that were left out for an overflow change nothing.
    """
    mine = _steps_made(shown)
    nearest = neighbours(tree.root, NEAREST)
    far = far_saves.perhaps_copies(tree, shards, NEAREST)
    for folder in (*nearest, *(folder for folder, _ in far)) if mine is not None else ():
        if not all(one_save.identical(tree, name, folder) for name in shards):
            continue
        theirs = _steps_made(_shown_in(folder, shown))
        if theirs is not None and theirs != mine:
            raise NotKnown(
                f"the optimizer shards are byte for byte those of {visible(folder.name)}, where the model has made"
                f" {theirs} steps, here {mine}: two saves mixed"
            )


def _shown_in(folder: Path, shown: list[TorchFile]) -> list[TorchFile]:
    try:
        return [torch_file.check_file(Tree(folder), file.name, Ask("structural", 0.0)) for file in shown[:1]]
    except (Broken, NotKnown, OSError):
        return []


def _steps_made(shown: list[TorchFile]) -> int | None:
    """The steps of the model without those that were skipped; None where they are not stated."""
    steps, skipped = ((shown[0].get(key) if shown else None) for key in ("global_steps", "skipped_steps"))
    return steps - (skipped if type(skipped) is int else 0) if type(steps) is int else None
