"""Files by which a save of a known format is told, in whatever folder of another save it lies."""

from __future__ import annotations

import re

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats.huggingface import names
from sentinel.checkpoints.steps import number_of, step_of

_DEPTH = 4  # of folders in a save: policy/state/checkpoint_0
_MOST = 64  # saves in folders of one
# The end of a save of Hugging Face's libraries, in its folder.
LIBRARIES = re.compile(rf"{re.escape(names.STATE)}|{names.RANDOM_STATES.pattern}")
ANY = re.compile(
    LIBRARIES.pattern + r"|(?:__\d+)?\.metadata|__\d+_\d+\.distcp"
    r"|.+_(?:model|optim)_states\.pt|model_optim_rng\.pt|metadata\.json"
)
_IN_A_FOLDER_OF_ITS_RANK = "model_optim_rng.pt"
# A mark alone is no save: folders of logs have a ``latest``, and a reference to another run its ``trainer_state.json``.
STATE = re.compile(r".+\.(?:safetensors|bin|pt|pth|ckpt|distcp|tar|npz|msgpack)|\.metadata")
_OF_NEMO = "weights"  # beside the context that is read with it


def folders(tree: Tree, marks: re.Pattern[str] = ANY) -> list[str]:
    """The folders inside that hold such a file, those above first. In a folder of another step is a save of its own.

    Raises:
        NotKnown: there are more than are looked at.
    """
    found: set[str] = set()
    for name in tree.files:
        folder, _, file = name.rpartition("/")
        if folder and marks.fullmatch(file) and folder.count("/") < _DEPTH:
            above, _, last = folder.rpartition("/")
            found |= {above} if file == _IN_A_FOLDER_OF_ITS_RANK else {folder}
            found |= {above} if last == _OF_NEMO else set()
    found -= {"", *of_other_steps(tree, found)}
    found = {folder for folder in found if holds_state(tree.below(folder))}
    if len(found) > _MOST:
        raise NotKnown(f"more than {_MOST} saves in folders of it: too many to look at")
    return sorted(found, key=lambda folder: (folder.count("/"), folder))


def holds_state(inner: Tree) -> bool:
    """Whether a folder holds what a model or an optimizer is kept in, beside random states."""
    files = (name.rpartition("/")[2] for name in inner.files)
    return any(STATE.fullmatch(file) and not names.RANDOM_STATES.fullmatch(file) for file in files)


def of_other_steps(tree: Tree, folders: set[str]) -> set[str]:
    """Those below a folder that names another step, or that numbers one save of several."""
    mine = step_of(tree.root.name)
    numbered: dict[str, set[str]] = {}  # folder above -> those in it that number saves
    for folder in folders:
        for above, name in _on_the_way(folder):
            if number_of(name) is not None:
                numbered.setdefault(above, set()).add(name)
    others: set[str] = set()
    for folder in folders:
        for above, name in _on_the_way(folder):
            several = len(numbered.get(above, ())) > 1 and name in numbered[above]
            if step_of(name) not in (None, mine) or several:
                others.add(folder)
    return others


def _on_the_way(folder: str) -> list[tuple[str, str]]:
    """(the folder above, name) of each folder on the way to this one."""
    parts = folder.split("/")
    return [("/".join(parts[:index]), name) for index, name in enumerate(parts)]
