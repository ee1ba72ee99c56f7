"""Moves a job's checkpoints aside, in the process that lists them as the job's user (``sentinel.agent.probes.inventory``).

Idempotent: repeating it gives the same state and answer.

The daemon is not trusted with what the job named: the agent asks slurmctld for the job's comment. Where it does not
answer, the order counts: a checkpoint can be moved back, and a broken one that stays in its place may be loaded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentinel.checkpoints.inventory import find
from sentinel.checkpoints.own_folders import exists_below, opened_folder
from sentinel.checkpoints.quarantine import Move, kept_by_trackers, paths_of, quarantine, read_journal
from sentinel.checkpoints.setting_aside import links
from sentinel.errors import Refused, SentinelError
from sentinel.text import visible

_COPY_SHARE = 0.75  # of the order's deadline: until then a copy must be made, and the rest is for the moves that follow


def move_aside(
    root: Path,
    paths: list[str],
    steps: list[int | None] | None,
    reason: str,
    chosen: Path | None = None,
    left: dict[Path, str] | None = None,
    copy_until_s: float = math.inf,
) -> list[Move]:
    """Search for checkpoints and move them, both by one descriptor: somebody may put another folder in the root's place.

    The journal, and which files are one checkpoint's, are read by path: only names follow from them.

    ``left`` is filled with what stays in its place, and the tracker that would let no run start without it; ``copy_until_s``
    see ``sentinel.checkpoints.quarantine.quarantine``.

    Raises:
        SentinelError: see ``asked_for`` and ``sentinel.checkpoints.quarantine.quarantine``.
    """
    with opened_folder(root) as opened:
        asked = asked_for(root, paths, steps, opened)
        kept = kept_by_trackers(root, asked, chosen=chosen, opened=opened)
        if left is not None:
            left |= kept
        asked = [path for path in asked if path not in kept]
        if not asked and kept:
            return []
        return quarantine(
            root, asked, reason=reason, opened=opened, chosen=chosen, left=left, copy_until_s=copy_until_s
        )


def asked_for(root: Path, paths: list[str], steps: list[int | None] | None, opened: int) -> list[Path]:
    """The paths to move: a checkpoint's folder, or only its own files if several checkpoints share the folder.

    All lie where a search for checkpoints finds one: no code, data or results of the job's user.

    Args:
        opened: descriptor of the root.

    Raises:
        Refused: there is something else.
    """
    here = Path(f"/proc/self/fd/{opened}")
    places = {root / spot.path.relative_to(here) for spot in find(here).spots}
    moved = read_journal(root)
    asked: list[Path] = []
    for path, step in zip(map(Path, paths), steps or [None] * len(paths), strict=True):
        found = paths_of(path, step, moved)
        moved_before = path.is_relative_to(root) and not exists_below(opened, path.relative_to(root))
        several = path not in found  # files of a listed folder
        if not several and path not in places and not moved_before:
            raise Refused(f"{visible(str(path))} is no checkpoint", fix="Name one that an inventory lists.")
        asked += found
    return asked


def _links_above(root: Path, moves: Sequence[Move]) -> list[tuple[Path, str]]:
    """Links beside the root, which nobody changes, to what was moved: they lead nowhere now."""
    above, gone = root.absolute().parent, {move.source for move in moves if not move.wrote and not move.points_to}
    with suppress(SentinelError, OSError), opened_folder(above) as opened:
        return [(above / link, named) for link, _, named, _ in links.links_to(gone, above, opened, [Path()])]
    return []


def require_named(arguments: Mapping[str, Any]) -> None:
    """
    Args:
        arguments: ``named``: the folders that the job names, as the agent asked Slurm; none: that is not known.

    Raises:
        Refused: Slurm says that the job does not name the root.
    """
    named = arguments.get("named")
    if named is not None and arguments["root"].rstrip("/") not in named:
        root = visible(arguments["root"])
        raise Refused(
            f"job {arguments['job']} does not name {root} in its comment", fix="move it aside with sentinel quarantine"
        )


def answer(arguments: Mapping[str, Any]) -> dict[str, object]:
    """The answer to an order ``MoveAside``."""
    # After its deadline this process is killed, and what it did is not known to have been done.
    until_s = time.monotonic() + _COPY_SHARE * float(arguments.get("deadline_s") or math.inf)
    root = Path(arguments["root"])
    try:
        require_named(arguments)
        reason = str(arguments.get("reason", ""))
        chosen = Path(arguments["chosen"]) if arguments.get("chosen") else None
        left: dict[Path, str] = {}
        moves = move_aside(root, arguments["paths"], arguments.get("steps"), reason, chosen, left, until_s)
    except SentinelError as error:
        return {"error": str(error)}
    result: dict[str, object] = {"moved": [[move.source, move.target] for move in moves if not move.link]}
    result["links"] = [[move.source, move.points_to] for move in moves if move.link and not move.wrote]
    result["trackers"] = [
        [move.source, move.points_to] for move in moves if move.wrote or (move.points_to and not move.link)
    ]
    result["nowhere"] = [[str(link), named] for link, named in _links_above(root, moves)]
    result["left"] = [[str(path), tracker] for path, tracker in left.items()]
    return {"result": result}
