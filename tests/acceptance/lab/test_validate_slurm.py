"""One check, shared out over the nodes of a real Slurm."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stories.timeline import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]
SAVE = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp

torch.manual_seed(7)
state = {f"layer{i}": torch.randn(64, 64) for i in range(24)}
dcp.save(state, storage_writer=dcp.FileSystemWriter(sys.argv[1], thread_count=8), no_dist=True)
"""


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("--nodes", "4", "--gpus", "1", "--no-sentinel")


@pytest.fixture
def saved(lab, request) -> Path:
    path: Path = lab.dir / "shared" / request.node.name.translate(str.maketrans("[]", "--")) / "step-10"
    path.parent.mkdir()
    subprocess.run([sys.executable, "-c", SAVE, str(path)], check=True, timeout=300)
    return path


def validate(lab, path: Path, nodes: int, *more: str) -> subprocess.Popen[str]:
    words = ["checkpoints", "validate", str(path), "--level", "checksum", "--slurm", str(nodes), "--json", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "sentinel", *words],
        env={**lab.environment(), "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(asked: subprocess.Popen[str]) -> tuple[bool | None, str, int]:
    output, complaint = asked.communicate(timeout=300)
    assert output, complaint
    said = json.loads(output)
    return said["valid"], said["reason"], asked.returncode


def damage(shard: Path) -> None:
    """A flipped bit in a tensor, and nothing of it in the times."""
    kept = shard.stat()
    data = bytearray(shard.read_bytes())
    data[data.index(b"/data/0") + 2000] ^= 4
    shard.write_bytes(data)
    os.utime(shard, ns=(kept.st_atime_ns, kept.st_mtime_ns))


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_whole_one_is_valid_and_a_damaged_one_is_not(lab, saved: Path, nodes: int):
    assert answer(validate(lab, saved, nodes)) == (True, "every recorded checksum matches", 0)
    damage(saved / "__0_5.distcp")
    valid, reason, status = answer(validate(lab, saved, nodes))
    assert (valid, status) == (False, 4)
    assert "__0_5.distcp" in reason
    assert "CRC-32" in reason
    until(lambda: not lab.slurm("squeue", "-h", "-t", "PENDING,RUNNING").strip(), "no job left")


def test_a_node_dies_meanwhile(lab, saved: Path, tmp_path: Path):
    """Before its task has read anything: what it would have said is not known, and the rest is not enough."""
    held = tmp_path / "held"
    prolog = saved.parent / "prolog"
    prolog.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" = n3 ] || exit 0\ntouch {held}\nsleep 300\n')
    prolog.chmod(0o755)
    asked = validate(lab, saved, 4, f"--srun=--task-prolog={prolog}")
    try:
        until(held.exists, "the task of n3 to begin")
        lab.inject("node-crash", "--node", "n3")
        lab.slurm("scontrol", "update", "nodename=n3", "state=down", "reason=it died")
        valid, reason, status = answer(asked)
    finally:
        asked.kill()
        asked.wait()
    assert (valid, status) == (None, 4)
    # Slurm ends the whole step with the node: how many of the others had answered by then is theirs.
    assert re.match("only [0-3] of 4 shares were answered", reason)


def test_shards_are_replicated_to_a_peers_own_disk(lab, saved: Path):
    """Through a step of Slurm, as the user: the peer's folder is named, not mounted."""
    peer = lab.dir / "nvme-of-the-peer"
    words = [
        "checkpoints", "replicate", str(saved), "--slurm", "--to", str(peer), "--nodes", "n[1-2]", "--host", "n1", "--json",
    ]  # fmt: skip
    environment = {**lab.environment(), "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    for already in (0, len(list(saved.iterdir()))):
        done = subprocess.run(
            [sys.executable, "-m", "sentinel", *words], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["complete"], said["already"]) == (True, already)
    for file in saved.iterdir():
        assert (peer / saved.name / file.name).read_bytes() == file.read_bytes()
