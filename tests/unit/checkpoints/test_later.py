"""What is later than a chosen save, also where a torn one no longer states its step, and who may still write it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from saves.commands import rows, run

from sentinel.checkpoints.fleet_parts import later_than
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.records import Part


def part(name, step=None):
    return Part(
        host="", root="/r", path=f"/r/{name}", key=name, step=step, tier="global", format="torch", bytes=1,
        valid=step is not None or None, level="checksum", reason="",
    )  # fmt: skip


def later(*parts, step=30, path="", **how):
    return [found.key for found in later_than(parts, step, path, **how)]


@pytest.mark.parametrize(
    ("torn", "whole", "found"),
    [
        ("ckpt_40.pt", ("ckpt_20.pt", "ckpt_30.pt"), True),
        ("ckpt_25.pt", ("ckpt_20.pt", "ckpt_30.pt"), False),
        ("model_40.pt", ("ckpt_20.pt", "ckpt_30.pt"), False),  # of another count, perhaps
        ("sub/ckpt_40.pt", ("ckpt_20.pt", "ckpt_30.pt"), False),
        ("llama7_ckpt_040.pt", ("llama7_ckpt_020.pt", "llama7_ckpt_030.pt"), True),
        ("run2_40.pt", ("run1_20.pt", "run1_30.pt"), False),
        ("epoch_3.pt", ("epoch_1.pt", "epoch_2.pt"), True),  # not at step 3
        ("ckpt.pt", ("ckpt_20.pt", "ckpt_30.pt"), False),
    ],
)
def test_a_torn_save_is_later_by_its_number(torn, whole, found):
    saves = [part(name, step) for name, step in zip(whole, (20, 30), strict=True)]
    assert later(*saves, part(torn)) == [torn] * found


def test_a_step_that_is_known_counts_and_no_number():
    assert later(part("slot_1.pt", 30), part("slot_2.pt", 20), part("slot_0.pt", 40), path="/r/slot_1.pt") == [
        "slot_0.pt"
    ]


def test_saves_at_steps_that_are_not_known_are_in_the_order_of_their_numbers():
    saves = [part(f"checkpoint_{number}") for number in (3, 4, 5)]
    assert later(*saves, step=None, path="/r/checkpoint_4") == ["checkpoint_5"]
    assert later(*saves, step=None) == [], "nothing was chosen"


def test_a_person_may_mean_the_number():
    two = [part("ckpt_40.pt"), part("ckpt_20.pt")]
    assert later(*two) == [] and later(*two, if_alone=30) == ["ckpt_40.pt"]
    assert later(part("ckpt_40.pt"), part("ckpt_50.pt", 50), if_alone=30) == ["ckpt_40.pt", "ckpt_50.pt"]


@pytest.mark.parametrize(
    "names",
    [
        ("swa_model_512.ckpt",),
        ("pretrained-2024.pt", "teacher_1024.pt"),
        ("ckpt_40.pt",),
        ("sub/ckpt_40.pt", "ckpt_20.pt"),
        ("base_v040.pt", "base_v40.pt"),
        ("net_1_512.pt", "net_2_512.pt"),  # the one that counts is 1 and 2
    ],
)
def test_a_number_that_no_other_file_has_otherwise_may_be_a_size_or_a_year(names):
    assert later(*map(part, names), if_alone=30) == []


def torn_save(make, name, age_s):
    value = {"model": {"w": make.tensor((16, 8))}, "optimizer": {"state": {}, "param_groups": []}, "step": 40}
    whole = make.torch_file(value, [make.floats(128)], prefix=name.partition(".")[0])
    make.write(make.root / "run" / name, whole[: len(whole) // 2])
    make.age(make.root / "run" / name, age_s)


@pytest.mark.parametrize(("name", "valid"), [("step_40.pt", False), ("ckpt_40.pt", None)])
@pytest.mark.parametrize("age_s", [3, 3600])
def test_what_was_being_written_is_invalid_once_its_writer_is_gone(make, name, valid, age_s):
    """Not a file whose name says little: it may be another program's."""
    torn_save(make, name, age_s)
    (found,) = listing(make.root / "run", "global", None, level="checksum", now_s=make.now_s)
    assert found.valid is (None if age_s == 3 else valid)
    after = Part.from_json(found.to_json()).after_its_writer()
    assert after.valid is valid and "no end record" in after.reason
    assert ("being written" in after.reason) == (name == "ckpt_40.pt" and age_s == 3)
    old = {key: value for key, value in found.to_json().items() if key != "unfinished"}
    assert Part.from_json(old) == replace(found, unfinished="")


def test_newer_than_moves_a_torn_save_that_only_its_number_tells(make):
    for step in (20, 30):
        value = {"model": {"w": make.tensor((16, 8))}, "optimizer": {"state": {}, "param_groups": []}, "step": step}
        make.write(make.root / f"run/ckpt_{step}.pt", make.torch_file(value, [make.floats(128)], prefix=f"ckpt_{step}"))
    torn_save(make, "ckpt_40.pt", 600)
    moved = rows(run("quarantine", make.root / "run", "--newer-than", 20, "--yes", "--json"))
    assert sorted(move["source"].rpartition("/")[2] for move in moved) == ["ckpt_30.pt", "ckpt_40.pt"]


def test_newer_than_leaves_a_model_whose_name_has_its_size(make):
    for step in (100, 200):
        make.hf(f"run/checkpoint-{step}", step=step)
    model = make.torch_file({"state_dict": {"w": make.tensor((16, 8))}}, [make.floats(128)], prefix="swa_model_512")
    make.write(make.root / "run/swa_model_512.ckpt", model)
    moved = rows(run("quarantine", make.root / "run", "--newer-than", 100, "--yes", "--json"))
    assert [move["source"].rpartition("/")[2] for move in moved] == ["checkpoint-200"]
