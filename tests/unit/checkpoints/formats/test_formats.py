"""What is particular to each framework's checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest

from sentinel.checkpoints.steps import step_of
from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural", **more):
    return validate(path, level, now_s=make.now_s, **more)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100", 100),
        ("step-30-threads2", 30),
        ("step_7", 7),
        ("iter_0000200", 200),
        ("global_step4", 4),
        ("checkpoint-500", 500),
        ("epoch=3-step=1000.ckpt", 1000),
        ("gpt--val_loss=2.31-step=1000-consumed_samples=64000-last", 1000),
        ("iter_0000200_3_local.pt", 200),
        ("checkpoint-", None),
        ("step", None),
        ("footstep-3", None),
        ("last.ckpt", None),
        ("1000", None),
        ("step-1-step-2", None),
        ("step-" + "9" * 40, None),
        ("v2", None),
    ],
)
def test_a_step_is_read_never_guessed(name, step):
    assert step_of(name) == step


def test_a_step_that_is_nowhere_stated(make):
    path = make.dcp("final", step=10)
    shutil.move(path, path := make.root / "weights_final")
    assert ask(make, path).step == 10  # inside
    one = make.safetensors({"w": ("F32", (2,), make.floats(2))})
    make.write(make.root / "model.safetensors", one)
    answer = ask(make, make.root / "model.safetensors")
    assert answer.valid is True and answer.step is None and "not known" in answer.reason


# --- trackers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "valid"),
    [(b"200", True), (b"200\n", True), (b"", False), (b"300", False), (b"2 0 0", False), (b"\0\0\0", False)],
)
def test_megatrons_tracker(make, text, valid):
    make.megatron("run/iter_0000200")
    make.write(make.root / "run/latest_checkpointed_iteration.txt", text)
    answer = ask(make, make.root / "run", "checksum")
    assert answer.valid is valid and answer.format == "tracked"


def test_deepspeeds_tracker_proves_nothing(make):
    """It is written before the other ranks have finished."""
    path = make.deepspeed("run/global_step4")
    make.write(make.root / "run/latest", b"global_step4")
    assert ask(make, make.root / "run").valid is True
    (path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert ask(make, make.root / "run").valid is False
    make.write(make.root / "run/latest", b"../../etc")
    assert ask(make, make.root / "run").valid is False


# --- Megatron --------------------------------------------------------------------------------------------------------


def test_integrity_list_catches_a_shard_of_another_save(make):
    path, other = make.megatron("a/iter_0000200"), make.megatron("b/iter_0000100", 100)
    shutil.copy2(other / "__2_0.distcp", path / "__2_0.distcp")
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is False and "sha256" in answer.reason


def test_a_marker_that_is_cut(make):
    path = make.megatron("iter_0000200")
    make.write(path / "metadata.json", b'{"sharded_ba')
    assert ask(make, path).valid is False
    (path / "metadata.json").unlink()
    answer = ask(make, path)
    assert answer.valid is False and "did not finish" in answer.reason


def test_legacy_ranks_form_a_grid(make):
    path = make.megatron_legacy("iter_0000200", tp=2, pp=3)
    assert ask(make, path, "content").valid is True
    shutil.rmtree(path / "mp_rank_01_002")
    assert "5 of 6" in ask(make, path).reason


def test_legacy_ranks_of_two_iterations(make):
    path, other = make.megatron_legacy("a/iter_0000200"), make.megatron_legacy("b/iter_0000100", 100)
    shutil.copy2(other / "mp_rank_01_000/model_optim_rng.pt", path / "mp_rank_01_000/model_optim_rng.pt")
    answer = ask(make, path)
    assert answer.valid is False and "different iterations" in answer.reason


# --- DeepSpeed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 3])
def test_all_shards_gone_is_noticed(make, stage):
    path = make.deepspeed("global_step4", stage=stage)
    for file in path.glob("*optim_states.pt"):
        file.unlink()
    assert ask(make, path).valid is False


def test_shards_of_two_steps(make):
    path, other = make.deepspeed("a/global_step4"), make.deepspeed("b/global_step8", 8)
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy2(other / name, path / name)
    answer = ask(make, path)
    assert answer.valid is False and "different steps" in answer.reason


# --- Hugging Face Trainer --------------------------------------------------------------------------------------------


def test_trainer_marks(make):
    path = make.hf("checkpoint-6")
    make.write(path / "checkpoint-is-incomplete.txt", b"")
    assert ask(make, path).valid is False
    (path / "checkpoint-is-incomplete.txt").unlink()
    make.json(path / "trainer_state.json", {"global_step": 5}, 1)
    assert "of step 5" in ask(make, path).reason
    make.write(path / "trainer_state.json", b'{"global_st', 1)
    assert ask(make, path).valid is False


def test_trainer_with_an_optimizer_of_another_step(make):
    path, other = make.hf("run/checkpoint-9", 9), make.hf("run/checkpoint-6", 6)
    shutil.copy2(other / "optimizer.pt", path / "optimizer.pt")
    answer = ask(make, path)
    assert answer.valid is False and "two saves mixed" in answer.reason


def test_trainer_sharded_index(make):
    path = make.hf("checkpoint-6", sharded=True)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    make.json(path / "model.safetensors.index.json", index)
    assert "model.extra" in ask(make, path).reason


@pytest.mark.parametrize("inner", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_trainer_with_fsdp(make, inner):
    path = make.hf("checkpoint-6")
    make.dcp("checkpoint-6/pytorch_model_fsdp_0", step=6)
    make.dcp("checkpoint-6/optimizer_0", step=6)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (path / name).unlink()
    assert ask(make, path, "checksum").valid is True
    (path / inner / "__1_0.distcp").unlink()
    assert ask(make, path).valid is False


def test_trainer_with_deepspeed(make):
    path = make.hf("checkpoint-6")
    make.deepspeed("checkpoint-6/global_step6", 6)
    make.write(path / "latest", b"global_step6")
    (path / "model.safetensors").unlink()
    assert (ask(make, path, "checksum").valid, ask(make, path).format) == (True, "hf_trainer")
    (path / "global_step6/mp_rank_00_model_states.pt").unlink()
    assert ask(make, path).valid is False


# --- NeMo, Lightning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 3])
def test_a_partition_of_deepspeed_that_is_there_twice(make, stage):
    path = make.deepspeed("run/global_step4", ranks=3, stage=stage)
    assert ask(make, path, "checksum").valid is True
    shards = sorted(path.glob("*optim_states.pt"))
    shards[2].write_bytes(shards[0].read_bytes().replace(b"pp_rank_0", b"pp_rank_2"))
    make.age(shards[2], 3600)
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "twice" in answer.reason, answer


@pytest.mark.parametrize("kind", ["optim", "model"])
def test_files_of_deepspeeds_ranks_that_changed_places(make, kind):
    """torch.save keeps a file's name inside of it, and DeepSpeed's name their ranks."""
    path = make.deepspeed("run/global_step4", ranks=2, stage=3)
    first, second = sorted(path.glob(f"*{kind}_states.pt"))
    held = first.read_bytes()
    make.write(first, second.read_bytes())
    make.write(second, held)
    answer = ask(make, path)
    assert answer.valid is None and "changed places" in answer.reason, answer


@pytest.mark.parametrize("stage", [1, 3])
def test_an_optimizer_of_deepspeed_that_was_emptied(make, stage):
    before, path = make.deepspeed("run/global_step2", 2, stage=stage), make.deepspeed("run/global_step4", stage=stage)
    assert ask(make, path).valid is True
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    base = {"state": {}, "param_groups": [{"params": [0]}]}
    whole = {"base_optimizer_state": base, "partition_count": [2], "zero_stage": stage}
    make.write(path / name, make.torch_file({"optimizer_state_dict": whole}, prefix=name[:-3]))
    answer = ask(make, path)
    assert answer.valid is None and f"that of {before.name} of" in answer.reason, answer


def test_partitions_of_a_state_that_was_just_made_are_alike(make):
    make.floats = lambda count, dtype="float32", low=-1: bytes(count * (4 if dtype == "float32" else 2))
    assert ask(make, make.deepspeed("run/global_step4", ranks=3), "checksum").valid is True


def test_nemo_with_a_shard_of_the_save_before(make):
    before, path = make.nemo("run/name--step=10-last", 10), make.nemo("run/name--step=20-last", 20)
    for file in before.rglob("*"):
        if file.is_file():
            make.age(file, 7200)
    assert ask(make, path).valid is True
    shutil.copy2(before / "weights/__2_0.distcp", path / "weights/__2_0.distcp")
    answer = ask(make, path)
    assert answer.valid is None and "two saves" in answer.reason, answer


@pytest.mark.parametrize("backend", ["torch_dist", "torch_dcp"])
@pytest.mark.parametrize("below", ["", "/weights"])
def test_the_common_part_that_no_list_of_megatrons_names(make, backend, below):
    path = make.megatron("run/iter_0000200" + below, integrity=False)
    if below:
        make.json(path.parent / "context/model.json", {"layers": 2})
    make.json(path / "metadata.json", {"sharded_backend": backend, "sharded_backend_version": 1}, 2)
    whole = path.parent if below else path
    assert validate(whole, "checksum", now_s=make.now_s).valid is True
    (path / "common.pt").unlink()
    answer = validate(whole, "structural", now_s=make.now_s)
    assert answer.valid is (backend == "torch_dcp") and ("common.pt is missing" in answer.reason) is (not answer.valid)


def test_a_step_of_megatron_without_the_marker_that_the_step_beside_has(make):
    """It is written last, and without it the step is not loaded as what it is."""
    make.megatron("run/iter_0000100", 100, integrity=False)
    path = make.megatron("run/iter_0000200", integrity=False)
    assert ask(make, path).valid is True
    for file in (path / "metadata.json", path / "common.pt"):  # newer Megatron has none of the latter
        file.unlink()
    answer = ask(make, path)
    assert answer.valid is False and "iter_0000100 has" in answer.reason, answer


def test_nemos_marker(make):
    path = make.nemo("m--step=100-last")
    assert (ask(make, path, "checksum").valid, ask(make, path).step) == (True, 100)
    make.write(make.root / "m--step=100-last-unfinished", b"")
    answer = ask(make, path)
    assert answer.valid is False and "-unfinished" in answer.reason


def test_lightnings_sharded_folder(make):
    path = make.dcp("epoch=0-step=100.ckpt", step=100)
    make.write(path / "meta.pt", make.torch_file({"global_step": 100, "epoch": 0}))
    assert (ask(make, path, "checksum").valid, ask(make, path).format) == (True, "nemo")
    make.write(path / "meta.pt", b"")
    assert ask(make, path).valid is False


# --- NVRx ------------------------------------------------------------------------------------------------------------


def test_the_newest_iteration_of_a_session_or_the_one_asked_for(make):
    make.nvrx("session", 100)
    make.nvrx("session", 200)
    (make.root / "session/3/iter_0000200_3_local.pt").rename(make.root / "session/3/iter_0000200_3_local.dirty.pt")
    assert ask(make, make.root / "session").valid is False
    assert ask(make, make.root / "session", step=100).valid is True


def test_a_state_of_another_iteration(make):
    path, other = make.nvrx("a", 200), make.nvrx("b", 100)
    shutil.copy2(other / "1/iter_0000100_1_local.pt", path / "1/iter_0000200_1_local.pt")
    assert "iteration 100" in ask(make, path).reason


def test_replicas_are_checked_too(make):
    path = make.nvrx("a", 200)
    shutil.copy2(path / "1/iter_0000200_1_local.pt", path / "2/iter_0000200_1_local.pt")
    assert ask(make, path, "checksum").valid is True
    make.write(path / "2/iter_0000200_1_local.pt", b"")
    assert ask(make, path).valid is False


# --- safetensors -----------------------------------------------------------------------------------------------------


def test_shards_of_fewer_ranks_than_the_step_beside(make):
    make.hf_writer("run/step-60", ranks=3)
    path = make.hf_writer("run/step-70", ranks=3)
    assert ask(make, path).valid is True
    (path / "shard-00003-model-00001-of-00001.safetensors").unlink()
    assert ask(make, path).valid is None
    (path / "shard-00001-model-00001-of-00001.safetensors").unlink()
    assert ask(make, path).valid is False


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_longer_or_shorter_than_its_header_says(make, change):
    data = make.safetensors({"w": ("F32", (8,), make.floats(8))})
    make.write(make.root / "step-1.safetensors", data + b"\0" if change > 0 else data[:-1])
    assert ask(make, make.root / "step-1.safetensors").valid is False
