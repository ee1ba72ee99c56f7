"""Moves a job's checkpoints aside, as the job's user. Idempotent: repeating it gives the same state and answer."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.agent.probes import become, begin, say
from sentinel.checkpoints.inventory import find
from sentinel.checkpoints.quarantine import paths_of, quarantine, read_journal
from sentinel.errors import Refused, SentinelError
from sentinel.text import visible


def asked_for(root: Path, paths: list[str], steps: list[int | None] | None) -> list[Path]:
    """The paths to move: a checkpoint's folder, or only its own files if several checkpoints share the folder.

    All lie where a search for checkpoints finds one: no code, data or results of the job's user.

    Raises:
        Refused: there is something else.
    """
    places = {spot.path for spot in find(root).spots}
    moved = read_journal(root)
    asked: list[Path] = []
    for path, step in zip(map(Path, paths), steps or [None] * len(paths), strict=True):
        found = paths_of(path, step, moved)
        if found == [path] and path not in places and os.path.lexists(path):
            raise Refused(f"{visible(str(path))} is no checkpoint", fix="Name one that an inventory lists.")
        asked += found
    return asked


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    try:
        root = Path(arguments["root"])
        asked = asked_for(root, arguments["paths"], arguments.get("steps"))
        moves = quarantine(root, asked, reason=str(arguments.get("reason", "")))
    except SentinelError as error:
        say({"error": str(error)})
        return
    say({"result": {"moved": [[move.source, move.target] for move in moves]}})


if __name__ == "__main__":
    main()
