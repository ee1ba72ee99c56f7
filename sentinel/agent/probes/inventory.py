"""Lists and checks a job's checkpoints under given roots, as the job's user.

First it says what the answer is for a root that never answers, then one listing per root as it has it: when a file system
hangs and we are killed, the agent still has the roots that answered.
"""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.agent.probes import become, begin, home_of_user, say
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.kept_manifest import default_folder
from sentinel.checkpoints.records import Part, parse_level, parse_tier
from sentinel.checkpoints.space import space_of
from sentinel.checkpoints.validate import Settings

ENOUGH = 3  # valid ones: older ones are checked by structure only, since reading terabytes takes long
LIMIT = 60  # checkpoints of one root, the newest first: an older one is not resumed from


def main() -> None:
    arguments = begin()
    node, level = arguments["node"], parse_level(arguments["level"])
    roots = [(Path(root["path"]), parse_tier(root["tier"])) for root in arguments["roots"]]
    unanswered = [
        [
            Part(
                host=node, root=str(path), path=str(path), key=".", step=None, tier=tier, format="unknown", bytes=0,
                valid=None, level=level, reason="this root did not answer within the deadline",
            ).to_json()
        ]
        for path, tier in roots
    ]  # fmt: skip
    say({"listings": unanswered})
    become(arguments["uid"], arguments["gid"])
    os.environ["HOME"] = home_of_user()
    settings = Settings(manifests=default_folder() if os.environ["HOME"] else None)
    for index, (path, tier) in enumerate(roots):
        parts = listing(
            path,
            tier,
            node,
            level=level,
            limit=int(arguments.get("limit") or LIMIT),
            enough=int(arguments.get("enough") or ENOUGH),
            before_step=arguments.get("before_step"),
            settings=settings,
        )
        say({"index": index, "listing": [part.to_json() for part in parts], "space": _space(path)})
    say({"finished": True})


def _space(path: Path) -> dict[str, int | None] | None:
    try:
        return space_of(str(path)).to_json()
    except OSError:
        return None  # the listing says why


if __name__ == "__main__":
    main()
