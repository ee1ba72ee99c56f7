"""Moves a job's checkpoints aside, as the job's user. Idempotent: repeating it gives the same state and answer.

The daemon is not trusted with what the job named: slurmctld is asked for the job's comment. Where it does not answer, the
order counts: a checkpoint can be moved back, and a broken one that stays in its place may be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.agent.probes import become, begin, say
from sentinel.agent.probes.job_owner import named_roots
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


def require_named(arguments: Mapping[str, Any]) -> None:
    """
    Raises:
        Refused: Slurm says that the job does not name the root.
    """
    if not arguments.get("squeue"):  # the site does not let agents ask
        return
    job, deadline_s = int(arguments["job"]), min(float(arguments["squeue_s"]), float(arguments["deadline_s"]) / 2)
    named = named_roots(job, arguments["node"], arguments["squeue"], arguments["conf"], deadline_s)
    if named is not None and arguments["root"].rstrip("/") not in named:
        root = visible(arguments["root"])
        raise Refused(f"job {job} does not name {root} in its comment", fix="move it aside with sentinel quarantine")


def main() -> None:
    arguments = begin()
    try:
        require_named(arguments)
        become(arguments["uid"], arguments["gid"])
        root = Path(arguments["root"])
        asked = asked_for(root, arguments["paths"], arguments.get("steps"))
        moves = quarantine(root, asked, reason=str(arguments.get("reason", "")))
    except SentinelError as error:
        say({"error": str(error)})
        return
    say({"result": {"moved": [[move.source, move.target] for move in moves]}})


if __name__ == "__main__":
    main()
