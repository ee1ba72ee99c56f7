"""The logs of labs: what in them is wrong, and keeping them when a test failed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# An error of our own, an exception nobody caught, a task or a connection that nobody waited for.
WRONG = re.compile(
    r" (ERROR|CRITICAL) |^(ERROR|CRITICAL)\b|Traceback \(most recent call last\)|never retrieved|never awaited|"
    r"Task was destroyed|Unclosed |Warning: "
)
_KEPT = ("log/*", "etc/*.toml", "nodes/*/log/*", "nodes/*/kmsg", "shared/*.out", "messages.jsonl", "faults.jsonl")
_KEPT_STATE = "state/sentinel/*"


def logs_of(lab: Path) -> list[Path]:
    """Of the daemon and of every agent."""
    return sorted([*lab.glob("log/daemon.log"), *lab.glob("nodes/*/log/agent.log")])


def lengths(labs: Sequence[Path]) -> dict[Path, int]:
    return {log: log.stat().st_size for lab in labs for log in logs_of(lab)}


def wrong_lines(labs: Sequence[Path], before: Mapping[Path, int]) -> list[str]:
    """Lines that were added since ``before`` and tell of an error, each with what follows it."""
    found = []
    for log in (log for lab in labs for log in logs_of(lab)):
        with log.open("rb") as content:
            content.seek(before.get(log, 0))
            lines = content.read().decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines):
            if WRONG.search(line):
                found += [f"{log}: {more}" for more in lines[number : number + 25]]
                break  # the rest is in the file, which is kept
    return found


def keep(test: str, labs: Sequence[Path]) -> Path:
    """Copy the logs to ``build/acceptance-logs/TEST`` ($SENTINEL_KEEP_LOGS names another folder than the first two)."""
    base = Path(os.environ.get("SENTINEL_KEEP_LOGS", ROOT / "build" / "acceptance-logs"))
    folder = base / re.sub(r"[^A-Za-z0-9_.-]+", "-", test.rpartition("/")[2])
    if any(lab.exists() for lab in labs):
        shutil.rmtree(folder, ignore_errors=True)
    for number, lab in enumerate(labs):
        for path in (path for pattern in (*_KEPT, _KEPT_STATE) for path in lab.glob(pattern)):
            if path.is_file():
                copy = folder / f"lab{number}" / path.relative_to(lab)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
