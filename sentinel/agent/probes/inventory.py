"""Lists and checks a job's checkpoints under given roots, and moves some of them aside, as the job's user.

Asked for listings it first sends a default answer for each root, and then each root's listing as soon as it is made: if a
file system hangs and this process is killed, the agent still has the listings of the other roots.

Afterwards it waits for the next request for this user, since a start takes twenty times as long as a listing, and as a move:
a restart waits for both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.agent.probes import account, become, begin, next_request, quarantine, say
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.kept_manifest import default_folder
from sentinel.checkpoints.records import NO_ANSWER, Part, Tier, parse_level, parse_tier
from sentinel.checkpoints.space import space_of
from sentinel.checkpoints.validate import Settings

ENOUGH = 3  # after this many valid checkpoints, older ones are not read, which takes long for terabytes
LIMIT = 60  # newest checkpoints considered per root
STAYS_BYTES = 128 << 20  # a process that uses more memory than this after a listing ends, to free it


def main() -> None:
    first = begin()
    user = (first["uid"], first["gid"])
    arguments: Mapping[str, Any] | None = first
    while arguments is not None:
        if (arguments["uid"], arguments["gid"]) != user:
            raise PermissionError(f"asked as user and group {user}, then as another")
        moves = "paths" in arguments
        if not moves:
            say({"listings": _unanswered(arguments)})
        if arguments is first:
            become(*user)
            os.environ["HOME"] = account()[1]
        answer = quarantine.answer(arguments) if moves else _list(arguments)
        stays = _memory_bytes() < STAYS_BYTES
        say({**answer, "finished": True, "stays": stays})
        arguments = next_request() if stays else None


def _unanswered(arguments: Mapping[str, Any]) -> list[list[dict[str, object]]]:
    node, level = arguments["node"], parse_level(arguments["level"])
    return [
        [
            Part(
                host=node, root=str(path), path=str(path), key=".", step=None, tier=tier, format="unknown", bytes=0,
                valid=None, level=level, reason=NO_ANSWER,
            ).to_json()
        ]
        for path, tier in _roots(arguments)
    ]  # fmt: skip


def _list(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Say each root's listing; nothing is left for the last message."""
    settings = Settings(manifests=default_folder() if os.environ["HOME"] else None)
    for index, (path, tier) in enumerate(_roots(arguments)):
        parts = listing(
            path,
            tier,
            arguments["node"],
            level=parse_level(arguments["level"]),
            limit=int(arguments.get("limit") or LIMIT),
            enough=int(arguments.get("enough") or ENOUGH),
            before_step=arguments.get("before_step"),
            settings=settings,
        )
        say({"index": index, "listing": [part.to_json() for part in parts], "space": _space(path)})
    return {}


def _roots(arguments: Mapping[str, Any]) -> list[tuple[Path, Tier]]:
    return [(Path(root["path"]), parse_tier(root["tier"])) for root in arguments["roots"]]


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _space(path: Path) -> dict[str, int | None] | None:
    try:
        return space_of(str(path)).to_json()
    except OSError:
        return None  # the listing reports why


if __name__ == "__main__":
    main()
