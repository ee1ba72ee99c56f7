"""Saves of weights alone: what they are worth beside those that hold an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sentinel.checkpoints.formats import rank_set, safetensors_file, torch_file
from sentinel.checkpoints.records import Part
from sentinel.checkpoints.validate import ONLY_WEIGHTS
from sentinel.text import visible

_FILES = frozenset((torch_file.NAME, safetensors_file.NAME, rank_set.NAME))


def pass_over_exports(parts: Sequence[Part]) -> list[Part]:
    """The same, weights that lie beside whole saves *not known*: they are made for others to load.

    Chosen for its higher step, or for being smaller, such a save would let a run go on without its optimizer, or its trainer
    refuse it. A step beside the weights may be all that a trainer of one's own keeps, unless its other files hold more.
    """
    whole = next((part for part in parts if part.resumable), None)
    file = next((part for part in parts if part.optimizer and part.format in _FILES), None)
    answers: list[Part] = []
    for part in parts:
        other = None
        usable = part.valid or part.whole_if_ended
        if usable and part.resumable is False:
            other = whole
        elif usable and part.optimizer is False and part.format in _FILES:
            other = file
        reason = f"{ONLY_WEIGHTS}, beside whole saves ({visible(Path(other.path).name)}): exported?" if other else ""
        answers.append(replace(part, valid=None, whole_if_ended=False, reason=reason) if other else part)
    return answers
