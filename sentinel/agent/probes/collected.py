"""Answers the daemon's order for what was collected for an attempt on this node: summaries of its dumps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sentinel.agent.probes import begin, say
from sentinel.agent.process.state_files import own_bytes
from sentinel.text import json_with_bytes

LOOK_S = 0.1


def answer(bundles: Path, job: int, attempt: int, wait_s: float) -> dict[str, Any]:
    """``{done, dumps, folder}``; ``done`` is false while the job has not ended here or collecting goes on."""
    name = f"{job}.{attempt}"
    until_s = time.monotonic() + wait_s
    while not (bundles / f"{name}.done").exists():
        if time.monotonic() >= until_s:
            return {"done": False, "dumps": [], "folder": None}
        time.sleep(LOOK_S)
    # A folder that the marker does not name belongs to an earlier job with this id.
    mark = json_with_bytes(own_bytes(bundles / f"{name}.done"))
    if not mark.get("folder"):
        return {"done": True, "dumps": [], "folder": None}
    dumps = json_with_bytes(own_bytes(bundles / name / "dumps.json"))
    return {"done": True, "dumps": dumps if isinstance(dumps, list) else [], "folder": str(bundles / name)}


def main() -> None:
    arguments = begin()
    try:
        bundles = Path(str(arguments["state"])) / "bundles"
        wait_s = max(0.0, float(arguments["deadline_s"]) - 0.5)
        say({"result": answer(bundles, int(arguments["job"]), int(arguments["attempt"]), wait_s)})
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        say({"error": f"what was collected cannot be told: {error!r}"})


if __name__ == "__main__":
    main()
