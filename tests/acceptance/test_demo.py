"""The promise of the first page: five faults, five right recoveries, with Slurm and the job's log as witnesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slurm
@pytest.mark.torch
def test_five_faults_five_recoveries(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    answers = tmp_path / "demo.json"
    folder = Path("/tmp") / f"sentinel-demo-{os.getpid()}"  # munged's socket needs a short path
    command = [sys.executable, "-m", "lab.demo", "--json", str(answers), "--dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}", "COLUMNS": "100"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    rows = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
    wrong = [(row["fault"], row["wrong"]) for row in rows if not row["ok"]]
    assert done.returncode == 0 and not wrong, f"{wrong}\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert [row["cause"] for row in rows] == [
        "gpu_fallen_off_bus",
        "nccl_hang_unknown",
        "checkpoint_corrupt",
        "node_failure",
        "user_code",
    ]
    assert [len(row["drained"]) for row in rows] == [1, 0, 0, 1, 0]
    assert not folder.exists(), "the demo leaves nothing behind"
