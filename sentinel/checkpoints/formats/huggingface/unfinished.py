"""Saves of the Trainer and of Accelerate without the file that ends them, under any name and in any folder.

Under FSDP the Trainer writes neither ``training_args.bin`` nor a model in one file: ``pytorch_model_fsdp_0/`` comes first,
then ``optimizer_0/``, ``scheduler.pt``, ``rng_state_<rank>.pth`` and ``trainer_state.json``. ``save_state`` of Accelerate
ends with ``random_states_<rank>.pkl``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats import marks
from sentinel.checkpoints.formats.base import NEAREST, neighbours
from sentinel.checkpoints.formats.huggingface import names
from sentinel.text import visible

_HABIT = 2  # saves without an end that are a loop's habit
_MOST = 64  # folders that are held against those beside
_ACCELERATES_OPTIMIZER = re.compile(r"optimizer(?:_\d+)?\.bin")
_ACCELERATES_SCHEDULE = re.compile(r"(?:scheduler|sampler)(?:_\d+)?\.bin")
_TRAINERS_STATE = re.compile(r"(?:optimizer|scheduler)\.pt|optimizer\.bin|rng_state(?:_\d+)?\.pth")


@dataclass(slots=True)
class _Folder:
    files: set[str] = field(default_factory=set)
    of_fsdp: bool = False

    @property
    def ended(self) -> bool:
        return names.STATE in self.files or _any(names.RANDOM_STATES, self.files)

    @property
    def is_the_trainers(self) -> bool:
        if names.ARGUMENTS in self.files:  # which an export has, too, but no optimizer
            return _any(_TRAINERS_STATE, self.files)
        return self.of_fsdp and ("scheduler.pt" in self.files or _any(names.RNG_STATE, self.files))

    @property
    def is_accelerates(self) -> bool:
        flat = _any(_ACCELERATES_OPTIMIZER, self.files) and _any(_ACCELERATES_SCHEDULE, self.files)
        return flat or self.of_fsdp


def _any(pattern: re.Pattern[str], files: Collection[str]) -> bool:
    return any(pattern.fullmatch(file) for file in files)


def refuse(tree: Tree) -> None:
    """`NotKnown` where a folder holds what the Trainer or Accelerate begin a save with, and not what they end it with."""
    found: dict[str, _Folder] = {}
    for name in tree.files:
        folder, _, file = name.rpartition("/")
        found.setdefault(folder, _Folder()).files.add(file)
        above, _, last = folder.rpartition("/")
        if file == ".metadata" and names.FSDP_MODEL.fullmatch(last):
            found.setdefault(above, _Folder()).of_fsdp = True
    others = marks.of_other_steps(tree, set(found))
    begun = [(folder, held) for folder, held in sorted(found.items()) if not held.ended and folder not in others]
    begun = [(folder, held) for folder, held in begun if held.is_the_trainers or held.is_accelerates][:_MOST]
    beside = neighbours(tree.root, NEAREST) if begun else []
    for folder, held in begun:
        inside = f" in {visible(folder)}" if folder else ""
        if held.is_the_trainers:
            raise NotKnown(f"{names.STATE} is missing{inside}: a save of the Trainer that did not finish?")
        if _broke_off(held, [at / folder for at in beside]):
            raise NotKnown(
                f"neither {names.STATE} nor random_states_0.pkl is there{inside}: a save of Accelerate that did not finish?"
            )


def _broke_off(held: _Folder, beside: list[Path]) -> bool:
    """Whether a save that Accelerate may have begun lacks its end: a save beside has it.

    Else a loop of somebody's may save under these names, and Accelerate resumes without random states. FSDP's folders are
    Accelerate's own, unless two saves beside have no end, either.
    """
    alike = [folder for at in beside if (folder := _listed(at)) is not None and folder.is_accelerates]
    return any(folder.ended for folder in alike) or (held.of_fsdp and len(alike) < _HABIT)


def _listed(at: Path) -> _Folder | None:
    try:
        with os.scandir(at) as entries:
            listed = [(entry.name, entry.is_file(follow_symlinks=False)) for entry in entries]
    except OSError:
        return None
    held = _Folder({name for name, is_file in listed if is_file})
    held.of_fsdp = any(names.FSDP_MODEL.fullmatch(name) for name, is_file in listed if not is_file)
    return held
