"""A simulation whose seeds are shared out over a job array of a real Slurm says what one process says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.slurm_cluster import Cluster

pytestmark = pytest.mark.slurm
SMALL = ("--nodes", "16", "--days", "2", "--seed", "3", "--seeds", "3", "--json")


def simulated(cluster: Cluster, *options: str) -> dict[str, Any]:
    here = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "simulate", *SMALL, *options], cwd=cluster.folder / "jobs",
        env={**cluster.environment, "PYTHONPATH": here}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "wall_s": 0}


def test_a_job_array_finds_what_one_process_finds(real_slurm: Cluster) -> None:
    assert simulated(real_slurm, "--slurm", "2") == simulated(real_slurm)
    assert not list((real_slurm.folder / "jobs").glob("sentinel-simulate-*"))
