"""Makes the tracker of a framework name the step that a person chose."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.formats import tracked
from sentinel.checkpoints.own_folders import opened_folder
from sentinel.checkpoints.setting_aside import trackers
from sentinel.checkpoints.steps import last_number, number_of, step_of, without_numbers
from sentinel.errors import UserError
from sentinel.text import visible

_MODE = 0o644  # of a tracker where there was none: the job reads it, whoever's it is


@dataclass(frozen=True, slots=True)
class Pointed:
    """A tracker that was rewritten. ``tracker`` is empty where the framework has none and goes by the folders alone."""

    tracker: str
    before: str
    after: str


def point_to(root: Path, format: str, step: int) -> Pointed:
    """Tell the framework which step to load, in its own way, atomically (``sentinel.checkpoints.formats.tracked``).

    Frameworks without a tracker go by the folders, and are told by what is quarantined.

    Raises:
        UserError: there is no such step. Denied: the tracker cannot be written.
    """
    if format not in tracked.TRACKERS:
        return Pointed("", "", "")
    name, tracker = folder_for(root, format, step), tracked.TRACKERS[format]
    with opened_folder(root) as folder:
        before = trackers.read(folder, tracker, tracked.LIMIT_BYTES) or b""
        # The folder is of the kind that is asked for, whatever was named before.
        like = before if format == "mmengine" or (format == "loop" and before.strip()) else os.fsencode(name)
        after = trackers.text_naming(folder, tracker, like, name)
        if after is None and format == "loop":
            raise UserError(f"{tracked.LOOPS} cannot name {visible(name)}", fix="Write it by hand.")
        if after is None:
            raise _no_state(name)
        if after != before:
            trackers.write(folder, tracker, after, root / tracker, mode=_MODE)
    return Pointed(str(root / tracker), *(tracked.in_words(tracker, text) for text in (before, after)))


def folder_for(root: Path, format: str, step: int) -> str:
    """What a framework with a tracker has of that step: a folder, or a file, which the tracker can name.

    Raises:
        UserError: there is none.
    """
    if format in ("mmengine", "loop"):
        return _any_of(root, tracked.TRACKERS[format], step)
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    wanted = {
        "megatron": (f"iter_{step:07d}", f"global_step_{step}"),
        "megatron-bridge": (f"iter_{step:07d}",),
        "deepspeed": (rf"global_step_?0*{step}",),
    }[format]
    found = next((name for pattern in wanted for name in names if re.fullmatch(pattern, name)), None)
    if found is None:
        shown = f"global_step{step}" if format == "deepspeed" else wanted[0]
        raise UserError(f"{visible(str(root))} has no {shown}", fix="Choose a step that is there.")
    if format == "megatron-bridge":
        with opened_folder(root) as folder:
            if trackers.text_naming(folder, tracked.BRIDGE, b"", found) is None:
                raise _no_state(found)
    return found


def _no_state(name: str) -> UserError:
    return UserError(
        f"{visible(name)} has no {tracked.BRIDGES_STATE} of its step, and {tracked.BRIDGE} is a copy of that",
        fix="Choose a step that Megatron-Bridge saved.",
    )


def _any_of(root: Path, tracker: str, step: int) -> str:
    """The checkpoint of that number among those beside the tracker, first those that are named as it names one."""
    usual = without_numbers(tracked.named_by(root / tracker) or "")
    names = [entry.name for entry in root.iterdir() if _is_of(entry.name, step)]
    if not names:
        raise UserError(f"{visible(str(root))} has no checkpoint of {step}", fix="Choose a step that is there.")
    return min(names, key=lambda name: (without_numbers(name) != usual, name))


def _is_of(name: str, step: int) -> bool:
    return step in (step_of(name), number_of(name)) or last_number(name) == str(step)
