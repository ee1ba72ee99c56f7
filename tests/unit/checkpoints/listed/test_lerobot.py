"""LeRobot's saves: a number for a name, and all files in two folders."""

from __future__ import annotations

import shutil

import pytest

from sentinel.checkpoints.inventory import listing


def save(make, number):
    path = make.root / f"run/checkpoints/{number:06d}"
    weights = {"w": ("F32", (16, 8), make.floats(128))}
    make.write(path / "pretrained_model/model.safetensors", make.safetensors(weights))
    make.json(path / "pretrained_model/config.json", {"type": "act"})
    moments = {f"state/0/{name}": ("F32", (16, 8), make.floats(128, low=0)) for name in ("exp_avg", "exp_avg_sq")}
    make.write(path / "training_state/optimizer_state.safetensors", make.safetensors(moments))
    make.json(path / "training_state/optimizer_param_groups.json", [{"lr": 0.1}])
    make.json(path / "training_state/training_step.json", {"step": number})
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, 36_000 - number)
    return path


def listed(make):
    return [(part.number, part.valid) for part in listing(make.root / "run", "global", None, now_s=make.now_s)]


@pytest.fixture
def newest(make):
    """They were not found at all."""
    newest = [save(make, number) for number in (10, 20, 30)][-1]
    assert listed(make) == [(30, True), (20, True), (10, True)]
    return newest


@pytest.mark.parametrize(
    "lost",
    [
        "pretrained_model/model.safetensors",
        "training_state",
        "training_state/optimizer_state.safetensors",
        "training_state/optimizer_param_groups.json",
        "training_state/training_step.json",
    ],
)
def test_one_that_lacks_a_part(make, newest, lost):
    shutil.rmtree(newest / lost) if "." not in lost else (newest / lost).unlink()
    assert listed(make) == [(30, None), (20, True), (10, True)]


@pytest.mark.parametrize("torn", ["pretrained_model/model.safetensors", "training_state/optimizer_state.safetensors"])
def test_one_that_is_torn(make, newest, torn):
    path = newest / torn
    path.write_bytes(path.read_bytes()[:-40])
    make.age(path, 3600)
    assert listed(make) == [(30, False), (20, True), (10, True)]
