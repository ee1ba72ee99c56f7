"""What a load needs and nothing in a save names: the steps beside it tell, whatever the format."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from sentinel.checkpoints.steps import step_in
from sentinel.checkpoints.validate import validate


def aged(make, path, age_s):
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, age_s)


def extra(make, path, name, age_s):
    make.write(path / name, make.torch_file({"cursor": 7}, prefix="extra"))
    make.age(path / name, age_s)


RUNS = {
    "dcp": ("step-{}", lambda make, at, step: make.dcp(at, step=step)),
    "megatron": ("iter_{:07d}", lambda make, at, step: make.megatron(at, step, integrity=False)),
    "megatron_legacy": ("iter_{:07d}", lambda make, at, step: make.megatron_legacy(at, step)),
    "deepspeed": ("global_step{}", lambda make, at, step: make.deepspeed(at, step)),
    "hf": ("checkpoint-{}", lambda make, at, step: make.hf(at, step)),
    "nemo": ("m--step={}-last", lambda make, at, step: make.nemo(at, step)),
}


def run(make, kind, steps=(10, 20, 30)):
    name, write = RUNS[kind]
    paths = []
    for index, step in enumerate(steps):
        at = f"run/{name.format(step)}"
        write(make, at, step)
        path = make.root / at
        aged(make, path, 36_000 - 3600 * index)
        paths.append(path)
    return paths


def ask(make, path):
    return validate(path, "structural", now_s=make.now_s)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("where", ["", "folder/"])
def test_a_file_that_every_step_beside_has(make, kind, where):
    paths = run(make, kind)
    for index, path in enumerate(paths):
        extra(make, path, f"{where}dataloader_0.pt", 36_000 - 3600 * index)
        extra(make, path, f"{where}dataloader_1.pt", 36_000 - 3600 * index)
    for path in paths:
        assert ask(make, path).valid is True, ask(make, path)
    for rank in (0, 1):
        (paths[2] / f"{where}dataloader_{rank}.pt").unlink()
    if where:
        (paths[2] / "folder").rmdir()
    answer = ask(make, paths[2])
    assert answer.valid is None and "dataloader_0.pt is missing" in answer.reason, answer
    assert all(ask(make, path).valid for path in paths[:2])


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", ["train_state_00000.json", "train/state.json", "dataloader_1.pkl", "rng_state.npz"])
def test_a_state_in_json_that_every_step_beside_has(make, kind, name):
    """lingua's load reads one that it writes after the shards: killed between, the save was chosen, and no load read it."""
    paths = run(make, kind)
    for index, path in enumerate(paths):
        make.json(path / name, {"step": 1})
        make.age(path / name, 36_000 - 3600 * index)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    (paths[2] / name).unlink()
    answer = ask(make, paths[2])
    assert answer.valid is None and f"{name} is missing" in answer.reason, answer
    assert all(ask(make, path).valid for path in paths[:2])


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", ["eval_results.json", "metrics.json", "step_losses.npy", "all_statements.json"])
def test_results_that_are_not_there_yet(make, kind, name):
    paths = run(make, kind)
    for index, path in enumerate(paths[:2]):
        make.json(path / name, {"step": 1})
        make.age(path / name, 36_000 - 3600 * index)
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])


@pytest.mark.parametrize("kind", RUNS)
def test_what_was_put_beside_one_step_is_missing_in_no_other(make, kind):
    """An export for inference, made when the run was over; and fewer ranks than before."""
    paths = run(make, kind)
    extra(make, paths[1], "exported.pt", 600)
    for index, path in enumerate(paths):
        for rank in range(3 - index):
            extra(make, path, f"dataloader_{rank}.pt", 36_000 - 3600 * index)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    for path in paths:  # copied by what keeps no times
        for number, file in enumerate(sorted(p for p in path.rglob("*") if p.is_file())):
            make.age(file, 3000 - number / 1000)
    if kind in ("megatron_legacy", "deepspeed"):
        assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]


@pytest.mark.parametrize("lost", ["optimizer_0", "pytorch_model_fsdp_0"])
@pytest.mark.parametrize("kind", ["hf", "accelerate"])
def test_a_folder_of_fsdp_that_the_step_beside_has(make, kind, lost):
    for index, step in enumerate((10, 20)):
        at = f"run/checkpoint-{step}" if kind == "hf" else f"run/step_{step}"
        make.hf(at, step) if kind == "hf" else make.accelerate(at, step)
        for name in ("optimizer_0", "pytorch_model_fsdp_0"):
            make.dcp(f"{at}/{name}")
        aged(make, make.root / at, 36_000 - 3600 * index)
    path = make.root / at
    assert ask(make, path).valid is True, ask(make, path)
    shutil.rmtree(path / lost)
    os.utime(path, (make.now_s - 3600, make.now_s - 3600))
    answer = ask(make, path)
    assert answer.valid is None and f"{lost}/" in answer.reason and "is missing" in answer.reason, answer


@pytest.mark.parametrize("kind", ["hf", "accelerate"])
def test_what_is_of_another_step_inside_a_step(make, kind):
    """A schedule that was copied with its time is older than the end of the save before."""
    for index, step in enumerate((10, 20)):
        at = f"run/checkpoint-{step}" if kind == "hf" else f"run/step_{step}"
        make.hf(at, step) if kind == "hf" else make.accelerate(at, step, model="dcp")
        aged(make, make.root / at, 36_000 - 3600 * index)
        if kind == "hf":
            before = make.root / "run/checkpoint-10/scheduler.pt"
        else:
            before = make.root / "run/step_10/scheduler.bin"
    path = make.root / at
    assert ask(make, path).valid is True, ask(make, path)
    shutil.copy2(before, path / before.name)
    answer = ask(make, path)
    assert answer.valid is not True, answer


def test_the_step_in_the_folder_above():
    below = ("a/step-20/optimizer_0", "a/step-20/", "step-9/step-20", "/x", "", "m--step=5-last/weights")
    assert [step_in(path) for path in below] == [20, 20, 20, None, None, 5]


@pytest.mark.parametrize(
    ("lost", "reason"), [("model.empty", "without model.empty"), ("model.a", "a gap or an overlap before model.b")]
)
@pytest.mark.parametrize("inside", ["", "/model.safetensors"])
def test_a_name_lost_in_the_table_of_a_file(make, inside, lost, reason):
    """The loss of a tensor without elements leaves no gap."""
    tensors = {
        "model.a": ("F32", (4, 4), make.floats(16)),
        "model.b": ("F32", (4,), make.floats(4)),
        "model.empty": ("F32", (0, 4), b""),
    }
    suffix = "" if inside else ".safetensors"
    for step in (10, 20):
        path = make.root / f"run/step_{step}{suffix}"
        make.write(make.root / f"run/step_{step}{suffix}{inside}", make.safetensors(tensors))
    assert ask(make, path).valid is True, ask(make, path)
    file = make.root / f"run/step_20{suffix}{inside}"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + length])
    del table[lost]
    header = json.dumps(table).encode()
    make.write(file, len(header).to_bytes(8, "little") + header + whole[8 + length :])
    answer = ask(make, path)
    assert answer.valid is not True and reason in answer.reason, answer


def test_a_file_of_a_set_into_which_the_index_puts_nothing(make):
    """Its only tensor's name was written over by another's."""
    path = make.hf("run/checkpoint-6", sharded=True)
    index = path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"] = {name: file for name, file in table["weight_map"].items() if "00001" in file}
    make.write(index, json.dumps(table).encode())
    answer = ask(make, path)
    assert answer.valid is False and "model-00002-of-00002.safetensors is of the set" in answer.reason, answer


def with_recipe(make, epoch, inside):
    """torchtune's: a model, and the optimizer in a folder beside it that no index names."""
    path = make.root / f"run/epoch_{epoch}"
    make.write(path / inside / "model.safetensors", make.safetensors({"w": ("F32", (4, 4), make.floats(16))}))
    value, payloads = make.state(epoch)
    state = {"optimizer": {"state": value, "param_groups": []}, "epochs_run": epoch}
    make.write(path / inside / "recipe_state/recipe_state.pt", make.torch_file(state, payloads))
    return path


@pytest.mark.parametrize("inside", ["", "weights"])
def test_an_optimizer_that_no_index_names(make, inside):
    with_recipe(make, 1, inside)
    path = with_recipe(make, 2, inside)
    assert ask(make, path).valid is True, ask(make, path)
    file = path / inside / "recipe_state/recipe_state.pt"
    mine = file.read_bytes()
    make.write(file, (make.root / "run/epoch_1" / file.relative_to(path)).read_bytes())
    answer = ask(make, path)
    assert answer.valid is None and "two saves mixed" in answer.reason, answer
    make.write(file, b"\n" + mine)
    answer = ask(make, path)
    assert answer.valid is None and "does not begin as a file of torch.save" in answer.reason, answer
