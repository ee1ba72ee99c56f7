"""Sets that were put together from two saves, and saves that were torn in the middle."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def take(file, other):
    """Another save's file in the place of this one's, with its own times."""
    shutil.copy2(other, file)


def two(make, maker, *names):
    """The same kind of checkpoint at two steps, an hour apart."""
    old, new = (maker(name, step) for name, step in zip(names, (10, 20), strict=True))
    for file in old.rglob("*"):
        status = file.stat()
        os.utime(file, (status.st_mtime - 3600, status.st_mtime - 3600))
    return old, new


@pytest.fixture(params=["beside", "alone"])
def beside(request):
    return request.param == "beside"


@pytest.mark.parametrize("name", ["optimizer.bin", "model.safetensors"])
def test_accelerate_with_a_file_of_another_save(make, name, beside):
    old, new = two(make, lambda name, step: make.accelerate(name, step), "run/step_10", "run/step_20")
    assert ask(make, new).valid is True
    take(new / name, old / name)
    if not beside:
        shutil.rmtree(old)
    assert ask(make, new).valid is not True


@pytest.mark.parametrize("name", ["optimizer.bin", "pytorch_model.bin"])
def test_a_file_of_another_save_with_the_times_of_this_one(make, name):
    def maker(name, step):
        return make.accelerate(name, step, model="bin")

    old, new = two(make, maker, "run/step_10", "run/step_20")
    status = (new / name).stat()
    take(new / name, old / name)
    os.utime(new / name, (status.st_mtime, status.st_mtime))
    answer = ask(make, new)
    assert answer.valid is None and "byte for byte" in answer.reason


def test_a_frozen_model_is_the_same_in_every_save(make):
    old, new = two(make, lambda name, step: make.accelerate(name, step), "run/step_10", "run/step_20")
    weights = make.safetensors({"teacher.weight": ("F32", (16, 8), make.floats(128))})
    make.write(old / "model_1.safetensors", weights, -3600)
    make.write(new / "model_1.safetensors", weights)
    assert ask(make, new).valid is True


@pytest.mark.parametrize("name", ["optimizer.bin", "scheduler.bin", "model.safetensors"])
def test_accelerate_torn_while_it_was_written_over(make, name):
    path = make.accelerate("step_100")
    make.age(path / name, 1800)
    answer = ask(make, path)
    assert answer.valid is False and "overwritten" in answer.reason


def test_accelerate_with_an_optimizer_of_another_model(make):
    path = make.accelerate("step_100")
    value, payloads = make.state(100, shape=(32, 8))
    make.write(path / "optimizer.bin", make.torch_file({"state": value}, payloads, "optimizer"))
    answer = ask(make, path)
    assert answer.valid is None and "another model" in answer.reason


def test_random_states_of_two_saves(make):
    path = make.accelerate("step_100")
    make.write(path / "random_states_2.pkl", make.torch_file({"step": 6}, prefix="random_states_2"), 1)
    answer = ask(make, path)
    assert answer.valid is False and "two saves" in answer.reason


def test_shards_newer_than_their_index(make):
    path = make.hf("checkpoint-6", sharded=True)
    os.utime(path / "trainer_state.json", (make.now_s, make.now_s))
    make.age(path / "model-00002-of-00002.safetensors", 1800)
    answer = ask(make, path)
    assert answer.valid is False and "model.safetensors.index.json" in answer.reason


@pytest.mark.parametrize("name", ["scheduler.pt", "rng_state.pth", "optimizer.pt", "model.safetensors"])
def test_the_trainer_writes_its_state_last(make, name):
    path = make.hf("checkpoint-6")
    make.age(path / name, 1800)
    assert ask(make, path).valid is False


def test_a_consolidated_model_of_another_save(make):
    old, new = two(make, lambda name, step: make.consolidated(name), "run/step-10", "run/step-20")
    name = "model-00001-of-00001.safetensors"
    status = (new / name).stat()
    take(new / name, old / name)
    os.utime(new / name, (status.st_mtime, status.st_mtime))
    answer = ask(make, new)
    assert answer.valid is False and "two saves" in answer.reason


def test_a_consolidated_model_states_how_many_shards_there_were(make):
    path = make.consolidated()
    (path / "sharded/shard-00003-model-00001-of-00001.safetensors").unlink()
    answer = ask(make, path)
    assert answer.valid is False and "(24, 4)" in answer.reason


@pytest.mark.parametrize("damage", ["", "{", '{"a": 1', "\0" * 40, '{"a": {"b": 1}'])
@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "tokenizer_config.json"])
def test_json_that_is_read_at_resume(make, name, damage):
    path = make.hf("checkpoint-6")
    make.json(path / name, {"hidden_size": 8})
    assert ask(make, path).valid is True
    make.write(path / name, damage.encode())
    answer = ask(make, path)
    assert answer.valid is False and name in answer.reason


def test_other_json_is_none_of_ours(make):
    path = make.hf("checkpoint-6")
    make.write(path / "log.json", b'{"loss": 1}\n{"loss": 2}\n')
    assert ask(make, path).valid is True


def test_a_deep_or_a_wide_json_is_bounded(make):
    path = make.hf("checkpoint-6")
    make.write(path / "config.json", b"[" * 2_000_000)
    assert ask(make, path).valid is not True
    make.write(path / "config.json", b'{"a": [' + b"[]," * 1_000_000 + b"[]]}")
    assert ask(make, path).valid is not True
    make.write(path / "config.json", json.dumps({"a": 1}).encode())
    assert ask(make, path).valid is True


@pytest.mark.parametrize("per_rank", [False, True])
def test_a_shard_that_is_older_than_the_save_before(make, per_rank):
    def maker(name, step):
        return make.dcp(name, step=step, per_rank=per_rank)

    old, new = two(make, maker, "run/step-10", "run/step-20")
    assert ask(make, new).valid is True
    take(new / "__2_0.distcp", old / "__2_0.distcp")
    answer = ask(make, new)
    assert answer.valid is None and "older than the end of step-10" in answer.reason


def test_a_save_before_that_was_written_again_says_nothing(make):
    """The job went back and made that step once more."""
    old, new = two(make, lambda name, step: make.dcp(name, step=step), "run/step-10", "run/step-20")
    for file in old.iterdir():
        make.age(file, 60)
    assert ask(make, new).valid is True
