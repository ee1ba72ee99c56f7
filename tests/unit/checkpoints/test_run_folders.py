"""A run's folder is not valid by the files that lie in it beside its saves."""

from __future__ import annotations

import shutil

import pytest

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import validate


def beside_torch_file(make):
    make.legacy("run/args.pt")


def beside_nvrx(make):
    shutil.copytree(make.nvrx("whole", step=200), make.root / "run", dirs_exist_ok=True)


def beside_safetensors(make):
    (make.root / "run").mkdir()
    shutil.copy2(next(make.hf("whole", step=6).glob("*.safetensors")), make.root / "run")


def beside_dcp(make):
    shutil.copytree(make.dcp("whole", step=6), make.root / "run", dirs_exist_ok=True)


@pytest.mark.parametrize("beside", [beside_torch_file, beside_nvrx, beside_safetensors, beside_dcp])
@pytest.mark.parametrize("level", ["structural", "checksum"])
@pytest.mark.parametrize("name", ["step-10", "checkpoint_3", "epoch_4"])
def test_saves_in_folders_of_their_own(make, beside, level, name):
    beside(make)
    before = validate(make.root / "run", "structural", now_s=make.now_s)
    assert before.valid, before
    damaged = make.dcp(f"run/{name}", step=10)
    (damaged / "__1_0.distcp").unlink()
    answer = validate(make.root / "run", level, now_s=make.now_s)
    assert answer.valid is None and (name in answer.reason or level == "checksum"), answer


def test_one_of_safetensors_among_steps(make):
    make.dcp("run/step-10", step=10)
    make.hf("run/step-20", step=20)
    (make.root / "run/step-20/trainer_state.json").unlink()
    answer = validate(make.root / "run", "structural", now_s=make.now_s)
    assert answer.valid is None and "step-10" in answer.reason, answer


def test_a_listing_takes_each_by_itself(make):
    """What a node holds of NVRx's saves counts, whatever else lies beside them."""
    beside_nvrx(make)
    make.dcp("run/step-10", step=10)
    valid = {(part.format, part.valid) for part in listing(make.root, "global", "h", now_s=make.now_s)}
    assert ("nvrx_local", True) in valid, valid


def test_folders_that_are_no_saves(make):
    beside_torch_file(make)
    (make.root / "run/step-10").mkdir()
    (make.root / "run/step-10/log.txt").write_text("nothing")
    assert validate(make.root / "run", "structural", now_s=make.now_s).valid
