"""Weights that a trainer keeps for others to load, beside the saves that hold its optimizer too."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs


def lightning(make, name, step, optimizer=True):
    """As ModelCheckpoint writes it, and with ``save_weights_only=True``, which leaves the trainer's progress in."""
    progress = {"optimizer": {"step": {"total": {"ready": step, "completed": step}}}}
    value = {
        "epoch": 0, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": {"w": make.tensor((16, 8))},
        "loops": {"fit_loop": {"epoch_loop.automatic_optimization.optim_progress": progress}},
    }  # fmt: skip
    if optimizer:
        value |= {"callbacks": {}, "optimizer_states": [{"state": {}, "param_groups": []}], "lr_schedulers": []}
    return written(make, name, value)


def composer(make, name, step, optimizer=True):
    state = {"model": {"w": make.tensor((16, 8))}, "integrations": {}, "metadata": {}}
    if optimizer:
        state |= {"optimizers": {"AdamW": {"state": {}}}, "timestamp": {"Timestamp": {"iteration": 0}}}
    return written(make, name, {"state": state} if not optimizer else {"state": state, "rng": []})


def own(make, name, step, optimizer=True):
    value = {"model": {"w": make.tensor((16, 8))}, "step": step}
    return written(make, name, value | ({"optimizer": {"state": {}, "param_groups": []}} if optimizer else {}))


def written(make, name, value):
    path = make.root / "run" / name
    make.write(path, make.torch_file(value, [make.floats(128)], prefix=path.name.rpartition(".")[0]))
    make.age(path, 3600)
    return path


def listed(make, level="checksum", **limits):
    return listing(make.root / "run", "global", None, level=level, now_s=make.now_s, **limits)


def chosen(make, parts):
    return choose(
        join([parts], world_size=None), step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(),
        world_size=None, costs=Costs(), level="checksum",
    ).chosen  # fmt: skip


@pytest.mark.parametrize(
    ("save", "weights", "whole"),
    [
        (lightning, "best-step=36.ckpt", "last.ckpt"),
        (lightning, "weights-step=35.ckpt", "step=30.ckpt"),
        (lightning, "export/weights-step=35.ckpt", "step=30.ckpt"),
        (composer, "w/ep0-ba35-rank0.pt", "ep0-ba30-rank0.pt"),
        (composer, "w/ep0-ba30-rank0.pt", "ep0-ba30-rank0.pt"),
        (own, "model_step_36.pt", "ckpt_step_30.pt"),
    ],
)
def test_the_save_with_the_optimizer_is_chosen(make, save, weights, whole):
    """Lightning refuses to go on from such a file; others go on without their optimizer, and say nothing."""
    save(make, weights, 36, optimizer=False)
    save(make, whole, 30)
    parts = listed(make)
    assert chosen(make, parts).path == str(make.root / "run" / whole), parts
    (passed,) = [part for part in parts if part.path.endswith(weights)]
    assert passed.valid is None and "without an optimizer" in passed.reason and whole in passed.reason, passed


@pytest.mark.parametrize("save", [lightning, composer, own])
def test_where_all_are_weights_they_count(make, save):
    for step in (10, 20):
        save(make, f"step={step}.ckpt", step, optimizer=False)
    assert [(part.step, part.valid) for part in listed(make)] == [(20, True), (10, True)]


@pytest.mark.parametrize("limits", [{"enough": 2}, {"limit": 3}, {"enough": 2, "limit": 3}])
def test_many_weights_do_not_hide_the_whole_saves(make, limits):
    for step in range(20, 30):
        lightning(make, f"weights-step={step}.ckpt", step, optimizer=False)
    for step in (5, 10):
        lightning(make, f"step={step}.ckpt", step)
    assert chosen(make, listed(make, **limits)).step == 10
