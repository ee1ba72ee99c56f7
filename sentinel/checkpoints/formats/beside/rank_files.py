"""The files of one save where each rank has one beside the others' (``sentinel.checkpoints.formats.rank_set``)."""

from __future__ import annotations

import contextlib
import os
import time
from functools import lru_cache
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree, entry_of, explain_os, scan
from sentinel.checkpoints.formats.rank_set import set_of
from sentinel.text import visible

# A name that is added within a tick of the file system's clock leaves the folder's time as it was; some count seconds.
_TICK_S = 2.0


def save_of(path: Path | str) -> tuple[str, str] | None:
    """What all files of that save share, their folder and their names but for the rank; None of what is no such file."""
    folder, _, name = str(path).rpartition("/")
    known = set_of(name)
    return (folder, known[0]) if known else None


def files_of(path: Path) -> list[Path]:
    """The files of the save of which this is a rank's, by rank, also where it is gone itself; none of what is no such file.

    Raises:
        OSError: the folder cannot be listed.
    """
    known = set_of(path.name)
    if known is None:
        return []
    status = path.parent.stat()
    times = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    listed = _listed if status.st_mtime + _TICK_S < time.time() else _listed.__wrapped__
    return [path.with_name(name) for _, name in listed(path.parent, times).get(known[0], ())]


def scan_save(path: Path) -> Tree:
    """List what is there; of a file of one rank, those of the others with it.

    Raises:
        NotKnown: it cannot be listed.
    """
    tree = scan(path)
    try:
        for file in files_of(path) if tree.single else ():
            tree.files[file.name] = entry_of(file.lstat())
    except OSError as error:
        raise NotKnown(explain_os(error, visible(str(error.filename or path)))) from None
    return tree


def of_the_same_rank(save: Path, other: Path) -> Path | None:
    """Of two saves in one file per rank, the file of ``save`` whose rank is that of ``other``; None where it has none.

    A save or another one that is in no such files is one thing for all ranks: ``save`` itself.
    """
    known = set_of(other.name)
    if known is None or set_of(save.name) is None:
        return save
    with contextlib.suppress(OSError):
        return next((file for file in files_of(save) if (set_of(file.name) or ("", -1))[1] == known[1]), None)
    return None


@lru_cache(maxsize=1)  # of one folder: it is asked for each of its saves
def _listed(folder: Path, _times: tuple[int, ...]) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            known = set_of(entry.name)
            if known is not None and entry.is_file(follow_symlinks=False):
                found.setdefault(known[0], []).append((known[1], entry.name))
    return {name: sorted(files) for name, files in found.items()}
