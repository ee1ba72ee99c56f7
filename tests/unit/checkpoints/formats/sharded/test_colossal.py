"""Colossal-AI's folders: weights and optimizer in shards that an index of each names, and a schedule without a suffix."""

from __future__ import annotations

import json
import os
import shutil
from collections import OrderedDict

import pytest

from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.torch_file import is_torch
from sentinel.checkpoints.validate import validate

SHAPE = (16, 8)
INDEXES = ["modeling/pytorch_model.bin.index.json", "optimizer/pytorch_optim.bin.index.json"]


def ask(make, path, level="checksum"):
    return validate(path, level, now_s=make.now_s)


def save(make, step, shards=3, each=2):
    path = make.root / f"run/epoch-0_step-{step}"
    weights, states = {}, {}
    for shard in range(shards):
        numbers = range(shard * each, shard * each + each)
        name = f"pytorch_model-{shard + 1:05d}.bin"
        value = {f"{number}.weight": make.tensor(SHAPE, key=key) for key, number in enumerate(numbers)}
        weights |= dict.fromkeys(value, name)
        data = make.torch_file(value, [make.floats(128) for _ in numbers], name[:-4])
        make.write(path / "modeling" / name, data)
        name = f"pytorch_optim-{shard + 1:05d}.bin"
        state, payloads = make.state(step, keys=each, shape=SHAPE)
        value = OrderedDict((number, state[key]) for key, number in enumerate(numbers))  # as they are there
        states |= {str(number): name for number in numbers}
        make.write(path / "optimizer" / name, make.torch_file(value, payloads, name[:-4]))
    groups = [{"lr": 0.1, "params": list(range(shards * each))}]
    make.write(path / "optimizer/pytorch_optim_group.bin", make.torch_file(groups, prefix="pytorch_optim_group"))
    make.json(path / INDEXES[0], {"metadata": {"total_size": 1}, "weight_map": weights})
    make.json(path / INDEXES[1], {"metadata": {"param_groups": "pytorch_optim_group.bin"}, "weight_map": states})
    make.write(path / "lr_scheduler", make.torch_file({"last_epoch": step, "_last_lr": [0.1]}, prefix="lr_scheduler"))
    make.json(path / "running_states.json", {"epoch": 0, "step": step})
    return path


def run(make, steps=(10, 20, 30)):
    paths = [save(make, step) for step in steps]
    for index, path in enumerate(paths):
        for file in path.rglob("*"):
            make.age(file, 36_000 - 3600 * index)
    return paths


def put(path, data):
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, (status.st_atime, status.st_mtime))


@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_whole_ones(make, level):
    for path in run(make):
        assert ask(make, path, level).valid is True, ask(make, path, level)


@pytest.mark.parametrize("name", ["modeling/pytorch_model-00003.bin", "optimizer/pytorch_optim-00003.bin"])
def test_a_shard_that_an_index_names(make, name):
    path = run(make, (10,))[0]
    (path / name).unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is False and "named by" in answer.reason, answer


@pytest.mark.parametrize("name", [*INDEXES, "lr_scheduler"])
def test_what_the_saves_beside_have(make, name):
    path = run(make)[-1]
    (path / name).unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is None and f"{name} is missing" in answer.reason, answer


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_names_another_tensor(make, name):
    path = run(make, (10,))[0]
    index = json.loads((path / name).read_text())
    table = index["weight_map"]
    table["9.weighu"] = table.pop(min(table))
    put(path / name, json.dumps(index).encode())
    answer = ask(make, path, "structural")
    assert answer.valid is False and "disagree" in answer.reason, answer


def test_an_index_of_a_model_that_is_not_here(make):
    """A base model's, copied in with its settings."""
    path = run(make, (10,))[0]
    make.json(path / "pytorch_model.bin.index.json", {"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}})
    assert ask(make, path).valid is True, ask(make, path)


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    at = data.index(b"last_epoch") + 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped])
@pytest.mark.parametrize("alone", [False, True])
def test_a_damaged_schedule(make, damage, alone):
    """Alone it may be anybody's archive."""
    path = run(make, (30,) if alone else (10, 20, 30))[-1]
    put(path / "lr_scheduler", damage((path / "lr_scheduler").read_bytes()))
    answer = ask(make, path)
    assert answer.valid is (True if alone else None), answer
    assert alone or "lr_scheduler" in answer.reason


def test_many_files_without_a_suffix(make, monkeypatch):
    """A copy of the code, with its history: of so many none but the first is opened, and a schedule's is among these."""
    paths = run(make)
    for number in range(1000):
        folder = paths[2] / f"a/objects/{number % 16:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        put_at(paths[2] / "lr_scheduler", folder / f"a{number}", b"data")
    put(paths[2] / "lr_scheduler", cut((paths[2] / "lr_scheduler").read_bytes()))
    asked = []
    monkeypatch.setattr(extras, "is_torch", lambda tree, name: asked.append(name) or is_torch(tree, name))
    answer = ask(make, paths[2])
    assert answer.valid is None and "lr_scheduler" in answer.reason, answer
    put_at(paths[2] / "running_states.json", paths[2] / "lr_scheduler", (paths[1] / "lr_scheduler").read_bytes())
    asked.clear()
    assert ask(make, paths[2]).valid is True
    assert len([name for name in asked if name.startswith("a/")]) < 300


@pytest.mark.parametrize("name", ["modeling/pytorch_model-00003.bin", "optimizer/pytorch_optim-00003.bin"])
@pytest.mark.parametrize("back", [0, 1])
def test_a_shard_of_another_save(make, name, back):
    """It loads, and mixes two saves."""
    paths = run(make)
    put(paths[2] / name, (paths[back] / name).read_bytes())
    answer = ask(make, paths[2])
    assert answer.valid is None and "two saves mixed" in answer.reason, answer


def test_a_part_of_the_model_that_is_not_trained(make):
    paths = run(make)
    frozen = [make.torch_file({"e.weight": make.tensor((32, 8))}, [make.floats(256)], "pytorch_model-00004")]
    for path in paths:
        file = path / "modeling/pytorch_model-00004.bin"
        file.write_bytes(frozen[0])
        shutil.copystat(path / "lr_scheduler", file)
        index = json.loads((path / INDEXES[0]).read_text())
        index["weight_map"]["e.weight"] = file.name
        put(path / INDEXES[0], json.dumps(index).encode())
    assert [ask(make, path).valid for path in paths] == [True] * 3, ask(make, paths[2])


def at_rate(make, path, rate):
    groups = [{"lr": rate, "params": list(range(6))}]
    put(path / "optimizer/pytorch_optim_group.bin", make.torch_file(groups, prefix="pytorch_optim_group"))


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_weights_that_stay_at_a_rate_of_0(make, rate):
    """The end of a schedule: the moments go on. Of no shard its groups tell the rate, which are in a file of their own."""
    paths = run(make)
    for path in paths[1:]:
        at_rate(make, path, rate)
    for name in (file.name for file in (paths[1] / "modeling").glob("*.bin")):
        put(paths[2] / "modeling" / name, (paths[1] / "modeling" / name).read_bytes())
    answers = [ask(make, path).valid for path in paths]
    assert answers == ([True] * 3 if rate == 0 else [True, None, None]), ask(make, paths[2])


def test_an_optimizer_without_a_state(make):
    """SGD without momentum: its index names no file."""
    path = run(make, (10,))[0]
    for file in (path / "optimizer").glob("pytorch_optim-*.bin"):
        file.unlink()
    put(path / INDEXES[1], json.dumps({"metadata": {"total_size": 0}, "weight_map": {}}).encode())
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"0": 1}}'])
def test_a_damaged_index(make, text):
    path = run(make, (10,))[0]
    put(path / INDEXES[1], text.encode())
    assert ask(make, path).valid is False, ask(make, path)


def with_safetensors(make, path):
    """The same with weights in safetensors, which make their folder a save in a folder of its own."""
    table = {}
    for number, file in enumerate(sorted((path / "modeling").glob("*.bin")), 1):
        file.unlink()
        name = f"model-{number:05d}-of-00003.safetensors"
        tensors = {f"{2 * number - 2 + key}.weight": ("F32", SHAPE, make.floats(128)) for key in range(2)}
        table |= dict.fromkeys(tensors, name)
        put_at(path / "lr_scheduler", path / "modeling" / name, make.safetensors(tensors, {"format": "pt"}))
    (path / INDEXES[0]).unlink()
    index = json.dumps({"metadata": {}, "weight_map": table}).encode()
    put_at(path / "lr_scheduler", path / "modeling/model.safetensors.index.json", index)


def put_at(time_of, path, data):
    path.write_bytes(data)
    shutil.copystat(time_of, path)


def test_beside_safetensors(make):
    paths = run(make)
    for path in paths:
        with_safetensors(make, path)
    for path in paths:
        answer = ask(make, path, "structural")
        assert (answer.valid, answer.format) == (True, "nested"), answer
    name = "optimizer/pytorch_optim-00003.bin"
    whole = (paths[2] / name).read_bytes()
    put(paths[2] / name, (paths[1] / name).read_bytes())
    answer = ask(make, paths[2])
    assert answer.valid is None and "two saves mixed" in answer.reason, answer
    put(paths[2] / name, whole)
    put(paths[2] / "lr_scheduler", cut((paths[2] / "lr_scheduler").read_bytes()))
    answer = ask(make, paths[2])
    assert answer.valid is None and "lr_scheduler" in answer.reason, answer
