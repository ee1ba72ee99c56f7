"""Checks whether a folder is in the list that its framework keeps of its checkpoints.

Ray Train: each worker uploads its files into ``checkpoint_<time>``, and when all have reported, the controller writes the
folder's name into ``checkpoint_manager_snapshot.json`` beside it. What is not in there it will not resume from.
"""

from __future__ import annotations

import re
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, read_small
from sentinel.checkpoints.parsing import json_files
from sentinel.text import visible

LIST = "checkpoint_manager_snapshot.json"
_MOST_BYTES = 64 << 20
_FOLDER = re.compile(r"checkpoint_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.\d{6}")


def refuse_unregistered(path: Path) -> None:
    """`NotKnown` where a list lies beside the folder, or beside the one above it, that does not name it."""
    for folder in (path, path.parent):
        if is_registered(folder) is False:
            raise NotKnown(f"Ray Train has not registered {visible(folder.name)} in {LIST}: its save did not finish")


def is_registered(folder: Path) -> bool | None:
    """Whether the list beside the folder names it; None for other folders, and where no list can be read."""
    if not _FOLDER.fullmatch(folder.name):
        return None
    try:
        listed = json_files.parse(read_small(folder.parent / LIST, _MOST_BYTES, LIST), LIST)
    except (NotKnown, OSError, ValueError):
        return None
    names = names_of(listed.get("checkpoint_results")) if isinstance(listed, dict) else None
    return folder.name in names if names is not None else None


def names_of(results: object) -> list[str] | None:
    """The folders that a list of results names, in its order; None where it is no list."""
    if not isinstance(results, list):
        return None
    return [str(entry.get("checkpoint_dir_name")) if isinstance(entry, dict) else "" for entry in results]
