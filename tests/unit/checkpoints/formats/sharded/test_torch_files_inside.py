"""Torch files in a save that its format does not name: of a save in a folder of it, of a run's state, or anybody's."""

from __future__ import annotations

import json
import math
import shutil
import struct

import pytest

from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.records import LEVELS
from sentinel.checkpoints.validate import validate

AROUND = {
    "step-10": lambda make: make.dcp("run/step-10", step=10),
    "iter_0000010": lambda make: make.megatron("run/iter_0000010", 10),
    "global_step10": lambda make: make.deepspeed("run/global_step10", step=10),
    "checkpoint-10": lambda make: make.hf("run/checkpoint-10", 10),
    "checkpoint-10 of accelerate": lambda make: make.accelerate("run/checkpoint-10", 10, ranks=4),
    "step-10 of nemo": lambda make: make.dcp("run/step-10/weights", step=10),
}
INSIDE = {
    "hf": lambda make, at: make.hf(at, 10),
    "accelerate": lambda make, at: make.accelerate(at, 10, ranks=4),
    "deepspeed": lambda make, at: make.deepspeed(at, 10),
}


def ask(make, path, level="structural"):
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, 3600)
    return validate(path, level, now_s=make.now_s)


FILES = {"hf": "optimizer.pt", "accelerate": "optimizer.bin", "deepspeed": "mp_rank_00_model_states.pt"}


def flip(path):
    data = bytearray(path.read_bytes())
    data[data.rfind(b"PK\x01\x02") // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("outer", AROUND)
@pytest.mark.parametrize("kind", FILES)
def test_the_torch_files_of_a_save_in_a_folder(make, outer, kind):
    """Cut ones made saves around them invalid, though they may be no part of these; flipped ones were not read in others."""
    AROUND[outer](make)
    step = make.root / "run" / outer.partition(" ")[0]
    inner = INSIDE[kind](make, f"run/{step.name}/a/b")
    flip(inner / FILES[kind])
    answer = ask(make, step, "checksum")
    assert answer.valid is False and FILES[kind] in answer.reason, answer
    path = inner / FILES[kind]
    path.write_bytes(path.read_bytes()[:-40])
    assert ask(make, step).valid is None, ask(make, step)


@pytest.mark.parametrize("name", ["train_state.pt", "common.pt"])
def test_a_file_that_megatrons_sums_leave_out_is_read(make, name):
    step = make.megatron("run/iter_0000010", 10)
    if name != "common.pt":
        make.write(step / name, make.torch_file({"last_epoch": 10}, prefix=name[:-3]))
    listed = json.loads((step / "integrity.json").read_text())
    listed["files"].pop(name, None)
    make.json(step / "integrity.json", listed, 3)
    assert ask(make, step, "checksum").valid is True, ask(make, step, "checksum")
    flip(step / name)
    assert ask(make, step, "checksum").valid is False, ask(make, step, "checksum")


OF_ANYBODY = {name: AROUND[name] for name in ("global_step10", "checkpoint-10", "checkpoint-10 of accelerate")}


@pytest.mark.parametrize("outer", OF_ANYBODY)
def test_a_torch_file_of_anybody_in_a_folder_of_a_save(make, outer):
    """A flipped bit, a number that is none or no checksum in somebody's results made the save around them invalid or not
    known, and a cut one nothing of the kind. As for that, a save beside that has the file whole tells."""
    step = make.root / "run" / outer.partition(" ")[0]
    OF_ANYBODY[outer](make)

    def answers():
        return [(one.valid, one.reason) for one in (ask(make, step, level) for level in LEVELS)]

    before = answers()
    numbers, path, beside = make.floats(256), step / "eval/results.pt", step.with_name(f"{step.name[:-2]}20")
    value = {"logits": make.tensor((16, 16))}
    whole = make.torch_file(value, [numbers], "results")
    flipped = whole.replace(numbers, numbers[:100] + bytes([numbers[100] ^ 1]) + numbers[101:])
    no_number = make.torch_file(value, [struct.pack("<f", math.nan) + numbers[4:]], "results")
    old = make.legacy("other/old.pt").read_bytes()
    for data in (whole, flipped, no_number, old):
        make.write(path, data)
        assert answers() == before
    make.write(beside / "eval/results.pt", no_number)
    make.write(path, no_number)
    assert ask(make, step, "content").valid is before[2][0], ask(make, step, "content")
    make.write(beside / "eval/results.pt", whole)
    for data, level in ((flipped, "checksum"), (no_number, "content")):
        make.write(path, data)
        answer = ask(make, step, level)
        assert answer.valid is None and "eval/results.pt" in answer.reason and "is whole" in answer.reason, answer


def test_a_torch_file_beside_nemos_weights(make):
    """That folder is its own."""
    step = make.nemo("run/step-10", 10)
    path = step / "weights/extra.pt"
    make.write(path, make.torch_file({"last_epoch": 10}, prefix="extra")[:-40])
    assert ask(make, step).valid is False, ask(make, step)


def with_loops_file(make, steps, stated, name="metadata.pth"):
    """Saves of a loop that keeps its step in a file beside the shards."""
    for step, said in zip(steps, stated, strict=True):
        at = f"run/step-{step}"
        make.dcp(at, step=step)
        if said is not None:
            make.write(make.root / at / name, make.torch_file({"step": said, "tokens_seen": 5 * said}))
    return make.root / f"run/step-{steps[-1]}"


@pytest.mark.parametrize("steps", [(20, 30), (10, 20, 30), (40, 20, 30)])
def test_the_file_with_the_step_is_of_another_save(make, steps):
    """It was valid: the weights of step 30 would have gone on as if at step 20."""
    path = with_loops_file(make, steps, steps)
    assert ask(make, path).valid is True, ask(make, path)
    shutil.copy(path.with_name("step-20") / "metadata.pth", path)
    answer = ask(make, path)
    assert answer.valid is None and "metadata.pth states step 20" in answer.reason, answer


@pytest.mark.parametrize(
    ("steps", "stated"),
    [
        ((10, 20, 30), (10, 0, 10)),  # counted from the start of an epoch
        ((10, 20, 30), (40, 80, 120)),  # smaller steps
        ((10, 20, 30), (10, 20, 5)),  # of no save here
        ((10, 20, 30), (9, 19, 29)),  # from 0
        ((10, 20, 30), (None, None, 20)),
        ((30,), (20,)),
    ],
)
def test_a_count_that_need_not_be_of_the_saves_steps(make, steps, stated):
    path = with_loops_file(make, steps, stated, "loader.pt")
    assert ask(make, path).valid is True, ask(make, path)


def test_a_count_from_the_start_of_an_epoch(make):
    """The first good save of the second epoch was *not known*."""
    path = with_loops_file(make, (10, 20, 30), (10, 20, None), "loader.pt")
    make.write(path / "loader.pt", make.torch_file({"step": 10, "tokens_seen": 150}))
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("name", ["best.pt", "early_stop_best.pth"])
def test_the_best_step_so_far(make, name):
    """A good save was *not known*, the first after the loss rose."""
    path = with_loops_file(make, (10, 20, 30), (10, 20, None), name)
    shutil.copy(path.with_name("step-20") / name, path)
    assert ask(make, path).valid is True, ask(make, path)


def test_counts_that_are_no_steps_are_looked_for_in_one_save_beside(make, monkeypatch):
    """Each of thousands of ranks may have a file of such a count, and each save is asked for."""
    path = with_loops_file(make, (10, 20, 40, 50, 30), (40, 80, 160, 200, 120), "loader.pt")
    looked, file_in = [], extras._file_in
    monkeypatch.setattr(extras, "_file_in", lambda folder, name: looked.append(folder) or file_in(folder, name))
    assert ask(make, path).valid is True and len(looked) == 1, looked
