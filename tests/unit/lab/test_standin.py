"""The stand-in's checkpoints, and that a resumed run continues the very same curve."""

from __future__ import annotations

import sys
import zipfile

import pytest
from lab.faults.checkpoints import spoil
from lab.training import dcp, job
from lab.training.job import Place, Resume
from lab.training.standin import Training


class Alone:
    """The ranks of a job with one rank."""

    def mean(self, own):
        return list(own)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    """The stand-in's module names must neither meet a real torch nor stay behind for other tests."""
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "torch" or name.startswith("torch."):
            del sys.modules[name]


def here(rank: int = 0) -> Place:
    return Place(job=7, attempt=0, rank=rank, world=1, node="n1", gpus=(0,), master="127.0.0.1", port=1)


def training(tmp_path, rank: int = 0) -> Training:
    opt = job.Options("r", 10, 0.0, 2, 5, tmp_path / "g", tmp_path / "l", 1, False)
    return Training(opt, here(rank))


def save(where, one: Training) -> None:
    dcp.write_table(where / ".metadata", dcp.write_part(where, 0, one.items()))


def test_loss_falls_and_a_resumed_run_continues_the_same_curve(tmp_path):
    first = training(tmp_path)
    losses = [first.run_step(Alone(), spoil=False) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    where = tmp_path / "g" / "step-30"
    save(where, first)
    beyond = [first.run_step(Alone(), spoil=False) for _ in range(5)]
    again = training(tmp_path)
    again.load(Resume(30, "global", where))
    assert again.step == 30
    assert [again.run_step(Alone(), spoil=False) for _ in range(5)] == beyond


def test_ranks_draw_different_data(tmp_path):
    assert training(tmp_path, 0).run_step(Alone(), spoil=False) != training(tmp_path, 1).run_step(Alone(), spoil=False)


@pytest.mark.parametrize(
    ("how", "error"),
    [("flip", zipfile.BadZipFile), ("zero", zipfile.BadZipFile), ("truncate", Exception), ("torn", FileNotFoundError)],
)
def test_a_damaged_checkpoint_does_not_load(tmp_path, how, error):
    where = tmp_path / "step-1"
    items = {"weights": list(range(4000)), "step": 1}
    dcp.write_table(where / ".metadata", dcp.write_part(where, 0, items))
    assert dcp.read(where, ".metadata", ["weights", "step"]) == items
    before = (where / "__0_0.distcp").stat()
    victim = spoil(where, how)
    with pytest.raises(error):
        dcp.read(where, ".metadata", ["weights", "step"])
    if how in ("flip", "zero"):
        after = victim.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_part_that_is_missing_is_named(tmp_path):
    where = tmp_path / "step-1"
    dcp.write_table(where / ".metadata", dcp.write_part(where, 0, {"step": 1}))
    with pytest.raises(KeyError, match="rank_3"):
        dcp.read(where, ".metadata", ["rank_3"])
