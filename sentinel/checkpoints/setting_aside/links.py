"""The symbolic links that name what is moved aside: which they are, and what those say that take their place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Set
from pathlib import Path

from sentinel.checkpoints.formats.beside import rank_files
from sentinel.checkpoints.listed.models import twin
from sentinel.checkpoints.own_folders import below, exists_below
from sentinel.checkpoints.setting_aside.journal import Move


def instead(text: Path, named: Path, target: Path, chosen: Path | None, base: Path, source: int) -> str:
    """What a link that says this says for the chosen one; empty where that does not lie beside what it names.

    Args:
        named: what is moved, and ``target``: what the link leads to, the same or a file in it. Of that name one must lie in
            the chosen one.
    """
    if chosen is not None and base in chosen.parents:
        chosen = twin(chosen, named.parent)
    chosen = chosen and rank_files.of_the_same_rank(chosen, named)
    inside = target.relative_to(named)
    if chosen is None or chosen.parent != named.parent or chosen == named or not text.parts:
        return ""
    above = text.parts[: -1 - len(inside.parts)]
    # Through another link, or by way of what is gone.
    if named.name in above or text.parts != (*above, named.name, *inside.parts):
        return ""
    there = exists_below(source, (chosen / inside).relative_to(base))
    return str(Path(*above, chosen.name, inside)) if there else ""


def names(move: Move, chosen: Path | None, base: Path, source: int) -> bool:
    """Whether the link that was put in the place of a moved one names the chosen checkpoint, or what lies in it, and that is
    there."""
    named = Path(named_by(base, Path(move.source).parent, move.points_to))
    if chosen is None or base not in chosen.parents or base not in named.parents:
        return False
    saves = (path for path in (named, *named.parents) if base in path.parents)
    if not any(rank_files.of_the_same_rank(twin(chosen, path.parent), path) == path for path in saves):
        return False
    return exists_below(source, named.relative_to(base))


def named_by(base: Path, folder: Path, text: str) -> str:
    """The path that a link in this folder names; the root may go by another name in what it says."""
    named, real = os.path.normpath(folder / text), os.path.realpath(base)
    return f"{base}{named.removeprefix(real)}" if named.startswith(f"{real}/") else named


def links_to(gone: Set[str], base: Path, source: int, folders: Iterable[Path]) -> list[tuple[Path, str, str, Path]]:
    """Links in these folders to one of these paths or into it: where they lie below the root, what they say, which path that
    is, and what they lead to."""
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), below(source, folder.parts) as fd, os.scandir(fd) as entries:
            for name in sorted(entry.name for entry in entries if entry.is_symlink()):
                text = os.readlink(name, dir_fd=fd)
                named = Path(named_by(base, base / folder, text))
                path = next((str(p) for p in (named, *named.parents) if str(p) in gone), None)
                if path is not None:
                    found.append((folder / name, text, path, named))
    return found
