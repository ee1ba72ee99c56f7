"""Composer, LLM Foundry and Ray Train: folders of their own around torch files and DCP.

The names and lists are those of mosaicml 0.32.1, llm-foundry 0.22.0 and ray 2.60.0, read in their sources. Files that
Composer wrote itself: tests/contract/checkpoints/test_other_trainers.py. torchft sends states over the network only.
"""

from __future__ import annotations

import json
import os

import pytest

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.checkpoints.validate import validate

TIMES = ("checkpoint_2026-11-23_04-48-15.000123", "checkpoint_2026-11-23_04-59-01.900000")


def rank_files(make, step, count, folder="run"):
    for rank in range(count):
        value, payloads = make.state(step)
        state = {"state": {"optimizer": {"state": value, "param_groups": []}}, "rng": [], "step": step}
        path = make.root / folder / f"ep0-ba{step}-rank{rank}.pt"
        make.write(path, make.torch_file(state, payloads))
        yield path


def seen(make, folder="run", level="structural"):
    parts = listing(make.root / folder, "global", None, level=level, now_s=make.now_s)
    return [(part.step, part.valid) for part in parts], parts


def test_composers_ranks_are_one_checkpoint(make):
    for step in (10, 20):
        list(rank_files(make, step, 3))
    os.symlink("ep0-ba20-rank0.pt", make.root / "run/latest-rank0.pt")
    for level in ("structural", "checksum", "content"):
        assert seen(make, level=level)[0] == [(20, True), (10, True)]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_of_composer_that_is_missing_or_cut(make, rank):
    list(rank_files(make, 10, 3))
    paths = list(rank_files(make, 20, 3))
    whole = paths[rank].read_bytes()
    paths[rank].unlink()
    found, parts = seen(make)
    assert found[1] == (10, True) and found[0][0] == 20 and found[0][1] is not True, parts
    make.write(paths[rank], whole[: len(whole) // 2])
    assert seen(make)[0] == [(20, False), (10, True)]
    make.write(paths[rank], (make.root / f"run/ep0-ba10-rank{rank}.pt").read_bytes())
    assert seen(make)[0] == [(20, False), (10, True)], "a shard of another step"


def test_where_rank_0_saves_all_the_others_are_not_missed(make):
    for step in (10, 20):
        list(rank_files(make, step, 1))
    assert seen(make)[0] == [(20, True), (10, True)]


def test_composers_sharded_folders(make):
    make.dcp("run/ep0-ba10", step=10)
    make.dcp("run/ep1-ba20", step=20)
    (make.root / "run/ep1-ba20/.metadata").unlink()
    os.symlink("ep1-ba30", make.root / "run/latest-rank0")
    assert seen(make)[0] == [(20, False), (10, True)]


def test_what_llm_foundry_exports_is_nothing_to_resume_from(make):
    list(rank_files(make, 10, 1))
    make.dcp("run/huggingface/ba20", step=20)
    assert seen(make)[0] == [(10, True)]
    make.dcp("huggingface/run/step-20", step=20)
    assert seen(make, "huggingface")[0] == [(20, True)], "only that layout"


def ray_run(make, listed):
    for number, name in enumerate(TIMES):
        value, payloads = make.state(number)
        make.write(make.root / f"run/{name}/checkpoint.pt", make.torch_file({"optimizer": value}, payloads))
    if listed is not None:
        results = [{"version": 0, "checkpoint_dir_name": name, "metrics": {}} for name in listed]
        text = (
            listed if isinstance(listed, str) else json.dumps({"ray_version": "2.60.0", "checkpoint_results": results})
        )
        make.write(make.root / "run/checkpoint_manager_snapshot.json", text.encode())


def test_ray_names_folders_by_the_time(make):
    ray_run(make, TIMES)
    assert [step_of(name) for name in TIMES] == [None, None]
    assert number_of(TIMES[0]) == 261123044815000123 < number_of(TIMES[1]) < 2**63
    _, parts = seen(make)
    assert [(part.key, part.valid) for part in parts] == [(TIMES[1], True), (TIMES[0], True)]


def test_what_ray_has_not_registered_did_not_finish(make):
    ray_run(make, TIMES[:1])
    _, parts = seen(make)
    assert [part.valid for part in parts] == [None, True] and "not registered" in parts[0].reason


def test_what_ray_has_registered_a_moment_ago_did_finish(make):
    """Its list is the end marker that the folder itself lacks."""
    ray_run(make, TIMES)
    for name in TIMES:
        os.utime(make.root / f"run/{name}/checkpoint.pt", (make.now_s - 5, make.now_s - 5))
    _, parts = seen(make)
    assert [part.valid for part in parts] == [True, True], parts
    ray_run(make, "[]")
    for name in TIMES:
        os.utime(make.root / f"run/{name}/checkpoint.pt", (make.now_s - 5, make.now_s - 5))
    _, parts = seen(make)
    assert [part.valid for part in parts] == [None, None] and "being written" in parts[0].reason


@pytest.mark.parametrize("text", [None, "", '{"checkpoint_results": [', "[]", '{"checkpoint_results": 3}', "\0" * 100])
def test_a_list_of_ray_that_cannot_be_read_says_nothing(make, text):
    ray_run(make, text)
    _, parts = seen(make)
    assert [part.valid for part in parts] == [True, True]


def test_ray_around_a_trainers_folder(make):
    """RayTrainReportCallback puts a Hugging Face checkpoint into ``checkpoint/``."""
    make.hf(f"run/{TIMES[0]}/checkpoint", step=10)
    for names, valid in ((TIMES[:1], True), ((), None)):
        listed = {"checkpoint_results": [{"checkpoint_dir_name": name} for name in names]}
        make.write(make.root / "run/checkpoint_manager_snapshot.json", json.dumps(listed).encode())
        assert seen(make)[0] == [(10, valid)]


def of_a_loop(make, step, more=()):
    """A folder under the Trainer's name, of a training loop that somebody wrote."""
    path = make.root / f"run/checkpoint-{step}"
    value, payloads = make.state(step)
    make.write(path / "adapter_model.safetensors", make.safetensors({"w": ("F32", (4, 4), make.floats(16))}))
    optimizer = {"state": value, "param_groups": [{"params": [0, 1]}]}
    make.write(path / "optimizer.pt", make.torch_file(optimizer, payloads, prefix="optimizer"))
    for name in ("scheduler.pt", *more):
        make.write(path / name, make.torch_file({"at": step}, prefix=name.partition(".")[0]))
    return path


def test_a_loop_of_ones_own_under_the_trainers_name(make):
    """It writes no trainer_state.json, and never will."""
    paths = [of_a_loop(make, step) for step in (10, 20)]
    for path in paths:
        for file in path.iterdir():
            make.age(file, 3600)
        answer = validate(path, "structural", now_s=make.now_s)
        assert (answer.valid, answer.step) == (True, int(path.name.partition("-")[2])), answer
    (paths[1] / "scheduler.pt").unlink()
    assert validate(paths[1], "structural", now_s=make.now_s).valid is None


def test_a_save_without_weights_is_no_loops_of_ones_own(make):
    path = of_a_loop(make, 10)
    (path / "adapter_model.safetensors").unlink()
    for file in path.iterdir():
        make.age(file, 3600)
    assert validate(path, "structural", now_s=make.now_s).valid is False


@pytest.mark.parametrize("beside", [True, False])
def test_a_save_of_the_trainers_that_did_not_finish(make, beside):
    if beside:
        make.hf("run/checkpoint-6")
    path = of_a_loop(make, 10, () if beside else ("training_args.bin",))
    for file in path.iterdir():
        make.age(file, 3600)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is False and "trainer_state.json is missing" in answer.reason, answer


PIPELINES = (
    ("pytorch_lora_weights.safetensors",),
    ("unet/diffusion_pytorch_model.safetensors", "unet_ema/diffusion_pytorch_model.safetensors"),
    ("transformer/model-00001-of-00002.safetensors", "transformer/model-00002-of-00002.safetensors"),
    (
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
    ),
    ("controlnet/diffusion_pytorch_model.bin",),
)


def of_a_pipeline(make, step, files):
    """What a hook of Accelerate's saves in place of the model."""
    path = make.accelerate(f"run/checkpoint-{step}", step, ranks=1)
    (path / "model.safetensors").unlink()
    for number, name in enumerate(files):
        weights = {f"w{number}": ("F32", (16, 8), make.floats(128)), f"v{number}": ("F32", (16, 8), make.floats(128))}
        data = make.safetensors(weights)
        if name.endswith(".bin"):
            data = make.torch_file({"w": make.tensor((16, 8))}, [make.floats(128)], "diffusion_pytorch_model")
        make.write(path / name, data)
    if len(files) == 2 and "-of-" in files[0]:
        places = {f"{kind}{number}": name.rpartition("/")[2] for number, name in enumerate(files) for kind in "wv"}
        make.json(path / f"{files[0].partition('-0')[0]}.safetensors.index.json", {"weight_map": places})
    for file in (file for file in path.rglob("*") if file.is_file()):
        make.age(file, 36_000 - step)
    return path


@pytest.mark.parametrize("files", PIPELINES)
def test_a_pipelines_parts_in_place_of_a_model(make, files):
    of_a_pipeline(make, 10, files)
    path = of_a_pipeline(make, 20, files)
    answer = validate(path, "structural", now_s=make.now_s)
    assert (answer.format, answer.valid) == ("accelerate", True), answer
    for name in files:
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:-5])
        os.utime(path / name, (make.now_s - 35_980,) * 2)
        assert validate(path, "structural", now_s=make.now_s).valid is False
        (path / name).unlink()
        assert validate(path, "structural", now_s=make.now_s).valid is not True
        make.write(path / name, whole)
        make.age(path / name, 35_980)


def test_no_part_and_no_model(make):
    path = of_a_pipeline(make, 10, ())
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is False and "no model" in answer.reason, answer


def test_another_programs_file_in_a_folder_is_no_part_of_a_pipeline(make):
    path = of_a_pipeline(make, 10, ())
    for name in ("ema/ema_state.bin", "tokenizer/words.bin"):
        make.write(path / name, b"one word\n" * 9)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is False and "no model" in answer.reason, answer
    whole = make.accelerate("run/checkpoint-20", 20, ranks=1)
    make.write(whole / "data/train.bin", b"one word\n" * 9)
    answer = validate(whole, "structural", now_s=make.now_s)
    assert answer.valid is True, answer


@pytest.mark.parametrize("old", ["optimizer.bin", "pytorch_lora_weights.safetensors"])
def test_a_part_of_the_save_before(make, old):
    before = of_a_pipeline(make, 10, PIPELINES[0])
    path = of_a_pipeline(make, 20, PIPELINES[0])
    assert validate(path, "structural", now_s=make.now_s).valid is True
    make.write(path / old, (before / old).read_bytes())
    make.age(path / old, 35_980)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "two saves mixed" in answer.reason, answer
