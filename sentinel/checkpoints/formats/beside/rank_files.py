"""The files of one save where each rank has one beside the others' (``sentinel.checkpoints.formats.rank_set``)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sentinel.checkpoints.files import NotKnown, Tree, entry_of, explain_os, scan
from sentinel.checkpoints.formats.rank_set import files_by_step, set_of
from sentinel.text import visible


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
    return [path.with_name(name) for _, name in sorted(files_by_step(path.parent).get(known[0], {}).items())]


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
