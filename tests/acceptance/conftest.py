"""Labs for acceptance tests: a real Slurm each, brought up by the command that people use."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "deploy" / "lab" / "lab"


class LabUnderTest:
    """The lab's command line, and what a person sees of the cluster."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """``lab COMMAND ... --dir DIR``."""
        # What comes after -- is for sbatch: our own option goes before it.
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*arguments[:cut], "--dir", str(self.dir), *arguments[cut:]]
        done = subprocess.run(
            ["bash", str(ENTRY), *words],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "SENTINEL_LAB_PYTHON": sys.executable},
        )
        assert not check or done.returncode == 0, f"lab {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def inject(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("inject", *arguments, "--json").stdout.splitlines()]

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.run("status", "--json").stdout))

    def environment(self) -> dict[str, str]:
        exports = self.run("env").stdout.splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in exports)
        return {**os.environ, **{name: shlex.split(value)[0] for name, _, value in pairs}}

    def slurm(self, *command: str) -> str:
        """One of Slurm's own commands against this lab."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=self.environment())
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, *arguments: str) -> int:
        return int(self.run("submit", *arguments).stdout)

    def log(self, job: int) -> str:
        found = list((self.dir / "shared").glob(f"*-{job}.out"))
        return found[0].read_text(encoding="utf-8") if found else ""

    def wait_log(self, job: int, text: str, timeout_s: float = 90) -> str:
        until(lambda: text in self.log(job), timeout_s, lambda: f"{text!r} in the job's log:\n{self.log(job)[-3000:]}")
        return self.log(job)

    def cancel(self, job: int) -> None:
        """Cancel and wait until the nodes are free, so that tests do not wait for each other."""
        self.slurm("scancel", str(job))
        until(lambda: not self.slurm("squeue", "-h", "-o", "%i").strip(), 90, lambda: self.slurm("squeue"))


def until(check: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what()}")
        time.sleep(0.2)


def need_slurm() -> None:
    absent = slurm_cluster.missing()
    if absent:
        pytest.skip(f"needs a real Slurm; {absent}")


@pytest.fixture(scope="session")
def new_lab() -> Iterator[Callable[..., LabUnderTest]]:
    """Bring up a further lab: ``new_lab("--nodes", "2", ...)``; all are taken down at the end."""
    need_slurm()
    made: list[LabUnderTest] = []

    def bring_up(*arguments: str) -> LabUnderTest:
        base = Path(tempfile.mkdtemp(prefix="lab-"))  # short, for the socket path; pytest's own folders are too deep
        lab = LabUnderTest(base / "l")
        made.append(lab)
        lab.run("up", *arguments)
        return lab

    yield bring_up
    for lab in made:
        if lab.dir.exists():
            lab.run("down")
        lab.dir.parent.rmdir()


@pytest.fixture(scope="session")
def lab(new_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    """Slurm alone, three nodes of eight GPUs; tests leave no job behind."""
    return new_lab("--nodes", "3", "--gpus", "8", "--no-sentinel")
