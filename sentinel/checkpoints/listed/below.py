"""Saves in folders below what looks like a save itself: those of a run, or parts of the one above."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sentinel.checkpoints.formats import marks
from sentinel.checkpoints.formats.huggingface import names
from sentinel.checkpoints.steps import number_of, step_of

_DEPTH = 3  # of folders in a save: model/pp_00/tp_00
_MOST_FOLDERS = 64  # of one save that are looked at for a file of a state
_OF_DEEPSPEED = re.compile(r"global_step\d+")  # in a save of the Trainer, a part of it


def holds_saves_of_steps(folder: Path, entries: Sequence[os.DirEntry[str]]) -> bool:
    """Whether a folder with the files of a save holds saves of a run: of another step than its own, or several numbered.

    A program ends with an export into the folder of its run, and the run is continued later. Of a folder that cannot be
    listed nothing is said.
    """
    mine, of_the_trainer = step_of(folder.name), any(entry.name == names.STATE for entry in entries)
    numbered = 0
    for entry in entries:
        step = step_of(entry.name)
        # Folders named by bare digits are of ranks, too.
        counts = step is None and not entry.name.isdigit() and number_of(entry.name) is not None
        if not counts and step in (None, mine):
            continue
        if (of_the_trainer and _OF_DEEPSPEED.fullmatch(entry.name)) or not entry.is_dir(follow_symlinks=False):
            continue
        if _holds_state(Path(entry.path)):
            numbered += counts
            if not counts or numbered > 1:
                return True
    return False


def _holds_state(folder: Path) -> bool:
    """Whether a file of a state is there, or some folders deeper."""
    pending = [(folder, 0)]
    for inner, depth in pending:
        with suppress(OSError), os.scandir(inner) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _DEPTH and len(pending) < _MOST_FOLDERS:
                        pending.append((Path(entry.path), depth + 1))
                elif marks.STATE.fullmatch(entry.name):
                    return True
    return False
