"""Moves a job's checkpoints aside, as the job's user. Idempotent: repeated, it gives the same state and answer."""

from __future__ import annotations

from pathlib import Path

from sentinel.agent.probes import become, begin, say
from sentinel.checkpoints.quarantine import paths_of, quarantine
from sentinel.errors import SentinelError


def asked_for(paths: list[str], steps: list[int | None] | None) -> list[Path]:
    """The files and folders to move: a checkpoint's folder, or its own files where several steps share one."""
    known = steps or [None] * len(paths)
    return [found for path, step in zip(paths, known, strict=True) for found in paths_of(Path(path), step)]


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    try:
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
