"""Checkpoints as Composer and Ray Train write them, where these are installed: in order, whole, not accepted damaged.

``pip install mosaicml "ray[train]"``. Run with mosaicml 0.32.1 and ray 2.60.0 on torch 2.13 (folders named by the time, and
a list of them), and with mosaicml 0.24.1 and ray 2.9.3 on torch 2.4.1 (folders that are numbered).
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sentinel.checkpoints import inventory
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, validate

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

COMPOSER = """
import sys, torch
from composer import Trainer
from composer.models import ComposerModel

class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 16)
    def forward(self, batch):
        return self.net(batch)
    def loss(self, outputs, batch):
        return ((outputs - batch.flip(1)) ** 2).mean()

model = Model()
Trainer(
    model=model, train_dataloader=torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4), max_duration="20ba",
    optimizers=torch.optim.AdamW(model.parameters()), save_folder=sys.argv[1], save_interval="10ba", device="cpu",
    progress_bar=False, run_name="run",
).fit()
"""

RAY = """
import os, sys, tempfile, torch, ray
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop(config):
    rank = train.get_context().get_world_rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in (1, 2):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(folder, f"model-rank={rank}.pt"))
            train.report({"loss": 1.0 / step}, checkpoint=Checkpoint.from_directory(folder))

ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, object_store_memory=100_000_000)
TorchTrainer(
    loop, scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(storage_path=sys.argv[1], name="run"),
).fit()
ray.shutdown()
"""


def written(tmp_path_factory, library, program):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is optional and not installed")
    root = tmp_path_factory.mktemp(library)
    env = os.environ | {"OMP_NUM_THREADS": "1", "RAY_TRAIN_V2_ENABLED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(root / "out")], capture_output=True, text=True, env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return root / "out"


@pytest.fixture(scope="module")
def composer(tmp_path_factory):
    return written(tmp_path_factory, "composer", COMPOSER)


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    return written(tmp_path_factory, "ray", RAY)


def seen(root, level="content"):
    return listing(root, "global", None, level=level, settings=Settings(fresh_s=0.0))


def test_composer(composer):
    parts = seen(composer)
    assert [(part.step, part.valid, part.level) for part in parts if part.step] == [
        (20, True, "content"),
        (10, True, "content"),
    ], parts


def test_composer_damaged(composer):
    path = composer / "ep1-ba20-rank0.pt"
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(20):
        at = rng.randrange(len(whole) - 64)
        path.write_bytes(whole[:at])
        assert validate(path, "structural", settings=Settings(fresh_s=0.0)).valid is False
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        assert validate(path, "content", settings=Settings(fresh_s=0.0)).valid is not True
    path.write_bytes(whole)


def test_ray(ray):
    parts = [part for part in seen(ray) if part.step]
    assert [(part.step, part.valid, part.level) for part in parts] == [(2, True, "content"), (1, True, "content")], (
        parts
    )


def test_what_torchtitan_calls_the_folder_of_a_replica():
    """Run with torchtitan 0.3.0. The folder holds no model, so nothing in it may be offered."""
    module = "torchtitan.experiments.torchft.checkpoint"
    titan = pytest.importorskip(module, reason="torchtitan and torchft are optional, and not both installed")
    manager = types.SimpleNamespace(folder="run", ft_replica_id="0")
    assert Path(titan.TorchFTCheckpointManager._ft_folder(manager)).name.startswith(inventory._PARTIAL)


@pytest.mark.parametrize("rank", [0, 1])
def test_ray_damaged(ray, rank):
    newest = next(part for part in seen(ray) if part.step == 2)
    folder = Path(newest.path)
    file = folder / f"model-rank={rank}.pt"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x10
    older = Path(next(part for part in seen(ray) if part.step == 1).path) / file.name
    for damaged in (b"", whole[: len(whole) // 2], bytes(len(whole)), bytes(flipped), older.read_bytes()):
        file.write_bytes(damaged)
        assert validate(folder, "content", settings=Settings(fresh_s=0.0)).valid is not True, len(damaged)
    file.unlink()
    assert validate(folder, "content", settings=Settings(fresh_s=0.0)).valid is not True
    file.write_bytes(whole)
