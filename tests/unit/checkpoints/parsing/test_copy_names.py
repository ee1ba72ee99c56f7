"""Files under names that copying gives them: no loader reads them, and what they stand for may be missing."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.files import scan
from sentinel.checkpoints.inventory import find
from sentinel.checkpoints.parsing.copy_names import duplicate_of, is_not_for_use, set_aside_from
from sentinel.checkpoints.validate import validate

DUPLICATES = ("{} (1){}", "{} (12){}", "{} copy{}", "{} copy 2{}", "{} (copy){}", "{} (3rd copy){}", "{} - Copy{}",
              "{} - Copy (2){}", "Copy of {}{}")  # fmt: skip
ASIDE = ("{}{}~", "{}{}.bak", "{}{}.old", "{}{}.orig", "{}{}.part", "{}{}.partial", "{}{}.6eF22E3b", "{}{}.1",
         ".{}{}.x7Gh2s", "{}{}_.gstmp", "{}{}.tmp")  # fmt: skip


@pytest.mark.parametrize("shape", DUPLICATES)
@pytest.mark.parametrize("name", ["full_state.pt", "model.safetensors", "__0_0.distcp", "state.pt.tar"])
def test_duplicates_by_name(shape, name):
    stem, dot, end = name.partition(".")
    assert duplicate_of(shape.format(stem, dot + end)) == name


@pytest.mark.parametrize("shape", ASIDE)
@pytest.mark.parametrize("name", ["full_state.pt", "model-00001-of-00002.safetensors", "trainer_state.json"])
def test_set_aside_by_name(shape, name):
    assert set_aside_from(shape.format(name, "")) == name


@pytest.mark.parametrize(
    "name",
    ["model.pt", "ep0-ba10-rank3.pt", "epoch=1-step=20.ckpt", "mp_rank_00_model_states.pt", "copy.pt", "run (best).pt",
     "__0_0.distcp", ".metadata", "random_states_0.pkl", "model.safetensors.index.json", "log.txt (1)", "m.v1.2.pt",
     "events.out.tfevents.1732500000.n1.77.0", "args.json.bak", "iter_0000010_0_local.dirty.pt", "state.1.pt", "(1).pt"],
)  # fmt: skip
def test_names_that_are_no_copies(name):
    assert duplicate_of(name) is None and set_aside_from(name) is None


FILES = {
    "hf": ("checkpoint-20", ["model.safetensors", "optimizer.pt"]),
    "accelerate": ("step_20", ["model.safetensors", "optimizer.bin", "random_states_3.pkl"]),
    "dcp": ("step-20", ["__3_0.distcp"]),
    "deepspeed": ("global_step20", ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"]),
}
CASES = [
    (kind, at, file, shape) for kind, (at, files) in FILES.items() for file in files for shape in (*DUPLICATES, *ASIDE)
]


@pytest.mark.parametrize(("kind", "at", "file", "shape"), CASES)
def test_only_a_copy_is_there(make, kind, at, file, shape):
    path = make.root / "run" / at
    getattr(make, kind)(f"run/{at}", step=20)
    assert validate(path, "structural", now_s=make.now_s).valid is True
    stem, dot, end = file.partition(".")
    named = shape.format(stem, dot + end)
    (path / file).rename(path / named)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is not True, answer
    (path / file).write_bytes((path / named).read_bytes())  # and beside the file it is no part of the save
    os.utime(path / file, ns=((path / named).stat().st_mtime_ns,) * 2)
    (path / named).write_bytes(b"cut")
    assert validate(path, "structural", now_s=make.now_s).valid is True, validate(path, "structural", now_s=make.now_s)


@pytest.mark.parametrize("shape", [*DUPLICATES, *ASIDE])
def test_the_only_file_of_a_folder(make, shape):
    """Nothing else shows what it should be called."""
    make.write(make.root / "run/step-10/full_state.pt", make.torch_file({"step": 10}))
    path = make.root / "run/step-10"
    assert validate(path, "checksum", now_s=make.now_s).valid is True
    (path / "full_state.pt").rename(path / shape.format("full_state", ".pt"))
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and ("full_state.pt" in answer.reason or "empty" in answer.reason), answer


def test_a_copy_beside_is_no_candidate(make):
    for name in ("iter_70.pt", "iter_80 (1).pt", "iter_80 copy.pt", "Copy of step-90.ckpt"):
        make.write(make.root / "run" / name, make.torch_file({"iteration": 70}))
    assert [spot.path.name for spot in find(make.root / "run").spots] == ["iter_70.pt"]


def test_a_copy_is_not_counted(make):
    path = make.root / "run/step-10"
    make.dcp("run/step-10")
    make.write(path / "__0_0 (1).distcp", b"x" * 999)
    assert "__0_0 (1).distcp" not in scan(path).files


NOT_FOR_USE = ("step_20.tmp", "step_20_tmp", "tmp_step_20", ".tmp-step_20", "step_20__tmp__", "tmp-checkpoint-20",
               "step_20.tmp.pt", "step_20.tmp.pth.tar", "step_20-incomplete", "step_20.partial",
               "step_20_in_progress", "step_20.corrupt", "step_20_BROKEN", "step_20.bad", "step_20_deleted",
               "checkpoint_3_bad", "20.tmp", "run_3_bad.pt", "tmp_model_3.pt", "epoch_3.torn",
               "iter_0000100.bad", "ep0-ba10_tmp", "run_3_bad", "snapshot_12_failed", "state_5000_damaged",
               "model_100_tmp", "weights_100_broken", "resume_500.partial", "checkpoint_last_3_tmp", "tmp_latest",
               "tmp_final", "latest_3.tmp", ".tmp_ckpt", "ckpt_e3_s100.incomplete", "actor_100.tmp",
               "v2_checkpoint-100_bad", "checkpoint-100-old_bad")  # fmt: skip
FOR_USE = ("step_20", "temp_0.7_step_20", "partial_fc_step_20", "broken_ice-step_20", "temperature_step_20",
           "step_20-badger", "step_20.pth.tar", "epoch=1-step=20.ckpt", "step_20_old", "step_20.bak",
           "run_bad", "temp_low_step_20")  # fmt: skip


@pytest.mark.parametrize("name", [*NOT_FOR_USE, *FOR_USE])
def test_names_of_what_is_not_for_use(name):
    assert is_not_for_use(name) is (name in NOT_FOR_USE)


@pytest.mark.parametrize("name", ["step_20.tmp", "tmp_step_20", "step-20.corrupt"])
def test_a_whole_save_under_a_name_that_is_not_for_use(make, name):
    """Its writer was killed before it renamed it, or a person knows better: no loader finds it under its name."""
    path = make.dcp(f"run/{name}", step=20)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "not finished, or was set aside" in answer.reason, answer
    path.rename(path.with_name("step_20"))
    answer = validate(path.with_name("step_20"), "structural", now_s=make.now_s)
    assert answer.valid is True, answer


@pytest.mark.parametrize("name", ["snapshot_12_failed", "tmp_latest", "actor_100.tmp"])
def test_a_name_that_states_no_step_may_be_marked_as_well(make, name):
    """The step inside is no reason to trust what its writer had not renamed yet."""
    answer = validate(make.hf(f"run/{name}", step=12), "structural", now_s=make.now_s)
    assert answer.valid is None and "not finished, or was set aside" in answer.reason, answer


@pytest.mark.parametrize("run", ["run_3_bad", "lr_0.1_tmp"])
def test_the_mark_of_a_run_is_none_of_its_saves(make, run):
    make.dcp(f"{run}/step_20", step=20)
    (spot,) = find(make.root / run).spots
    assert validate(spot.path, "structural", now_s=make.now_s).valid is True
