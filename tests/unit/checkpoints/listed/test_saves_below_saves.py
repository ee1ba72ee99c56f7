"""A folder of a run that is a save itself, as its program's last line left it, and holds the saves of the run in folders."""

from __future__ import annotations

import shutil

import pytest

from sentinel.checkpoints.inventory import find, listing


def found(make, root="run"):
    return {str(spot.path.relative_to(make.root)) for spot in find(make.root / root).spots}


def exported(make, folder="run", step=20):
    """What the example scripts of Hugging Face end with: trainer.save_model(); trainer.save_state()."""
    whole = make.hf("whole", step=step)
    for name in ("model.safetensors", "training_args.bin", "trainer_state.json"):
        shutil.copy2(whole / name, make.root / folder)
    shutil.rmtree(whole)


def keras(make):
    (make.root / "run/final.keras").write_bytes(b"PK\x03\x04")


def saved_model(make):
    (make.root / "run/saved_model.pb").write_bytes(b"\x08\x01")
    (make.root / "run/variables").mkdir()


def accelerates(make):
    shutil.copytree(make.accelerate("whole"), make.root / "run", dirs_exist_ok=True)
    shutil.rmtree(make.root / "whole")


def distributed(make):
    shutil.copytree(make.dcp("whole", step=20), make.root / "run", dirs_exist_ok=True)
    shutil.rmtree(make.root / "whole")


@pytest.mark.parametrize("beside", [exported, keras, saved_model, accelerates, distributed])
def test_the_steps_are_found(make, beside):
    """The run went on from there, and its later saves were hidden."""
    for step in (10, 60):
        make.hf(f"run/checkpoint-{step}", step=step)
    beside(make)
    assert found(make) == {"run/checkpoint-10", "run/checkpoint-60"}
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [(part.step, part.valid) for part in parts] == [(60, True), (10, True)], parts


def test_numbered_ones_are_found(make):
    for number in (0, 1):
        make.accelerate(f"run/checkpoint_{number}", step=number)
    accelerates(make)
    assert found(make) == {"run/checkpoint_0", "run/checkpoint_1"}


def test_one_that_is_torn_is_a_save_of_the_run(make):
    (make.dcp("run/step-30", step=30) / ".metadata").unlink()
    keras(make)
    assert found(make) == {"run/step-30"}


def test_what_a_save_holds_in_folders_is_its_own(make):
    """DeepSpeed's folder in a save of the Trainer that was given another name, a part that counts, and logs."""
    best = make.hf("run/best", step=20)
    make.deepspeed("run/best/global_step20", step=20)
    (best / "latest").write_text("global_step20")
    (best / "runs/step-7").mkdir(parents=True)
    (best / "step-7").mkdir()
    (best / "step-7/log.txt").write_text("nothing")
    whole = make.accelerate("run/last")
    make.dcp("run/last/checkpoint_0", step=100)
    assert found(make) == {"run/best", "run/last"}, whole


@pytest.mark.parametrize(
    "beside",
    [
        "last.ckpt.meta",
        "export.keras",
        "trainer_state.json",
        "global_metadata.json",
        "random_states_0.pkl",
        "x.pdparams",
    ],
)
@pytest.mark.parametrize("name", ["epoch=0-step={}.ckpt", "step_{}.pt", "ep0-ba{}-rank0.pt", "checkpoint_{}"])
def test_one_file_beside_those_of_steps_hides_none(make, beside, name):
    """The folder of the run was the only save, of a library whose pattern matched."""
    value, payloads = make.state(10)
    for step in (10, 20, 30):
        state = {"optimizer": {"state": value, "param_groups": []}, "step": step}
        make.write(make.root / "run" / name.format(step), make.torch_file(state, payloads))
    (make.root / "run" / beside).write_text("{}")
    assert found(make) == {f"run/{name.format(step)}" for step in (10, 20, 30)}


def test_a_file_that_is_named_like_a_step_in_a_save(make):
    """One is no run, nor are the files of ranks."""
    path = make.dcp("run/final", step=20)
    for name in ("loader-step_20.pt", "0.ckpt", "1.ckpt"):
        make.write(path / name, make.torch_file({"cursor": 7}))
    assert found(make) == {"run/final"}
