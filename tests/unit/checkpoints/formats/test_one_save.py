"""Sets that were put together from two saves, and saves that were torn in the middle."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest

from sentinel.checkpoints import files
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


@pytest.mark.parametrize(
    ("maker", "name", "other"),
    [
        ("hf", "optimizer.pt", "scheduler.pt"),
        ("accelerate", "optimizer.bin", "scheduler.bin"),
        ("accelerate", "optimizer.bin", "pytorch_model.bin"),
        ("accelerate", "pytorch_model.bin", "optimizer.bin"),
    ],
)
def test_a_file_under_the_name_of_another(make, maker, name, other):
    path = make.hf("run/checkpoint-6") if maker == "hf" else make.accelerate(model="bin")
    assert ask(make, path).valid is True, ask(make, path)
    status = (path / name).stat()
    (path / name).write_bytes((path / other).read_bytes())
    os.utime(path / name, (status.st_atime, status.st_mtime))
    answer = ask(make, path)
    assert answer.valid is None and name in answer.reason, answer


def test_a_whole_model_left_beside_a_set_with_an_index(make):
    """Transformers loads the one file and never looks at the set."""
    path = make.hf("run/checkpoint-6", sharded=True)
    single = make.hf("other/checkpoint-5", step=5) / "model.safetensors"
    make.write(path / "model.safetensors", single.read_bytes())
    answer = ask(make, path)
    assert answer.valid is None and "model.safetensors beside" in answer.reason, answer


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


@pytest.mark.parametrize(
    ("other", "reason"), [(" (1).safetensors", "is missing"), ("-old.safetensors", "no name of a shard")]
)
def test_a_shard_under_another_name(make, other, reason):
    path = make.consolidated()
    shard = path / "sharded/shard-00003-model-00001-of-00001.safetensors"
    shard.rename(shard.with_name(shard.stem + other))
    answer = ask(make, path)
    assert answer.valid is None and reason in answer.reason


@pytest.mark.parametrize("damage", ["", "{", '{"a": 1', "\0" * 40, '{"a": {"b": 1}'])
@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "tokenizer_config.json", "fsdp_config.json"])
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


# --- copies that keep no times: their order is the copying tool's --------------------------------------------------------


def copied(make, path, names, apart_s, *, folders_too=True):
    """As a copy leaves them that makes these files one after another."""
    for number, name in enumerate(names):
        make.age(path / name, 3000 - number * apart_s)
    for folder in (path, *(p for p in path.rglob("*") if p.is_dir())):
        make.age(folder, 3000 - (len(names) - 1) * apart_s if folders_too else 3600)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        ("dcp", "step-10"),
        ("hf", "checkpoint-6"),
        ("accelerate", "step_100"),
        ("consolidated", "step-70"),
        ("megatron", "step-200"),
    ],
)
def test_a_copy_in_the_order_of_names(make, kind, folder, reverse):
    getattr(make, kind)(folder)
    path = make.root / folder
    names = sorted((str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()), reverse=reverse)
    copied(make, path, names, 60)
    answer = ask(make, path)
    assert answer.valid is True, answer


def test_what_was_written_over_in_place_left_its_folder_as_it_was(make):
    path = make.dcp("step-10")
    copied(make, path, [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))], 60, folders_too=False)
    answer = ask(make, path)
    assert answer.valid is False and "overwritten in place" in answer.reason


def test_a_pause_lies_between_two_saves_though_the_folder_changed(make):
    path = make.dcp("step-10")
    copied(make, path, [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))], 600)
    answer = ask(make, path)
    assert answer.valid is False and "overwritten in place" in answer.reason


def test_two_saves_loaded_from_an_object_store_at_once(make):
    old, new = (make.dcp(f"run/step-{step}", step=step) for step in (10, 20))
    files = [(path, f.name) for path in (new, old) for f in sorted(path.iterdir())]
    for number, (path, name) in enumerate(files[::2] + files[1::2]):
        make.age(path / name, 3000 - number * 7)
    for path in (old, new):
        make.age(path, 2900)
    answer = ask(make, new)
    assert answer.valid is True, answer


@pytest.fixture
def put_in(monkeypatch):
    """Puts another save's file in, with its times, so long after the save; the kernel notes that in ctime."""
    changed_ns = {}
    of_kernel = files.entry_of

    def entry_of(status):
        entry = of_kernel(status)
        return replace(entry, ctime_ns=changed_ns.get(entry.inode, entry.mtime_ns))

    monkeypatch.setattr(files, "entry_of", entry_of)

    def put(file, other, after_s=600):
        saved_ns = file.stat().st_mtime_ns
        take(file, other)
        changed_ns[file.stat().st_ino] = saved_ns + int(after_s * 1e9)

    put.changed_ns = changed_ns
    return put


_MARKERS = [
    ("dcp", ("run/a", "run/b"), ".metadata"),
    ("accelerate", ("run/step_10", "run/step_20"), "random_states_0.pkl"),
    ("consolidated", ("run/step-10", "run/step-20"), "model.safetensors.index.json"),
]


def seconds_apart(make, old, new, apart_s):
    for path, back_s in ((old, 3600 + apart_s), (new, 3600)):
        for file in [*path.rglob("*"), path]:
            make.age(file, back_s)
    return old, new


@pytest.mark.parametrize("apart_s", [10, 60, 100])
@pytest.mark.parametrize(("kind", "names", "marker"), _MARKERS)
def test_the_end_marker_of_a_save_shortly_before(make, put_in, kind, names, marker, apart_s):
    """No copy that keeps no times left one file with times of its own."""
    old, new = seconds_apart(make, *(getattr(make, kind)(name) for name in names), apart_s)
    assert ask(make, new).valid is True
    put_in(new / marker, old / marker)
    shutil.rmtree(old)
    answer = ask(make, new)
    assert answer.valid is None and "two saves mixed" in answer.reason


@pytest.mark.parametrize("apart_s", [10, 60, 100])
def test_a_shard_of_the_save_shortly_before(make, put_in, apart_s):
    old, new = seconds_apart(make, *(make.dcp(f"run/step-{step}", step=step) for step in (10, 20)), apart_s)
    put_in(new / "__2_0.distcp", old / "__2_0.distcp")
    answer = ask(make, new)
    assert answer.valid is None and "older than the end of step-10" in answer.reason


@pytest.mark.parametrize("after_s", [1, 600])
def test_a_copy_that_was_given_to_another_user(make, put_in, after_s):
    """``chown -R`` after ``cp -r``: every ctime is later than its file, those of the last ones hardly."""
    path = make.dcp("step-10")
    names = [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
    copied(make, path, names, 60)
    given_ns = max((path / name).stat().st_mtime_ns for name in names) + int(after_s * 1e9)
    put_in.changed_ns.update({(path / name).stat().st_ino: given_ns for name in names})
    answer = ask(make, path)
    assert answer.valid is True, answer


def test_a_schedule_that_waits_for_a_metric_counts_evaluations(make):
    """Trainer with ReduceLROnPlateau and an evaluation every three steps."""
    path = make.hf("run/checkpoint-20", step=20)
    counted = make.torch_file({"last_epoch": 7}, prefix="scheduler")
    make.write(path / "scheduler.pt", counted)
    assert validate(path, "structural", now_s=make.now_s).valid is None
    plateau = make.torch_file({"last_epoch": 7, "best": 0.4, "num_bad_epochs": 0}, prefix="scheduler")
    make.write(path / "scheduler.pt", plateau)
    assert validate(path, "structural", now_s=make.now_s).valid is True


def adam(make, step, with_state=2):
    value, payloads = make.state(step, keys=with_state)
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1]}]
    return make.torch_file({"state": value, "param_groups": groups}, payloads, "optimizer")


@pytest.mark.parametrize("beside", [True, False])
def test_an_optimizer_without_its_moments(make, beside):
    """Before the first step there are none, and the schedule has made none either."""
    if beside:
        make.write(make.hf("run/checkpoint-4", step=4) / "optimizer.pt", adam(make, 4))
    path = make.hf("run/checkpoint-6", step=6)
    for states, seen in ((2, True), (0, None)):
        make.write(path / "optimizer.pt", adam(make, 6, states))
        answer = validate(path, "structural", now_s=make.now_s)
        assert answer.valid is seen, answer
    assert "no moments" in answer.reason
    make.write(path / "scheduler.pt", make.torch_file({"last_epoch": 0}, prefix="scheduler"))
    assert validate(path, "structural", now_s=make.now_s).valid is (None if beside else True)


def test_the_state_of_one_parameter_went(make):
    make.write(make.hf("run/checkpoint-4", step=4) / "optimizer.pt", adam(make, 4))
    path, later = make.hf("run/checkpoint-6", step=6), make.hf("run/checkpoint-8", step=8)
    make.write(later / "optimizer.pt", adam(make, 8))
    make.write(path / "optimizer.pt", adam(make, 6, 1))
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "has the state of 1 of 2 parameters" in answer.reason
    shutil.rmtree(path.with_name("checkpoint-4"))
    assert validate(path, "structural", now_s=make.now_s).valid is True, "a parameter may get its first gradient later"


def arranged(make, path, names):
    make.write(path, make.safetensors({name: ("F32", (4, 4), make.floats(16)) for name in names}, {"format": "pt"}))


@pytest.mark.parametrize(
    ("before", "now", "valid"),
    [
        ("abcd", "abcd", True),
        ("abcd", "cbad", None),
        ("cbad", "cbad", True),
        ("cbad", "abcd", True),
        ("cbad", "bcad", True),
    ],
)
def test_tensors_that_changed_names(make, before, now, valid):
    """The library writes them in the order of their names, others in one of their own."""
    arranged(make, make.hf("run/checkpoint-4", step=4) / "model.safetensors", before)
    path = make.hf("run/checkpoint-6", step=6)
    arranged(make, path / "model.safetensors", now)
    for file in ("optimizer.pt", "scheduler.pt"):
        (path / file).unlink()
        (path.with_name("checkpoint-4") / file).unlink()
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is valid, answer


def test_a_set_without_the_state_that_the_one_beside_has(make):
    """torchtune's full recipe; its last epoch has none, and nothing can be resumed from that."""
    for epoch in (1, 2):
        path = make.root / f"run/epoch_{epoch}"
        make.write(path / "model.safetensors", make.safetensors({"w": ("F32", (4, 4), make.floats(16))}))
        make.write(path / "recipe_state/recipe_state.pt", make.torch_file({"epochs_run": epoch}))
    assert validate(path, "structural", now_s=make.now_s).valid is True
    (path / "recipe_state/recipe_state.pt").unlink()
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "recipe_state.pt is missing, which epoch_1 has" in answer.reason
