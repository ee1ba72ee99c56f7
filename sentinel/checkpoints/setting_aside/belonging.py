"""Which files are one checkpoint's, and go together: half of one that is moved leaves the rest to be mixed with another."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from sentinel.checkpoints import manifest
from sentinel.checkpoints.formats import nvrx
from sentinel.checkpoints.formats.beside import rank_files
from sentinel.checkpoints.setting_aside.journal import Move
from sentinel.errors import Denied
from sentinel.text import visible


def paths_of(path: Path, step: int | None, moved: Iterable[Move] = ()) -> list[Path]:
    """What to move for one checkpoint: its folder; or its files alone, where several share a folder (NVRx local), or each
    rank has one of its own beside those of other steps. The manifest beside a file goes with it: the next save of that name
    is not the one that it tells of.

    ``moved``: the moves that stand. Files of that save among them belong to the answer, which is thus the same when the
    order is repeated: with the last of them gone, the folder is not to be taken in their place. What a person has removed
    from the quarantine since is nowhere, and no part of it.

    Raises:
        Denied: the folder of such a file cannot be listed.
    """
    moved, save = tuple(moved), rank_files.save_of(path)
    if save is not None:
        before = _sources(move for move in moved if not move.link and rank_files.save_of(move.source) == save)
        try:
            here = rank_files.files_of(path)
        except (FileNotFoundError, NotADirectoryError):
            here = []
        except OSError as error:
            raise Denied(f"{visible(str(path.parent))} cannot be listed: {error.strerror}") from error
        return _with_manifests([path, *before, *here], moved)
    if step is None:
        return _with_manifests([path], moved)
    there = nvrx_step(path, step)
    gone = _sources(move for move in moved if _is_of_step(move.source, path, step))
    return [path] if there is None and not gone else list(dict.fromkeys([*gone, *(there or [])]))


def _with_manifests(files: Sequence[Path], moved: Sequence[Move]) -> list[Path]:
    """Those first: what is moved last comes back first, and none beside another save that is there since."""
    beside = dict.fromkeys(str(manifest.place_of(file, single=True)) for file in files)
    gone = _sources(move for move in moved if move.source in beside)
    return list(dict.fromkeys([*gone, *map(Path, filter(os.path.lexists, beside)), *files]))


def _sources(moved: Iterable[Move]) -> list[Path]:
    return [Path(move.source) for move in moved if os.path.lexists(move.target)]


def _is_of_step(source: str, session: Path, step: int) -> bool:
    match = nvrx.FILE.fullmatch(source.removeprefix(f"{session}/"))
    return match is not None and match[1] is None and match[2] is not None and int(match[3]) == step


def nvrx_step(path: Path, step: int) -> list[Path] | None:
    """The files of that iteration below an NVRx session folder; None where it is no such folder."""
    found: list[Path] = []
    known = False
    if not path.is_dir() or path.is_symlink():
        return None
    for holder in sorted(path.iterdir()):
        if not holder.name.isdigit() or not holder.is_dir() or holder.is_symlink():
            continue
        for file in sorted(holder.iterdir()):
            match = nvrx.FILE.fullmatch(file.name)
            known = known or match is not None
            if match and int(match.group(3)) == step:
                found.append(file)
    return found if known else None


def all_paths_of(paths: Iterable[Path], moved: Iterable[Move] = ()) -> list[Path]:
    """The same for checkpoints each in a folder or files of their own; a save of which several files are named once."""
    found: dict[Path, None] = {}
    for path in paths:
        if path not in found:
            found |= dict.fromkeys(paths_of(path, None, moved))
    return list(found)


def together(paths: Iterable[Path]) -> list[list[Path]]:
    """The same paths in their order, those of the ranks of one save, and of their manifests, in one list."""
    saves: dict[object, list[Path]] = {}
    for path in paths:
        file = path.with_name(path.name.removesuffix(manifest.NAME)) if path.name != manifest.NAME else path
        saves.setdefault(rank_files.save_of(file) or file, []).append(path)
    return list(saves.values())


def all_of(some: Collection[Path], paths: Iterable[Path]) -> dict[Path, Path]:
    """Those of ``paths`` that lie in ``some`` or go with one that does, and with which."""
    found: dict[Path, Path] = {}
    for save in together(paths):
        first = next((path for path in save if path in some), None)
        if first is not None:
            found |= {path: path if path in some else first for path in save}
    return found
