"""DeepSpeed's pipelines: all weights are in a file per layer, and the optimizers of each stage, or ZeRO's shards, beside."""

from __future__ import annotations

import os
import shutil

import pytest

from sentinel.checkpoints.validate import validate
from tests.support.saves.torch_bytes import Call

LAYERS = (0, 2, 4)  # 1 and 3 are functions, which have no state
FROZEN = 5
SHAPE = (16, 8)


def ask(make, path, level="checksum"):
    return validate(path, level, now_s=make.now_s)


def pipeline(make, step, *, stage=0, parts=1, dtype="float32", rate=0.1, frozen=False, rests=False):
    """A pipeline of two stages, each of them cut into so many parts."""
    path, ranks = make.root / f"run/global_step{step}", 2 * parts
    for rank in range(ranks):
        mine = LAYERS[:2] if rank < parts else LAYERS[2:]
        value, payloads = make.state(step, keys=len(mine), shape=SHAPE)
        optimizer = {"state": value, "param_groups": [{"lr": rate, "params": list(range(len(mine)))}]}
        if rests and rank < parts:  # the first layer, in a group of its own
            optimizer["param_groups"] = [{"lr": 0.0, "params": [0]}, {"lr": rate, "params": [1]}]
        states = {"module": None, "global_steps": step, "dp_world_size": 1, "mp_world_size": ranks,
                  "ds_config": {"zero_optimization": {"stage": stage}}}  # fmt: skip
        if stage:
            states["param_shapes"] = [{f"{layer}.weight": Call("torch", "Size", SHAPE) for layer in mine}]
            name = f"bf16_zero_pp_rank_0_mp_rank_{rank:02d}_optim_states.pt"
            whole = {"optimizer_state_dict": {"base_optimizer_state": optimizer, "partition_count": [1]}}
            make.write(path / name, make.torch_file(whole, payloads, name[:-3]))
        else:
            states["optimizer"] = optimizer
        data = make.torch_file(states, [] if stage else payloads, f"mp_rank_{rank:02d}_model_states")
        make.write(path / f"mp_rank_{rank:02d}_model_states.pt", data)
    for layer in (*LAYERS, FROZEN) if frozen else LAYERS:
        for part in range(parts):
            name = f"layer_{layer:02d}-{f'model_{part:02d}-' if parts > 1 else ''}model_states.pt"
            if layer == FROZEN and step > 10:
                shutil.copy2(make.root / "run/global_step10" / name, path / name)
                continue
            make.write(path / name, make.torch_file({"weight": make.tensor(SHAPE, dtype)}, [weights(make, dtype)]))
    return path


def weights(make, dtype):
    count = SHAPE[0] * SHAPE[1]
    return make.floats(count, dtype)


def run(make, steps=(10, 20, 30), **kind):
    paths = [pipeline(make, step, **kind) for step in steps]
    for index, path in enumerate(paths):
        for file in path.iterdir():
            make.age(file, 36_000 - 3600 * index)
    return paths


def put(before, path, pattern):
    """Files of another save, under the times of this one's."""
    for file in sorted(before.glob(pattern)):
        status = (path / file.name).stat()
        shutil.copy2(file, path)
        os.utime(path / file.name, (status.st_atime, status.st_mtime))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("frozen", [False, True])
def test_whole_ones(make, stage, parts, frozen):
    for path in run(make, stage=stage, parts=parts, frozen=frozen):
        for level in ("structural", "checksum", "content"):
            assert ask(make, path, level).valid is True, ask(make, path, level)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layer", [0, 4])
def test_a_layer_that_the_saves_beside_have(make, stage, parts, layer):
    path = run(make, stage=stage, parts=parts)[-1]
    for file in path.glob(f"layer_{layer:02d}-*"):
        file.unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is (False if stage else None) and f"layer {layer} are missing" in answer.reason, answer


def test_a_part_of_a_layer(make):
    path = run(make, (10,), parts=2)[0]
    (path / "layer_04-model_01-model_states.pt").unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is False and "layer 4 are missing" in answer.reason, answer


def test_a_layer_whose_parameters_zero_names(make):
    path = run(make, (10,), stage=1)[0]
    (path / "layer_04-model_states.pt").unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is False and "layer 4 are missing, which has 4.weight" in answer.reason, answer


@pytest.mark.parametrize("stage", [0, 1])
def test_all_layers(make, stage):
    path = run(make, (10,), stage=stage)[0]
    for file in path.glob("layer_*"):
        file.unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is False and "all layers" in answer.reason, answer


def test_a_layer_that_one_save_beside_has_alone(make):
    """The model may have become smaller since."""
    paths = run(make, frozen=True)
    for path in paths[1:]:
        next(path.glob("layer_05-*")).unlink()
    assert [ask(make, path).valid for path in paths[1:]] == [True, True]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_the_states_of_a_model_parallel_rank(make, stage, parts):
    path = run(make, (10,), stage=stage, parts=parts)[0]
    (path / "mp_rank_01_model_states.pt").unlink()
    answer = ask(make, path, "structural")
    assert answer.valid is False and f"{2 * parts} are needed" in answer.reason, answer


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("pattern", ["layer_*", "layer_04-*"])
@pytest.mark.parametrize("back", [0, 1])
def test_layers_of_another_save(make, stage, parts, pattern, back):
    """DeepSpeed loads them beside the optimizers of this one and says nothing."""
    paths = run(make, stage=stage, parts=parts)
    put(paths[back], paths[-1], pattern)
    answer = ask(make, paths[-1])
    assert answer.valid is None and "two saves mixed" in answer.reason, answer


@pytest.mark.parametrize("kind", [{"stage": 1, "dtype": "bfloat16"}, {"rate": 0.0}, {"stage": 1, "rate": 0.0}])
def test_layers_that_a_step_need_not_change(make, kind):
    """In 16 bits a small step may change no weight, and without a rate none does."""
    paths = run(make, **kind)
    put(paths[1], paths[2], "layer_*")
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("rests", [False, True])
def test_a_group_without_a_rate_beside_others(make, stage, rests):
    """So layers are kept as they are, too: their moments go on."""
    paths = run(make, stage=stage, rests=rests)
    put(paths[1], paths[2], "layer_00-*")
    assert ask(make, paths[2]).valid is (True if rests else None), ask(make, paths[2])


def test_large_layers_in_16_bits(make, monkeypatch):
    monkeypatch.setitem(globals(), "SHAPE", (256, 256))
    paths = run(make, stage=1, dtype="bfloat16")
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])
    put(paths[1], paths[2], "layer_02-*")
    answer = ask(make, paths[2])
    assert answer.valid is None and "two saves mixed" in answer.reason, answer
