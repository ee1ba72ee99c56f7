"""DeepSpeed's ordinary and universal saves: what each rank loads, and whose numbers they are."""

from __future__ import annotations

import os
import shutil
import struct

import pytest

from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.checkpoints.validate import validate


def ask(make, path, level="checksum"):
    return validate(path, level, now_s=make.now_s)


def keep_times(path, data):
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, (status.st_atime, status.st_mtime))


def universal(make, steps=(10, 20, 30), name="run/global_step{}_universal"):
    paths = []
    for index, step in enumerate(steps):
        path = make.universal(name.format(step), step)
        aged(make, path, 36_000 - 3600 * index)
        paths.append(path)
    return paths


def aged(make, path, seconds):
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, seconds)


# --- universal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_the_groups_of_parameters_are_missing(make, alone):
    path = universal(make, (10,) if alone else (10, 20))[-1]
    assert ask(make, path, "content").valid is True
    (path / "zero/optimizer_state.pt").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "zero/optimizer_state.pt is missing" in answer.reason, answer


def of_zero_3(make, path, ranks=2):
    data = (path / "mp_rank_00_model_states.pt").read_bytes()
    (path / "mp_rank_00_model_states.pt").unlink()
    for rank in range(ranks):
        make.write(
            path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", data.replace(b"mp_rank_00_model", b"x" * 16)
        )


@pytest.mark.parametrize(("rank", "valid"), [(0, False), (1, True)])
def test_the_model_states_of_a_rank_are_missing(make, rank, valid):
    """Every rank loads those of rank 0, since there may be other ranks than there were."""
    path = universal(make, (10,))[0]
    of_zero_3(make, path)
    assert ask(make, path).valid is True, ask(make, path)
    (path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").unlink()
    assert ask(make, path).valid is valid, ask(make, path)


def test_a_file_that_both_universal_saves_beside_have(make):
    paths = universal(make)
    for path in paths:
        make.write(path / "zero/extra_state.pt", make.torch_file({"cursor": 7}, prefix="extra_state"))
        os.utime(path / "zero/extra_state.pt", ((path / "zero/optimizer_state.pt").stat().st_mtime,) * 2)
    assert ask(make, paths[2]).valid is True
    (paths[2] / "zero/extra_state.pt").unlink()
    answer = ask(make, paths[2])
    assert answer.valid is None and "extra_state.pt is missing" in answer.reason, answer


@pytest.mark.parametrize("newest", ["ordinary", "universal"])
def test_saves_of_both_forms_beside_each_other(make, newest):
    """The ordinary ones may be gone, or the last of them alone was made a universal one."""
    forms = {
        "ordinary": lambda step: make.deepspeed(f"run/global_step{step}", step),
        "universal": lambda step: make.universal(f"run/global_step{step}_universal", step),
    }
    other = next(form for form in forms if form != newest)
    for index, step in enumerate((10, 20)):
        aged(make, forms[other](step), 36_000 - 3600 * index)
    path = forms[newest](30)
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("kind", ["exp_avg", "fp32"])
@pytest.mark.parametrize("other", ["exp_avg", "fp32", "exp_avg_sq"])
def test_files_of_a_parameter_that_changed_places(make, kind, other):
    path = universal(make, (10,))[0]
    one, two = (path / f"zero/layers.0.weight/{name}.pt" for name in (kind, other))
    first, second = one.read_bytes(), two.read_bytes()
    keep_times(one, second)
    keep_times(two, first)
    answer = ask(make, path, "structural")
    assert answer.valid is (True if kind == other else None), answer
    assert answer.valid or "files that changed places" in answer.reason


def test_squares_that_are_other_numbers(make):
    """Saved through a buffer, which keeps no name."""
    path = universal(make, (10,))[0]
    data = make.torch_file({"param": make.tensor((4, 4))}, [make.floats(16)])
    keep_times(path / "zero/layers.0.weight/exp_avg.pt", data)
    assert ask(make, path, "content").valid is True
    keep_times(path / "zero/layers.0.weight/exp_avg_sq.pt", data)
    assert ask(make, path).valid is True
    answer = ask(make, path, "content")
    assert answer.valid is False and "negative" in answer.reason, answer


@pytest.mark.parametrize("kinds", [["exp_avg"], ["exp_avg_sq"], ["exp_avg", "exp_avg_sq"]])
def test_moments_of_another_parameter(make, kinds):
    """Parameters that are added to each other have the same gradients, and then both moments are the same."""
    path = universal(make, (10,))[0]
    for kind in kinds:
        data = (path / f"zero/layers.0.weight/{kind}.pt").read_bytes()
        keep_times(path / f"zero/layers.1.weight/{kind}.pt", data)
    answer = ask(make, path)
    assert answer.valid is (None if len(kinds) == 1 else True), answer
    assert answer.valid or "a copy of it" in answer.reason


def test_the_count_of_steps_of_the_save_before(make):
    """DeepSpeed asserts that all parameters of a group count the same."""
    paths = universal(make, (10, 20))
    for index, path in enumerate(paths):
        for number in range(2):
            file = path / f"zero/layers.{number}.weight/step.pt"
            make.write(file, make.torch_file({"param": float(10 * index)}, prefix="step"))
            make.age(file, 36_000 - 3600 * index)
    assert ask(make, paths[1]).valid is True, ask(make, paths[1])
    name = "zero/layers.0.weight/step.pt"
    shutil.copy2(paths[0] / name, paths[1] / name)
    answer = ask(make, paths[1])
    assert answer.valid is None and "two saves" in answer.reason, answer


def test_moments_of_nothing_are_no_copies(make):
    """Parameters that were never reached."""
    path = universal(make, (10,))[0]
    for number in range(2):
        data = make.torch_file({"param": make.tensor((4, 4))}, [struct.pack("<16f", *[0.0] * 16)], "exp_avg")
        keep_times(path / f"zero/layers.{number}.weight/exp_avg.pt", data)
    assert ask(make, path).valid is True, ask(make, path)


# --- ordinary ---------------------------------------------------------------------------------------------------------


def ordinary(make, stage, steps=(10, 20, 30)):
    paths = []
    for index, step in enumerate(steps):
        path = make.deepspeed(f"run/global_step{step}", step, stage=stage)
        aged(make, path, 36_000 - 3600 * index)
        paths.append(path)
    return paths


def give_shards(before, path, count=2):
    for file in sorted(path.glob("*optim_states.pt"))[:count]:
        keep_times(file, (before / file.name).read_bytes())


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("far", [False, True])
def test_all_optimizer_shards_of_another_save(make, stage, far):
    """DeepSpeed loads them and says nothing: the weights are those of their masters, of another step than is counted."""
    paths = ordinary(make, stage, range(10, 110, 10) if far else (10, 20, 30))
    assert [ask(make, path).valid for path in paths] == [True] * len(paths)
    give_shards(paths[0] if far else paths[-2], paths[-1])
    answer = ask(make, paths[-1])
    assert answer.valid is None and "optimizer shards are byte for byte" in answer.reason, answer


def skipping(make, path, step, skipped):
    value = {"module": {"w": make.tensor((16, 8))}, "global_steps": step, "skipped_steps": skipped, "dp_world_size": 2,
             "mp_world_size": 1, "ds_config": {"zero_optimization": {"stage": 1}}}  # fmt: skip
    keep_times(
        path / "mp_rank_00_model_states.pt", make.torch_file(value, [make.floats(128)], "mp_rank_00_model_states")
    )


@pytest.mark.parametrize("skipped", [10, 9])
def test_steps_that_were_skipped_change_no_shard(make, skipped):
    paths = ordinary(make, 1, (10, 20))
    skipping(make, paths[0], 10, 0)
    skipping(make, paths[1], 20, skipped)
    give_shards(paths[0], paths[1])
    assert ask(make, paths[1]).valid is (True if skipped == 10 else None), ask(make, paths[1])


# --- saved again by fewer ranks --------------------------------------------------------------------------------------


def saved_again(make, stage, before=4, now=2):
    """A run went back, and saved the same step on fewer ranks into the folder of the older save."""
    path = make.deepspeed("run/global_step30", 30, ranks=before, stage=stage)
    aged(make, path, 7200)
    make.deepspeed("run/global_step30", 30, ranks=now, stage=stage)
    for file in path.iterdir():
        if file.stat().st_mtime > make.now_s - 7000:
            make.age(file, 3600)
    return path


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_shards_of_ranks_that_a_save_does_not_have(make, stage, level):
    """DeepSpeed reads as many as the model states say: the newest whole save was *invalid*, and moved aside."""
    answer = ask(make, saved_again(make, stage), level)
    assert answer.valid is True and "by more ranks" in answer.reason, answer


def test_a_damaged_shard_of_a_rank_that_a_save_does_not_have(make):
    """No load reads it."""
    shard = saved_again(make, 1) / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"
    data = shard.read_bytes()
    at = data.rindex(b"PK\x01\x02") // 2
    keep_times(shard, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert ask(make, shard.parent).valid is True, ask(make, shard.parent)


def test_each_shard_is_asked_a_few_times_for_the_ranks(make, monkeypatch):
    """All were asked for each of them: 50 s for 4,000 ranks."""
    asked, get = [], TorchFile.get
    monkeypatch.setattr(TorchFile, "get", lambda file, *keys: asked.append(file.name) or get(file, *keys))
    path = make.deepspeed("run/global_step30", 30, ranks=40)
    assert ask(make, path, "structural").valid is True
    assert len(asked) < 20 * len(list(path.iterdir()))


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_that_a_save_by_fewer_ranks_lacks(make, stage, rank):
    path = saved_again(make, stage)
    shard = path / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    shard.unlink()
    assert ask(make, path).valid is False
    older = make.deepspeed("old/global_step30", 30, ranks=4, stage=stage) / shard.name
    shutil.copy2(older, shard)
    assert ask(make, path).valid is not True


def test_model_states_that_count_fewer_ranks_than_all_shards_do(make):
    """With sequences cut over the ranks older versions count those of the data alone: all four are of one save."""
    path = make.deepspeed("run/global_step30", 30, ranks=4)
    fewer = make.deepspeed("other/global_step30", 30, ranks=2)
    shutil.copy2(fewer / "mp_rank_00_model_states.pt", path)
    aged(make, path, 3600)
    assert ask(make, path).valid is True, ask(make, path)
    (path / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    assert ask(make, path).valid is False, ask(make, path)
