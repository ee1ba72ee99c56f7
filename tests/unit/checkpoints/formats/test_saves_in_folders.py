"""Saves of the Trainer and of Accelerate some folders deep in a step, and those that did not come to their end."""

from __future__ import annotations

import hashlib
import math
import shutil
import struct
from dataclasses import replace

import pytest

from sentinel.checkpoints.validate import DEFAULTS, validate

ENDS = {"hf": "trainer_state.json", "accelerate": "random_states_0.pkl"}
OPTIMIZERS = {"hf": "optimizer.pt", "accelerate": "optimizer.bin"}


def ask(make, path, level="structural"):
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, 3600)
    return validate(path, level, now_s=make.now_s)


def save(make, kind, at, ranks=2):
    return make.hf(at, 10) if kind == "hf" else make.accelerate(at, 10, ranks=ranks)


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES = {
    "no model": lambda path, kind: (path / "model.safetensors").unlink(),
    "cut model": lambda path, kind: cut(path / "model.safetensors"),
    "no optimizer": lambda path, kind: (path / OPTIMIZERS[kind]).unlink(),
    "cut optimizer": lambda path, kind: cut(path / OPTIMIZERS[kind]),
    "no end": lambda path, kind: (path / ENDS[kind]).unlink(),
    "cut end": lambda path, kind: cut(path / ENDS[kind]),
    "no schedule": lambda path, kind: (path / ("scheduler.pt" if kind == "hf" else "model.safetensors")).unlink(),
}


@pytest.mark.parametrize("outer", ["checkpoint-10", "step_10", "checkpoint-10 of hf", "checkpoint-10 of accelerate"])
@pytest.mark.parametrize("deep", ["state", "policy/state", "policy/state/x", "policy/checkpoint-10", "a/checkpoint_0"])
@pytest.mark.parametrize("kind", ["hf", "accelerate"])
def test_a_save_in_a_folder_of_a_step(make, outer, deep, kind):
    """Damaged ones two folders deep were valid, and whole ones of Accelerate not known."""
    name, _, around = outer.partition(" of ")
    step = make.root / "run" / name
    if around:
        save(make, around, f"run/{name}")
    inner = save(make, kind, f"run/{name}/{deep}")
    answer = ask(make, step)
    assert (answer.valid, answer.step) == (True, 10), answer
    for damage, do in DAMAGES.items():
        shutil.copytree(inner, make.root / "kept")
        do(inner, kind)
        answer = ask(make, step)
        assert answer.valid is (answer.valid if not around else None) and answer.valid is not True, (damage, answer)
        shutil.rmtree(inner)
        (make.root / "kept").rename(inner)


@pytest.mark.parametrize("kind", ["hf", "accelerate"])
def test_a_save_in_a_folder_is_read_with_the_others(make, kind):
    step = make.dcp("run/step-10/model", step=10).parent
    inner = save(make, kind, "run/step-10/policy/state")
    path = inner / OPTIMIZERS[kind]
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02") // 2
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    assert ask(make, step, "checksum").valid is not True


@pytest.mark.parametrize("deep", ["old/checkpoint-5", "runs/checkpoint-20", "all/checkpoint_0"])
def test_a_save_of_another_step_is_one_of_its_own(make, deep):
    """What is damaged there says nothing about this one."""
    path = make.hf("run/checkpoint-10", 10)
    inner = make.hf(f"run/checkpoint-10/{deep}", 5)
    make.hf("run/checkpoint-10/all/checkpoint_1", 6)
    cut(inner / "model.safetensors")
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("deep", ["ds", "policy/ds"])
def test_deepspeeds_ranks_some_folders_deep(make, deep):
    """In a step of the Trainer's name nothing else is known of them; without a rank's they were valid."""
    path = make.root / "run/checkpoint-100"
    make.deepspeed(f"run/checkpoint-100/{deep}", step=100, ranks=4)
    assert ask(make, path).valid is not False, ask(make, path)
    (path / deep / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    assert ask(make, path).valid is not True, ask(make, path)


@pytest.mark.parametrize("deep", ["a", "a/b"])
def test_nemos_context_some_folders_deep(make, deep):
    """The weights were looked at without what is read with them."""
    path = make.root / "run/step_10"
    make.nemo(f"run/step_10/{deep}", 10)
    assert ask(make, path).valid is True, ask(make, path)
    cut(path / deep / "context/model.json")
    assert ask(make, path).valid is not True, ask(make, path)


@pytest.mark.parametrize("at", ["run/step_10", "run/step_10/a", "run/step_10/a/b"])
def test_megatrons_save_without_its_marker_under_another_name(make, at):
    """As a folder of DCP's it was valid; nothing can load it. A file of that name alone may be somebody's own."""
    path = make.megatron(at, 10, integrity=False)
    make.megatron(at.replace("10", "20"), 20, integrity=False)
    step = make.root / "run/step_10"
    assert validate(step, "structural", now_s=make.now_s).valid is True
    (path / "metadata.json").unlink()
    answer = validate(step, "structural", now_s=make.now_s)
    assert answer.valid is None and "metadata.json" in answer.reason, answer


AROUND = {
    "step-10": lambda make: make.dcp("run/step-10", step=10),
    "iter_0000010": lambda make: make.megatron("run/iter_0000010", 10),
    "global_step10": lambda make: make.deepspeed("run/global_step10", step=10),
    "checkpoint-10": lambda make: make.hf("run/checkpoint-10", 10),
    "step-10 of nemo": lambda make: make.dcp("run/step-10/weights", step=10),
    "step_10 of policies": lambda make: make.dcp("run/step_10/policy/weights", step=10),
}
INSIDE = {
    "dcp": (lambda make, at: make.dcp(at, step=10), "__1_0.distcp", ".metadata"),
    "deepspeed": (
        lambda make, at: make.deepspeed(at, step=10),
        "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "mp_rank_00_model_states.pt",
    ),
    "megatron": (lambda make, at: make.megatron(at, 10, integrity=False), "__1_0.distcp", ".metadata"),
}


@pytest.mark.parametrize("outer", AROUND)
@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize("deep", ["optimizer", "policy/optimizer", "ema/a/b"])
def test_a_state_in_a_folder_of_a_save(make, outer, kind, deep):
    """An optimizer, an average, a critic: cut or without its end it was valid at every level, and nothing could load it."""
    AROUND[outer](make)
    step = make.root / "run" / outer.partition(" ")[0]
    write, shard, end = INSIDE[kind]
    inner = write(make, f"run/{step.name}/{deep}")
    assert ask(make, step).valid is True, ask(make, step)
    cut(inner / shard)
    assert ask(make, step).valid is not True, ask(make, step)
    shutil.rmtree(inner)
    (write(make, f"run/{step.name}/{deep}") / end).unlink()
    assert ask(make, step).valid is not True, ask(make, step)


@pytest.mark.parametrize("outer", ["step-10 of nemo", "step_10 of policies", "step-10"])
def test_a_state_in_a_folder_is_read_with_the_save(make, outer):
    AROUND[outer](make)
    step = make.root / "run" / outer.partition(" ")[0]
    path = make.dcp(f"run/{step.name}/policy/optimizer", step=10) / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(b"data/0") + 100] ^= 0xFF
    path.write_bytes(bytes(data))
    assert ask(make, step, "checksum").valid is False, ask(make, step, "checksum")


def test_the_shards_of_a_trainers_model_are_read_once(make):
    """Its own check looks at them: no other one does again."""
    step = begun(make, "run/checkpoint-10", 7)
    make.json(step / "trainer_state.json", {"global_step": 10})
    read = []
    for file in step.rglob("*"):
        make.age(file, 3600)
    answer = validate(step, "checksum", now_s=make.now_s, settings=replace(DEFAULTS, progress=read.append))
    assert answer.valid is True and sum(read) < sum(f.stat().st_size for f in step.rglob("*") if f.is_file()), answer


@pytest.mark.parametrize("outer", [*AROUND, "checkpoint-10 of accelerate", "iter_0000010 of ranks"])
@pytest.mark.parametrize("name", ["dataloader/rank_0.pt", "policy/critic/state.pt"])
def test_a_torch_file_in_a_folder_of_a_save(make, outer, name):
    """Only DCP's saw theirs. Where it may be anybody's, a save beside that has it whole tells."""
    step = make.root / "run" / outer.partition(" ")[0]
    others = {
        "checkpoint-10 of accelerate": lambda make: make.accelerate("run/checkpoint-10", 10, ranks=1),
        "iter_0000010 of ranks": lambda make: make.megatron_legacy("run/iter_0000010", 10),
    }
    {**AROUND, **others}[outer](make)
    path = step / name
    whole = torch_file(make, path.name)
    make.write(path, whole)
    make.write(step.with_name(step.name.replace("10", "20")) / name, whole)
    assert ask(make, step).valid is True, ask(make, step)
    for data in (whole[: len(whole) // 2], b""):
        make.write(path, data)
        assert ask(make, step).valid is not True, ask(make, step)


@pytest.mark.parametrize("integrity", [True, False])
@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b""])
def test_the_state_of_a_run_in_a_save_of_megatrons(make, integrity, damage):
    """Megatron-Bridge reads ``train_state.pt`` at a resume: cut or empty, the save around it was valid at every level."""
    step = make.megatron("run/iter_0000010", 10, integrity=False)
    path = step / "train_state.pt"
    make.write(path, torch_file(make, path.name))
    if integrity:
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in step.iterdir()}
        make.json(step / "integrity.json", {"algorithm": "sha256", "files": digests}, 3)
    assert ask(make, step, "content").valid is True, ask(make, step, "content")
    make.write(path, damage(path.read_bytes()))
    assert [ask(make, step, level).valid for level in ("structural", "checksum", "content")] == [False] * 3


def test_a_torch_file_of_another_step_is_none_of_this_save(make):
    step = make.dcp("run/step-10", step=10)
    make.write(step / "old/step-5/state.pt", torch_file(make, "state.pt")[:-40])
    assert ask(make, step).valid is True, ask(make, step)


def test_more_saves_than_are_looked_at(make):
    path = make.hf("run/checkpoint-10", 10)
    for index in range(70):
        make.json(path / f"part{index:02d}/trainer_state.json", {"global_step": 10})
        make.write(path / f"part{index:02d}/model.bin", b"0")
    answer = ask(make, path)
    assert answer.valid is None and "too many" in answer.reason, answer


# --- in the order in which they are written -----------------------------------------------------------------------------


def torch_file(make, name, step=10):
    return make.torch_file({"last_epoch": step}, prefix=name.rpartition(".")[0])


def begun(make, at, count, step=10, ranks=4):
    """The first parts of a save of the Trainer under FSDP with sharded states, as transformers 4.40 to 5.24 writes them."""
    path = make.root / at
    parts = ["pytorch_model_fsdp_0", "optimizer_0", "scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(ranks))]
    for name in parts[:count]:
        if name.endswith("_0") and "." not in name:
            make.dcp(f"{at}/{name}", step=step)
        else:
            make.write(path / name, torch_file(make, name, step))
    return path


@pytest.mark.parametrize("at", ["run/checkpoint-10", "run/step_10", "run/step_10/policy", "run/checkpoint-10/a/b"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_an_unfinished_save_of_the_trainer_under_fsdp(make, at, count):
    """There is no ``training_args.bin`` that tells whose it is: it was valid."""
    path = begun(make, at, count)
    step = make.root / "/".join(at.split("/")[:2])
    assert ask(make, step).valid is not True, ask(make, step)
    make.json(path / "trainer_state.json", {"global_step": 10})
    if count == 7:
        assert ask(make, step).valid is True, ask(make, step)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_two_unfinished_saves_do_not_excuse_each_other(make, count):
    paths = [begun(make, f"run/checkpoint-{step}", count, step) for step in (10, 20)]
    assert [ask(make, path).valid for path in paths] == [None, None], [ask(make, path) for path in paths]


@pytest.mark.parametrize("at", ["run/step_10", "run/checkpoint-10", "run/step_10/state", "run/step_10/policy/state"])
def test_an_unfinished_save_of_accelerate(make, at):
    """Random states come last, and a save beside has them. Alone it may be a loop of somebody's, and can be resumed."""
    path = make.accelerate(at, 10, ranks=1)
    (path / "random_states_0.pkl").unlink()
    step = make.root / "/".join(at.split("/")[:2])
    assert ask(make, step).valid is True, ask(make, step)
    make.accelerate(at.replace("10", "20"), 20, ranks=1)
    assert ask(make, step).valid is not True, ask(make, step)


@pytest.mark.parametrize(
    ("name", "text"),
    [("logs/latest", "run-1"), ("a/b/latest_checkpointed_iteration.txt", "5"), ("run/logs/trainer_state.json", "{}")],
)
def test_a_mark_without_a_save(make, name, text):
    """A folder of logs, or of what another run left, is no save: every step of that run was invalid."""
    path = make.root / "run/step_10"
    value, payloads = make.state(10)
    optimizer = {"state": value, "param_groups": [{"params": [0, 1]}]}
    make.write(path / "model.pt", make.torch_file({"w": make.tensor((4, 4))}, [make.floats(16)], "model"))
    make.write(path / "optimizer.pt", make.torch_file(optimizer, payloads, "optimizer"))
    make.write(path / name, text.encode())
    assert ask(make, path).valid is True, ask(make, path)


def test_a_loop_that_uses_accelerates_names(make):
    """The saves beside have no end either."""
    paths = [make.accelerate(f"run/step_{step}", step, ranks=1) for step in (10, 20, 30)]
    for path in paths:
        (path / "random_states_0.pkl").unlink()
        for file in path.iterdir():
            make.age(file, 36_000 - int(path.name[5:]))
    answers = [validate(path, "structural", now_s=make.now_s) for path in paths]
    assert [answer.valid for answer in answers] == [True] * 3, answers
    shutil.copy(make.accelerate("other/step_20", 20, ranks=1) / "random_states_0.pkl", paths[1])
    assert ask(make, paths[0]).valid is None, ask(make, paths[0])


def test_an_exported_model_beside_the_trainers_arguments(make):
    """``Trainer.save_model`` writes them, too; and no optimizer."""
    path = make.dcp("run/step-10", step=10)
    weights = make.safetensors({"w": ("F32", (4, 4), make.floats(16))})
    make.write(path / "export/model.safetensors", weights)
    make.write(path / "export/training_args.bin", torch_file(make, "training_args.bin"))
    assert ask(make, path).valid is True, ask(make, path)


def test_the_files_of_a_save_inside_are_read_once(make):
    """The save around it reads all torch files; the Trainer's and Accelerate's in a folder were read again."""
    step = make.dcp("run/step-10", step=10)
    make.hf("run/step-10/policy", 10)
    (step / "policy/model.safetensors").unlink()
    shapes = ((16, 8), (16, 8), (256, 256))
    model = {str(key): make.tensor(shape, key=key) for key, shape in enumerate(shapes)}
    payloads = [make.floats(rows * columns) for rows, columns in shapes]
    make.write(step / "policy/pytorch_model.bin", make.torch_file(model, payloads))
    assert ask(make, step, "checksum").valid is True, ask(make, step, "checksum")
    read = []
    validate(step, "checksum", now_s=make.now_s, settings=replace(DEFAULTS, progress=read.append))
    assert sum(read) < sum(file.stat().st_size for file in step.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_save_inside_is_still_read(make, name):
    step = make.dcp("run/step-10", step=10)
    path = make.hf("run/step-10/policy", 10) / name
    data = bytearray(path.read_bytes())
    at = len(data) - 4 if name == "model.safetensors" else data.rfind(b"PK\x01\x02") // 2
    data[at : at + 4] = struct.pack("<f", math.nan)
    path.write_bytes(bytes(data))
    answer = ask(make, step, "content")
    assert answer.valid is False and name in answer.reason, answer


def test_numbers_of_a_save_inside_whose_files_are_known_by_their_digests(make):
    """Megatron's list covers every byte; that a number is none it does not say."""
    step = make.megatron("run/iter_0000010", 10)
    path = make.hf("run/iter_0000010/policy", 10) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", math.nan))
    files = [file for file in step.rglob("*") if file.is_file() and file.name != "integrity.json"]
    digests = {str(file.relative_to(step)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    make.json(step / "integrity.json", {"algorithm": "sha256", "files": digests}, 3)
    answer = ask(make, step, "content")
    assert answer.valid is False and "NaN" in answer.reason, answer
