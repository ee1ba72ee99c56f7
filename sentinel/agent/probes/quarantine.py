"""Moves a job's checkpoints aside, as the job's user. Idempotent: repeating it gives the same state and answer."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.agent.probes import become, begin, say
from sentinel.checkpoints.inventory import find
from sentinel.checkpoints.quarantine import nvrx_step, paths_of, quarantine
from sentinel.errors import Refused, SentinelError
from sentinel.text import visible


def asked_for(paths: list[str], steps: list[int | None] | None) -> list[Path]:
    """The paths to move: a checkpoint's folder, or only its own files if several checkpoints share the folder."""
    known = steps or [None] * len(paths)
    return [found for path, step in zip(paths, known, strict=True) for found in paths_of(Path(path), step)]


def require_checkpoints(root: Path, paths: list[Path], steps: list[int | None] | None) -> None:
    """What is moved lies where a search for checkpoints finds one: no code, data or results of the job's user.

    Raises:
        Refused: there is something else.
    """
    places = {spot.path for spot in find(root).spots}
    for path, step in zip(paths, steps or [None] * len(paths), strict=True):
        of_session = step is not None and nvrx_step(path, step) is not None
        if path not in places and not of_session and os.path.lexists(path):
            raise Refused(f"{visible(str(path))} is no checkpoint", fix="Name one that an inventory lists.")


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    try:
        require_checkpoints(
            Path(arguments["root"]), [Path(path) for path in arguments["paths"]], arguments.get("steps")
        )
        moves = quarantine(
            Path(arguments["root"]),
            asked_for(arguments["paths"], arguments.get("steps")),
            reason=str(arguments.get("reason", "")),
        )
    except SentinelError as error:
        say({"error": str(error)})
        return
    say({"result": {"moved": [[move.source, move.target] for move in moves]}})


if __name__ == "__main__":
    main()
