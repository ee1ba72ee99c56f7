"""Tells which jobs this node's prolog refused, and why: Slurm requeues them before they begin, so nobody else can.

The prolog leaves a line in ``refused/<job>.<attempt>`` of the run folder. Each heartbeat tells all of the last day: the
daemon keeps them in memory, and another one may be active by then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sentinel.agent.process.state_files import own_bytes
from sentinel.text import plain

KEPT_S = 86400.0
_MOST = 20  # the newest; a node that refuses is drained, so there are few
_NAME = re.compile(r"(\d{1,10})\.(\d{1,10})")
_CHARACTERS = 300


class Refusals:
    """The refusals in one run folder, with their ages.

    A file's time of day says how old it is when it is first seen. From then on its age is measured: after the clock was set
    back the time of day is in the future, and what is told at each heartbeat would be taken for refused just now.

    Args:
        now_s: Unix time.
        passed_s: seconds that a clock shows which nobody sets.
    """

    def __init__(
        self, run_dir: Path, now_s: Callable[[], float] = time.time, passed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._now_s, self._passed_s = run_dir / "refused", now_s, passed_s
        self._refused_s: dict[tuple[str, int], float] = {}  # by name and time of the file: when, by ``passed_s``

    def told(self) -> list[dict[str, object]]:
        """For a heartbeat: job, attempt, reason, and how many seconds ago it was refused; newest first.

        What cannot be read or removed is left out: a heartbeat must not fail for a run folder that is full.
        """
        try:
            paths = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
            written = {(path.name, path.stat().st_mtime_ns): path for path in paths}
        except FileNotFoundError:  # the first time, or one was removed meanwhile
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
            return []
        except OSError:
            return []
        now_s, passed_s, known = self._now_s(), self._passed_s(), self._refused_s
        self._refused_s = {file: known.get(file, passed_s - max(0.0, now_s - file[1] / 1e9)) for file in written}
        told: list[dict[str, object]] = []
        for file, path in sorted(written.items(), key=lambda one: self._refused_s[one[0]], reverse=True):
            ago_s = passed_s - self._refused_s[file]
            if ago_s > KEPT_S:
                with suppress(OSError):
                    path.unlink()
            elif len(told) < _MOST:
                job, _, attempt = path.name.partition(".")
                try:
                    reason = plain(own_bytes(path).decode("utf-8", "replace").strip())[:_CHARACTERS]
                except OSError:
                    continue
                told.append({"job": int(job), "attempt": int(attempt), "reason": reason, "ago_s": ago_s})
        return told
