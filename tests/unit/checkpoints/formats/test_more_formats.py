"""Layouts that trainers build of the common parts: whole ones are accepted, damaged ones at no price."""

from __future__ import annotations

import os
import shutil

import pytest

from sentinel.checkpoints.steps import step_of
from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


# --- Accelerate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["safetensors", "bin", "fsdp"])
def test_accelerate(make, model):
    answer = ask(make, make.accelerate(model=model))
    assert (answer.valid, answer.format, answer.step) == (True, "accelerate", 100)


@pytest.mark.parametrize("name", ["optimizer.bin", "scheduler.bin", "random_states_2.pkl", "model.safetensors"])
def test_accelerate_cut_short(make, name):
    path = make.accelerate()
    cut(path / name)
    assert ask(make, path).valid is False


def test_accelerate_without_a_rank(make):
    path = make.accelerate()
    (path / "random_states_1.pkl").unlink()
    assert ask(make, path).valid is False
    whole = make.accelerate("step_200")
    (whole / "random_states_3.pkl").unlink()  # the last: only the step beside tells
    make.accelerate("step_300")
    assert ask(make, whole).valid is None


def test_accelerate_without_a_model(make):
    path = make.accelerate()
    (path / "model.safetensors").unlink()
    assert ask(make, path).valid is False


# --- the Trainer -----------------------------------------------------------------------------------------------------


def numbered(make, count=2):
    path = make.hf("checkpoint-6")
    (path / "model.safetensors").unlink()
    table = {}
    for index in range(1, count + 1):
        file = f"pytorch_model-{index:05d}-of-{count:05d}.bin"
        name = f"layer{index}.weight"
        table[name] = file
        make.write(path / file, make.torch_file({name: make.tensor((16, 8))}, [make.floats(128)], file[:-4]))
    make.json(path / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": table})
    return path


def test_a_model_in_numbered_pickles(make):
    path = numbered(make)
    assert ask(make, path).valid is True
    (path / "pytorch_model-00002-of-00002.bin").unlink()
    assert ask(make, path).valid is False


def test_numbered_pickles_without_their_index(make):
    path = numbered(make)
    (path / "pytorch_model.bin.index.json").unlink()
    assert ask(make, path).valid is False


def test_ranks_of_fsdp_with_a_hole(make):
    path = make.hf("checkpoint-6")
    (path / "model.safetensors").unlink()
    for rank in (0, 2):
        value = {"a": make.tensor((16, 8)), "b": make.tensor((16, 8), key=1)}
        data = make.torch_file(value, [make.floats(128), make.floats(128)])
        make.write(path / f"pytorch_model_fsdp_0_rank{rank}.bin", data)
    assert ask(make, path).valid is False
    make.write(path / "pytorch_model_fsdp_0_rank1.bin", data)
    assert ask(make, path).valid is True


# --- DeepSpeed, universal --------------------------------------------------------------------------------------------


def test_universal(make):
    answer = ask(make, make.universal(), "checksum")
    assert (answer.valid, answer.format, answer.step) == (True, "deepspeed_universal", 4)


@pytest.mark.parametrize(
    "gone", ["zero/layers.1.weight", "zero/layers.0.weight/exp_avg.pt", "mp_rank_00_model_states.pt"]
)
def test_universal_with_something_missing(make, gone):
    path = make.universal()
    target = path / gone
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    assert ask(make, path).valid is not True


@pytest.mark.parametrize("kinds", [("exp_avg",), ("exp_avg", "exp_avg_sq")])
def test_universal_whose_moments_are_gone_everywhere(make, kinds):
    path = make.universal()
    for kind in kinds:
        for file in path.glob(f"zero/*/{kind}.pt"):
            file.unlink()
    assert ask(make, path).valid is None


@pytest.mark.parametrize(("own_time", "level"), [(False, "structural"), (True, "checksum")])
@pytest.mark.parametrize("kind", ["fp32", "exp_avg", "exp_avg_sq"])
def test_universal_with_a_file_of_the_save_before(make, kind, own_time, level):
    before, path = make.universal("run/global_step4_universal"), make.universal("run/global_step8_universal", step=8)
    for file in before.rglob("*.pt"):
        make.age(file, 7200)
    assert ask(make, path, "checksum").valid is True
    name = f"zero/layers.1.weight/{kind}.pt"
    times = (path / name).stat()
    shutil.copy2(before / name, path / name)
    if own_time:
        os.utime(path / name, (times.st_atime, times.st_mtime))
    answer = ask(make, path, level)
    assert answer.valid is None and "two saves" in answer.reason, answer


def test_universal_cut_short(make):
    path = make.universal()
    cut(path / "zero/layers.0.weight/fp32.pt")
    assert ask(make, path).valid is False


# --- DCP's Hugging Face writer, consolidated -------------------------------------------------------------------------


def test_consolidated(make):
    answer = ask(make, make.consolidated())
    assert (answer.valid, answer.step) == (True, 70)


@pytest.mark.parametrize(
    "name", ["model-00001-of-00001.safetensors", "sharded/shard-00002-model-00001-of-00001.safetensors"]
)
def test_consolidated_cut_short_or_missing(make, name):
    path = make.consolidated()
    cut(path / name)
    assert ask(make, path).valid is False
    (path / name).unlink()
    assert ask(make, path).valid is not True


def test_shards_that_were_not_consolidated(make):
    path = make.consolidated()
    (path / "model-00001-of-00001.safetensors").unlink()
    (path / "model.safetensors.index.json").unlink()
    assert ask(make, path).valid is not True


# --- files beside those of the format --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(bytes(200)), lambda path: path.write_bytes(b"")])
def test_a_torch_file_beside_the_shards_is_looked_at_too(make, damage):
    path = make.dcp("step-10", step=10)
    make.write(path / "dataloader.pt", make.torch_file({"position": 5}))
    assert ask(make, path).valid is True
    damage(path / "dataloader.pt")
    assert ask(make, path).valid is False


def test_what_is_no_torch_file_is_none_of_ours(make):
    path = make.dcp("step-10", step=10)
    make.write(path / "vocabulary.bin", b"\x01\x02words")
    assert ask(make, path).valid is True


def test_a_bin_of_zeros_may_be_anything(make):
    path = make.dcp("step-10", step=10)
    make.write(path / "tokens.bin", bytes(100))
    assert ask(make, path).valid is None


# --- NVRx that states its number of ranks ----------------------------------------------------------------------------


def local(make, ranks, of):
    path = make.root / "job7"
    for rank in range(ranks):
        value = {"iteration": 200, "args": {"world_size": of}, "w": make.tensor((4, 4))}
        file = path / str(rank) / f"iter_0000200_{rank}_local.pt"
        make.write(file, make.torch_file(value, [make.floats(16)]))
    return path


def test_the_last_rank_is_missed_where_the_number_of_ranks_is_stated(make):
    assert ask(make, local(make, 4, 4)).valid is True
    shutil.rmtree(make.root / "job7/3")
    answer = ask(make, make.root / "job7")
    assert answer.valid is False and "rank 3 of 4" in answer.reason


@pytest.mark.parametrize(
    ("name", "step"), [("ep0-ba120", 120), ("ep0-ba120-rank3.pt", 120), ("global_step8_universal", 8)]
)
def test_steps_in_names(name, step):
    assert step_of(name) == step


@pytest.mark.parametrize(("count", "valid"), [(4, True), (3, False)])
def test_the_arguments_of_the_trainer_tell_how_many_ranks_there_were(make, count, valid):
    path = make.hf("checkpoint-6")
    (path / "rng_state.pth").unlink()
    for rank in range(count):
        make.write(path / f"rng_state_{rank}.pth", make.torch_file({"cpu": 1}, prefix="rng_state"))
    arguments = {"distributed_state": {"num_processes": 4}}
    make.write(path / "training_args.bin", make.torch_file(arguments, prefix="training_args"))
    assert ask(make, path).valid is valid


def test_folders_that_accelerate_numbers_itself_are_found(make):
    """``checkpoint_3`` is the fourth save, not step 3: it is listed, and its step is not known."""
    from sentinel.checkpoints.inventory import listing

    make.accelerate("run/checkpoints/checkpoint_3")
    (part,) = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert (part.format, part.valid, part.step) == ("accelerate", True, None)
