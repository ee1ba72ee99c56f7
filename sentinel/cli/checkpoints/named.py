"""What the options of ``find`` name: a name that fits nothing is refused, since to ignore it would be to choose what the
person who gave it wants to be left out."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from sentinel.checkpoints.records import Candidate
from sentinel.cli.checkpoints.deadline import within
from sentinel.errors import UserError
from sentinel.text import visible

_WHY = "failed to load already"


def require_nodes(lost: Collection[str], nodes: Sequence[str], with_folders: Collection[str]) -> None:
    """Without a list of the job's nodes one may be lost whose folder nobody names: then it is only said.

    Raises:
        UserError: a lost node is none of the job's.
    """
    others = [name for name in lost if name not in nodes and name not in with_folders]
    if others and nodes:
        raise UserError(
            f"--lost {visible(others[0])} is none of the job's nodes", fix="Write it as --nodes or --local does."
        )
    if others and with_folders:
        click.echo(f"--lost {visible(others[0])}: no folder of that node is looked at", err=True)


def rejected_among(
    texts: Sequence[str], candidates: Sequence[Candidate], folders: Sequence[Path], deadline_s: float | None
) -> dict[str, str]:
    """Of the candidates that these paths name, the path, or ``path@step`` where the text says so, with the reason.

    A path may go through links, and be relative to the working folder or to one of the folders that are looked in. One below
    these at which no checkpoint was listed (older ones than ``--limit`` are not) is only told of.

    Raises:
        UserError: a path names no checkpoint, and is not there, or lies elsewhere.
    """
    if not texts:
        return {}
    forms = {text: _forms(text, folders) for text in texts}
    asked = {path for several in forms.values() for path, _ in several}
    held = {path for candidate in candidates for path in (candidate.path, *candidate.paths.values())}
    real = _resolved([*asked, *sorted(held), *map(str, folders)], deadline_s)
    by_place: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        for place in {real[path] for path in (candidate.path, *candidate.paths.values())}:
            by_place[place].append(candidate)
    found: dict[str, str] = {}
    for text, several in forms.items():
        hits = [
            candidate.path if step is None else f"{candidate.path}@{step}"
            for path, step in several
            for candidate in (by_place.get(real[path], ()) if real[path] else ())
            if step is None or candidate.step == step
        ]
        if not hits:
            known = [real[c.path] for c in candidates if c.format != "unknown"]  # else its folder may not have answered
            _require_place(text, {real[path] for path, _ in several}, known, {real[str(path)] for path in folders})
        found |= dict.fromkeys(hits, _WHY)
    return found


def _forms(text: str, folders: Sequence[Path]) -> list[tuple[str, int | None]]:
    """The paths that the text may mean, each with the step that it adds."""
    path, at, step = text.rpartition("@")
    means: list[tuple[str, int | None]] = [(text, None)]
    if at and path and step.isascii() and step.isdecimal():
        means.append((path, int(step[:18])))
    return [(place, step) for path, step in means for place in (path, *(str(folder / path) for folder in folders))]


def _require_place(text: str, places: Collection[str], known: Collection[str], folders: Collection[str]) -> None:
    """That it lies where checkpoints are looked for, and is no part of one that is known, and no folder of several."""
    for place in filter(None, places):
        below = any(_lies_in(place, folder) for folder in folders if folder)
        if below and not any(one == place or _lies_in(one, place) or _lies_in(place, one) for one in known if one):
            click.echo(f"--rejected {visible(text)}: no checkpoint was listed there", err=True)
            return
    raise UserError(
        f"--rejected {visible(text)} names no checkpoint that was found",
        fix="Name it as the list without --rejected shows it.",
    )


def _lies_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _resolved(paths: Sequence[str], deadline_s: float | None) -> dict[str, str]:
    """Each path through its links; empty for what is not there. What did not answer in time is taken as it is written."""

    def look() -> list[str]:
        return [os.path.realpath(path) if os.path.lexists(path) else "" for path in paths]

    in_time, answer = (True, look()) if deadline_s is None else within(deadline_s, look)
    plain = answer if in_time else [os.path.normpath(Path(path).absolute()) for path in paths]
    return dict(zip(paths, plain, strict=True))
