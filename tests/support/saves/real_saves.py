"""Saves that a library itself writes, in a program of two ranks; and how they are judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sentinel.checkpoints.records import Level, Validity
from sentinel.checkpoints.validate import Settings, validate


def written_by(program: str, root: Path, *arguments: str, within_s: float = 600.0) -> Path:
    """Run ``program`` with ``root`` and ``arguments``; the folder that it wrote, ``root/run``."""
    (root / "make.py").write_text(program)
    done = subprocess.run(
        [sys.executable, root / "make.py", root, *arguments],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=within_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "run"


def an_hour_apart(run: Path, earlier: str) -> None:
    """Set the files' times back: those of the step whose paths hold ``earlier`` two hours, the others one."""
    for file in run.rglob("*"):
        at = file.stat().st_mtime - (7200 if earlier in str(file) else 3600)
        os.utime(file, (at, at))


def ask(path: Path, level: Level = "content") -> Validity:
    return validate(path, level, settings=Settings(fresh_s=0.0))


def needs_each_file(path: Path) -> None:
    """Assert that a save is whole, and invalid without any one of its files."""
    for file in sorted(path.iterdir()):
        held = file.rename(path.parent / "held")
        answer = ask(path)
        held.rename(file)
        assert answer.valid is False, f"without {file.name}: {answer}"
    assert ask(path).valid is True
