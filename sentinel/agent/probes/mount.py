"""Checks that one mount answers. On a hung mount this process hangs and the agent kills it."""

from __future__ import annotations

import os

from sentinel.adapters.host.readings import used_fraction
from sentinel.agent.probes import begin, say


def main() -> None:
    path = begin()["path"]
    try:
        mounted = os.path.ismount(path)
        os.listdir(path)  # noqa: PTH208
    except OSError as error:
        say({"type": "mount", "error": f"{error.strerror}", "errno": error.errno})
        return
    say({"type": "mount", "mounted": mounted, "used": used_fraction(path)})


if __name__ == "__main__":
    main()
