"""What a user adds to a finished save of the Trainer or of Accelerate, hours later: it never makes the save invalid."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from sentinel.checkpoints.validate import validate

SAVES = ("hf", "accelerate")
LIBRARIES = ("pytorch_model.bin", "model.safetensors")
# By what people export, quantise and merge.
ADDED = [
    "pytorch_model.bin/pytorch_model.bin",  # a folder: zero_to_fp32.py . pytorch_model.bin
    "pytorch_model_merged/anything.bin",
    "adapter_model_gguf/tok.bin",
    "adapter_model.bin/pytorch_model.bin",
    "pytorch_model_int8.bin",
    "pytorch_model.ggml.bin",
    "my_fsdp_export.bin",
    "export.safetensors",
    "model_int8.safetensors",
    "merged-00001-of-00001.bin",
    "merged.safetensors.index.json",
]
STATES = [name for name in ADDED if name.endswith((".bin", ".safetensors"))]


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def saved(make, save, folder="run/checkpoint-6", step=6, back_s=36_000):
    if save == "accelerate":
        path = make.accelerate(folder, step, ranks=1)
    else:
        path = make.hf(folder, step)
    for file in (file for file in path.rglob("*") if file.is_file()):
        make.age(file, back_s - (2 if file.name in ("trainer_state.json", "random_states_0.pkl") else 3))
    make.age(path, back_s)
    return path


def model(make, name):
    if name.endswith(".json"):
        return json.dumps({"weight_map": {"w": "elsewhere.safetensors"}}).encode()
    if name.endswith(".safetensors"):
        return make.safetensors({"w": ("F32", (16, 8), make.floats(128))})
    value = {"a.w": make.tensor((16, 8)), "b.w": make.tensor((16, 8), key=1)}
    return make.torch_file(value, [make.floats(128)] * 2, name.rpartition("/")[2].rpartition(".")[0])


def add(make, path, name, back_s=3600, data=None):
    make.write(path / name, model(make, name) if data is None else data)
    for file in (path / name, path):
        make.age(file, back_s)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("beside", [False, True])
def test_an_export_is_no_part_of_the_save(make, save, name, beside):
    """A pattern crossed folders, and took any name that begins as the libraries' for one that they write."""
    if beside:
        saved(make, save, "run/checkpoint-4", 4, 72_000)
    path = saved(make, save)
    assert ask(make, path).valid is True, ask(make, path)
    add(make, path, name)
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("left", [-9, 60, 0])
def test_a_damaged_export_does_not_make_a_save_invalid(make, save, name, left):
    """An export that was killed: it may be a part of the save, of which nothing is known."""
    path = saved(make, save)
    data = model(make, name)
    add(make, path, name, data=data[:left])
    assert ask(make, path).valid is not False, ask(make, path)
    bent = bytearray(data)
    bent[len(data) // 2] ^= 0x55
    add(make, path, name, data=bytes(bent))
    for level in ("checksum", "content"):
        assert ask(make, path, level).valid is not False, ask(make, path, level)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    "name", ["merged-00001-of-00003.bin", "merged-00001-of-00003.safetensors", "pytorch_model_int8-00002-of-00002.bin"]
)
def test_a_part_of_an_exported_set(make, save, name):
    path = saved(make, save)
    add(make, path, name)
    assert ask(make, path).valid is not False, ask(make, path)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["pytorch_model_ema.bin", "value_head.safetensors"])
def test_what_the_save_beside_wrote_before_its_end(make, save, name):
    """Then it is a part of each save, and this one was begun a second time."""
    before = saved(make, save, "run/checkpoint-4", 4, 72_000)
    add(make, before, name, 72_000)
    path = saved(make, save)
    add(make, path, name, 36_000)
    assert ask(make, path).valid is True, ask(make, path)
    add(make, path, name)
    make.age(path, 36_000)
    answer = ask(make, path)
    assert answer.valid is None and f"{name} was written" in answer.reason, answer
    for at, back_s in ((before, 71_000), (path, 3600)):  # an export of every step
        add(make, at, name, back_s)
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("save", SAVES)
def test_the_only_model(make, save):
    """Of whatever name: it was written over, or is not this save's."""
    path = saved(make, save)
    for name in LIBRARIES:
        (path / name).unlink(missing_ok=True)
    add(make, path, "pytorch_model_ema.bin", 36_000)
    assert ask(make, path).valid is True, ask(make, path)
    add(make, path, "pytorch_model_ema.bin")
    make.age(path, 36_000)
    answer = ask(make, path)
    assert answer.valid is None and "pytorch_model_ema.bin was written" in answer.reason, answer


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("left", [None, -9])
def test_an_export_hides_no_damage(make, save, left):
    path = saved(make, save)
    add(make, path, "pytorch_model_int8.bin", data=model(make, "pytorch_model_int8.bin")[:left])
    file = next(path.glob("optimizer.*"))
    status = file.stat()
    make.write(file, file.read_bytes()[:-9])
    os.utime(file, (status.st_mtime, status.st_mtime))
    make.age(path, 3600)
    answer = ask(make, path)
    assert answer.valid is False and file.name in answer.reason, answer


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["export.safetensors", "pytorch_model_int8.bin", "merged/pytorch_model.bin"])
def test_an_export_that_broke_off_right_after_the_end(make, save, name):
    """No pause lies between: it is as late as what a slow copy writes last."""
    path = saved(make, save)
    add(make, path, name, 36_000 - 60)
    assert ask(make, path).valid is True, ask(make, path)
    add(make, path, name, 36_000 - 60, model(make, name)[:-9])
    assert ask(make, path).valid is not False, ask(make, path)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["optimizer", "scheduler", *LIBRARIES])
def test_a_file_of_the_libraries_is_overwritten(make, save, name):
    path = saved(make, save)
    files = [file.name for file in path.iterdir() if file.name.startswith(name)]
    for file in files:
        make.age(path / file, 3600)
        answer = ask(make, path)
        assert answer.valid is False and "overwritten in place" in answer.reason, answer


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("inner", ["deepspeed", "fsdp"])
def test_weights_that_were_gathered_from_shards(make, name, inner):
    """``zero_to_fp32.py`` and ``accelerate merge-weights`` write under the libraries' own names; a resume reads shards."""
    path = saved(make, "hf")
    for file in ("model.safetensors", "optimizer.pt"):
        (path / file).unlink()
    if inner == "deepspeed":
        shutil.copytree(make.deepspeed("ds/global_step6", step=6).parent, path, dirs_exist_ok=True)
    else:
        make.dcp("run/checkpoint-6/pytorch_model_fsdp_0", step=6)
        make.dcp("run/checkpoint-6/optimizer_0", step=6)
    for file in (file for file in path.rglob("*") if file.is_file()):
        make.age(file, 36_000 - (2 if file.name in ("trainer_state.json", ".metadata", "latest") else 3))
    assert ask(make, path).valid is True, ask(make, path)
    add(make, path, name)
    assert ask(make, path).valid is not False, ask(make, path)
