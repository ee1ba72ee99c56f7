"""Moves a job's checkpoints aside, as the job's user. Done again it ends in the same state and says the same."""

from __future__ import annotations

from pathlib import Path

from sentinel.agent.probes import become, begin, say
from sentinel.checkpoints.quarantine import quarantine
from sentinel.errors import SentinelError


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments.get("gid"))
    try:
        moves = quarantine(
            Path(arguments["root"]),
            [Path(path) for path in arguments["paths"]],
            reason=str(arguments.get("reason", "")),
        )
    except SentinelError as error:
        say({"error": str(error)})
        return
    say({"result": {"moved": [[move.source, move.target] for move in moves]}})


if __name__ == "__main__":
    main()
