"""The symbolic links that name what is moved aside: which they are, and what those say that take their place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Set
from pathlib import Path

from sentinel.checkpoints.formats.beside import rank_files
from sentinel.checkpoints.own_folders import below, exists_below
from sentinel.checkpoints.setting_aside.journal import Move


def instead(text: Path, named: Path, chosen: Path | None, base: Path, source: int) -> str:
    """What a link that says this says for the chosen one; empty where that does not lie beside what it names."""
    chosen = chosen and rank_files.of_the_same_rank(chosen, named)
    if chosen is None or chosen.parent != named.parent or chosen == named or text.name != named.name:
        return ""
    return str(text.with_name(chosen.name)) if exists_below(source, chosen.relative_to(base)) else ""


def names(move: Move, chosen: Path | None, base: Path, source: int) -> bool:
    """Whether the link that was put in the place of a moved one names the chosen checkpoint, and that is there."""
    named = named_by(base, Path(move.source).parent, move.points_to)
    chosen = chosen and rank_files.of_the_same_rank(chosen, Path(named))
    return named == str(chosen) and named.startswith(f"{base}/") and exists_below(source, Path(named).relative_to(base))


def named_by(base: Path, folder: Path, text: str) -> str:
    """The path that a link in this folder names; the root may go by another name in what it says."""
    named, real = os.path.normpath(folder / text), os.path.realpath(base)
    return f"{base}{named.removeprefix(real)}" if named.startswith(f"{real}/") else named


def links_to(gone: Set[str], base: Path, source: int, folders: Iterable[Path]) -> list[tuple[Path, str, str]]:
    """Links in these folders to one of these paths: where they lie below the root, what they say, and which path that is."""
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), below(source, folder.parts) as fd, os.scandir(fd) as entries:
            for name in sorted(entry.name for entry in entries if entry.is_symlink()):
                text = os.readlink(name, dir_fd=fd)
                named = Path(named_by(base, base / folder, text))
                path = next((str(p) for p in (named, *named.parents) if str(p) in gone), None)
                if path is not None:
                    found.append((folder / name, text, path))
    return found
