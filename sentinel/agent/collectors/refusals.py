"""Tells which jobs this node's prolog refused, and why: Slurm requeues them before they begin, so nobody else can.

The prolog leaves a line in ``refused/<job>.<attempt>`` of the run folder. Each heartbeat tells all of the last day: the
daemon keeps them in memory, and another one may be active by then.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from sentinel.agent.process.state_files import own_bytes
from sentinel.text import plain

KEPT_S = 86400.0
_MOST = 20  # the newest; a node that refuses is drained, so there are few
_NAME = re.compile(r"(\d{1,10})\.(\d{1,10})")
_CHARACTERS = 300


def refusals(run_dir: Path) -> list[dict[str, object]]:
    """For a heartbeat: job, attempt, reason, and how many seconds ago it was refused; newest first.

    What cannot be read or removed is left out: a heartbeat must not fail for a run folder that is full.
    """
    folder, now_s = run_dir / "refused", time.time()
    try:
        found = [(path.stat().st_mtime, path) for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:  # the first time, or one was removed meanwhile
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        return []
    except OSError:
        return []
    told: list[dict[str, object]] = []
    for at_s, path in sorted(found, reverse=True):
        if now_s - at_s > KEPT_S:
            with suppress(OSError):
                path.unlink()
        elif len(told) < _MOST:
            job, _, attempt = path.name.partition(".")
            try:
                reason = plain(own_bytes(path).decode("utf-8", "replace").strip())[:_CHARACTERS]
            except OSError:
                continue
            told.append({"job": int(job), "attempt": int(attempt), "reason": reason, "ago_s": max(0.0, now_s - at_s)})
    return told
