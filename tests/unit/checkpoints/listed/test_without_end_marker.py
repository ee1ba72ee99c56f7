"""Saves without an end marker, whose files changed a moment ago: being written, unless nobody writes them any more."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs, Part
from sentinel.checkpoints.validate import Settings, record, validate


def save(make, step, age_s=3600, folder=True):
    """One file per rank, or one folder with the model and the optimizer in two files."""
    optimizer = {"state": {}, "param_groups": []}
    names = ("model.pt", "optimizer.pt") if folder else ("ep0-ba{}-rank0.pt", "ep0-ba{}-rank1.pt")
    for name in names:
        name = name.format(step)
        value = (
            {"w": make.tensor((16, 8))} if name == "model.pt" else {"w": make.tensor((16, 8)), "optimizer": optimizer}
        )
        path = make.root / (f"run/step-{step}/{name}" if folder else f"run/{name}")
        make.write(path, make.torch_file(value, [make.floats(128)], prefix=path.stem))
        make.age(path, age_s)
    return path.parent if folder else path


def listed(make, level="checksum"):
    return [
        Part.from_json(part.to_json()) for part in listing(make.root, "global", "n1", level=level, now_s=make.now_s)
    ]


def chosen(parts):
    return choose(
        join([parts], world_size=None), step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(),
        world_size=None, costs=Costs(), level="checksum",
    ).chosen  # fmt: skip


@pytest.mark.parametrize("folder", [True, False])
def test_one_that_is_whole_counts_once_its_writer_is_gone(make, folder):
    """A restart took the one before it, and moved the whole one aside as later than that."""
    save(make, 10, folder=folder)
    save(make, 20, age_s=60, folder=folder)
    parts = listed(make)
    assert (parts[0].step, parts[0].valid) == (20, None) and "being written" in parts[0].reason, parts
    assert chosen(parts).step == 10
    after = [part.after_its_writer() for part in parts]
    assert (after[0].valid, after[0].level) == (True, "checksum") and "being written" not in after[0].reason, after
    assert chosen(after).step == 20


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_one_that_is_not_is_invalid_then_and_not_known_before(make, damage, folder):
    path = save(make, 20, age_s=60, folder=folder)
    torn = path / "model.pt" if folder else path
    data = bytearray(torn.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    make.write(torn, bytes(data))
    make.age(torn, 60)
    (part,) = listed(make)
    assert part.valid is None and "being written" in part.reason, part
    after = part.after_its_writer()
    assert after.valid is False and "being written" not in after.reason, after


def test_weights_alone_are_passed_over_then_too(make):
    save(make, 10)
    path = make.root / "run/step-20/model.pt"
    make.write(path, make.torch_file({"w": make.tensor((16, 8))}, [make.floats(128)], prefix="model"))
    make.age(path, 60)
    after = [part.after_its_writer() for part in listed(make)]
    assert chosen(after).step == 10, after


def test_a_clock_of_the_storage_that_is_ahead(make, tmp_path):
    """No time is too young where nobody writes: each save was refused as being written until that time had come."""
    path = save(make, 20)
    for file in path.iterdir():
        os.utime(file, (make.now_s + 600, make.now_s + 600))
    assert validate(path, "checksum", now_s=make.now_s, settings=Settings(fresh_s=0.0)).valid is True
    assert record(path, tmp_path / "kept", lambda _: None, now_s=make.now_s).level == "content"
    assert [part.after_its_writer().valid for part in listed(make)] == [True]
