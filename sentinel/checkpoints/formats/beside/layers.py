"""The layers of DeepSpeed's pipelines: ``layer_<N>-model_states.pt``, with one per part where tensors are parallel.

All weights of such a save are in them, and nothing states their number: a layer without a state of its own (a function, a
tied one) has no file. What shows that one is missing are the parameters that ZeRO names, and the saves beside.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats import one_save
from sentinel.checkpoints.formats.base import Ask, neighbours, unfinished
from sentinel.checkpoints.formats.beside.trained import Trained
from sentinel.checkpoints.formats.dcp_parts.pieces import volume
from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.inert_pickle import Opaque
from sentinel.text import visible

PATTERN = re.compile(r"layer_(\d+)-(?:([^/]*_\d+)-)?model_states\.pt")  # the number of the layer, which part of it
_PARAMETER = re.compile(r"(\d+)\..*")  # as the module of a pipeline names those of a layer
_NEIGHBOURS = 2
_EXACT = frozenset(("float32", "float64"))  # in which a step of training changes every weight
_MOST_STAY = 1 << 16  # weights in 16 bits that may all stay the same for a while: those of a norm, at a small rate


def refuse_missing(tree: Tree, ask: Ask, shown: Collection[TorchFile]) -> None:
    """Refuse a pipeline without the file of a layer that has parameters, or that every save beside has.

    Raises:
        Broken: a parameter is named whose layer is not here, or a pipeline has none.
        NotKnown: the saves beside have a layer that is missing here; or it may still be being written.
    """
    parts: dict[int, set[str | None]] = {}
    for layer, part in _layers(tree.files):
        parts.setdefault(layer, set()).add(part)
    every = set().union(*parts.values())
    torn = min((layer for layer, found in parts.items() if found != every), default=None)
    if torn is not None:
        raise unfinished(tree, ask, f"the states of layer {torn} are missing")
    if not parts:
        # Only a pipeline's engine leaves the model out of the model's states.
        if any(isinstance(file.value, dict) and file.value.get("module", 0) is None for file in shown):
            raise unfinished(tree, ask, "the states of all layers are missing")
        return
    for layer, name in sorted(_parameters(shown)):
        if layer not in parts:
            raise unfinished(tree, ask, f"the states of layer {layer} are missing, which has {visible(name)}")
    _refuse_lacking(tree, parts.keys())


def _layers(names: Iterable[str]) -> set[tuple[int, str | None]]:
    return {(int(match[1]), match[2]) for name in names if (match := PATTERN.fullmatch(name))}


def _parameters(shown: Iterable[TorchFile]) -> set[tuple[int, str]]:
    """The parameters that ZeRO's optimizer trains, each with its layer; those of tied layers have none."""
    names = set[str]().union(*(parameters_of(file) for file in shown))
    return {(int(match[1]), name) for name in names if (match := _PARAMETER.fullmatch(name))}


def parameters_of(file: TorchFile) -> set[str]:
    """The names of the parameters whose shapes DeepSpeed's model states list."""
    groups = file.get("param_shapes")
    found: set[str] = set()
    for group in groups if isinstance(groups, list) else [groups]:
        if isinstance(group, Opaque) and group.items:
            names = [item[0] for item in group.items if isinstance(item, tuple)]
        else:
            names = list(group) if isinstance(group, dict) else []
        found |= {name for name in names if isinstance(name, str)}
    return found


def _refuse_lacking(tree: Tree, mine: Iterable[int]) -> None:
    beside: list[tuple[Path, set[int]]] = []
    for folder in neighbours(tree.root, 2 * _NEIGHBOURS):
        try:
            found = {layer for layer, _ in _layers(entry.name for entry in folder.iterdir())}
        except OSError:  # what it has is not known
            return
        if found:
            beside.append((folder, found))
    lacking = set[int]().union(*(found for _, found in beside)) - set(mine)
    for _, found in beside[:_NEIGHBOURS]:
        lacking &= found
    if lacking:
        name = visible(beside[0][0].name)
        raise NotKnown(
            f"the states of layer {min(lacking)} are missing, which {name} has: half deleted or half written?"
        )


def refuse_mixed(tree: Tree, ask: Ask, files: Mapping[str, TorchFile], shown: Collection[TorchFile]) -> None:
    """`NotKnown` where layers are those of another save and the optimizers are not, though these train them."""
    layers = [name for name in files if PATTERN.fullmatch(name)]
    optimizers = [
        name for name, file in files.items() if any(one_save.parameters(t) for _, t in one_save.optimizers(file.value))
    ]
    trained = Trained(tree, files, optimizers, layers)
    named = {layer for layer, _ in _parameters(shown)}
    if named:  # the moments of ZeRO are in stretches of all parameters, whose shapes are not theirs
        must_change = [name for name in layers if _number(name) in named]
    else:
        must_change = trained.wholly_trained() if trained.all_here() else []
    explains = partial(_explained, trained, bool(named))
    telling = [name for name in must_change if _changes_in_a_step(files[name])]
    one_save.refuse_mixed(tree, ask, telling, [*layers, *optimizers], explains=explains)


def _number(name: str) -> int | None:
    match = PATTERN.fullmatch(name)
    return int(match[1]) if match else None


def _changes_in_a_step(file: TorchFile) -> bool:
    tensors = file.opened.pickled.tensors if file.opened else []
    exact = bool(tensors) and all(tensor.dtype in _EXACT for tensor in tensors)
    return exact or sum(volume(tensor.size) for tensor in tensors) >= _MOST_STAY


def _explained(trained: Trained, of_zero: bool, folder: Path, alike: Mapping[str, bool | None]) -> bool:
    """Whether the optimizers' steps in between may have left layers as they were.

    What a group of parameters without a rate trains stays the same, also beside groups that have one.
    """
    went_on = [name for name in trained.optimizers if alike.get(name) is False]
    if any(0.0 in trained.rates(name) and 0.0 in trained.rates(name, folder) for name in went_on):
        return True
    return not went_on if of_zero else trained.explains(folder, alike)
