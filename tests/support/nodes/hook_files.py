"""The hook files as Slurm would run them: with Slurm's environment and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Hooks:
    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        (self.run / "jobs").mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "SENTINEL_RUN_DIR": str(self.run),
            "SENTINEL_HOOK_CONF": str(folder / "hook.conf"),
            "SENTINEL_HOME": str(ROOT),
            "SENTINEL_PYTHON": sys.executable,
            "SENTINEL_DCGM_HOST": "127.0.0.1:1",
            "SLURM_JOB_ID": "31",
            "SLURM_JOB_UID": "1001",
            "SLURM_JOB_USER": "someone",
            "SLURM_JOB_RESTART_COUNT": "2",
            "SLURM_NODELIST": "n[1-4]",
            "SLURM_JOB_STDOUT": "/data/out put.log",
            "SLURM_JOB_GPUS": "0,1",
        }

    def verdict(self, word: str, age_s: int = 0, rest: str = "code some words") -> None:
        uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME)) - age_s
        (self.run / "verdict").write_text(f"{word} {int(time.time()) - age_s} {rest}\n{uptime_s}\n")

    def __call__(self, file: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / file)],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
        )

    def job(self) -> dict[str, str]:
        made: dict[str, str] = json.loads((self.run / "jobs" / "31.json").read_text())
        return made
