"""Checkpoints as Composer writes them, where it is installed: in order, whole, not accepted damaged.

``pip install mosaicml``. Written with mosaicml 0.32.1 on torch 2.13.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys

import pytest

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


def written(tmp_path_factory, library, program):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is optional and not installed")
    root = tmp_path_factory.mktemp(library)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(root / "out")], capture_output=True, text=True, env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return root / "out"


@pytest.fixture(scope="module")
def composer(tmp_path_factory):
    return written(tmp_path_factory, "composer", COMPOSER)


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
