"""Trainers of one's own that keep files beside each other, or one that they write anew: what is in them says their step."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import deepen, listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.validate import validate


def saved(make, name, more, optimizer=True, age_s=3600):
    value = {"model": {"w": make.tensor((16, 8))}, **more}
    if optimizer:
        value["optimizer"] = {"state": {}, "param_groups": []}
    path = make.root / "run" / name
    make.write(path, make.torch_file(value, [make.floats(128)], prefix=path.name.partition(".")[0]))
    make.age(path, age_s)
    return path


def listed(make, level="checksum"):
    return listing(make.root / "run", "global", None, level=level, now_s=make.now_s)


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("model_{:07d}.pth", "iteration"),
        ("checkpoint_1_{}.pt", "num_updates"),
        ("checkpoints/{:07d}.pt", "step"),
        ("G_{}.pth", "iteration"),
        ("a_run_{}.pth.tar", "global_step"),
    ],
)
def test_files_whose_names_state_no_step(make, name, inside):
    for step in (5, 10, 15):
        saved(make, name.format(step), {inside: step})
    assert [(part.step, part.valid) for part in listed(make)] == [(15, True), (10, True), (5, True)]
    torn = make.root / "run" / name.format(15)
    data = torn.read_bytes()
    make.write(torn, data[: len(data) // 2])
    make.age(torn, 3600)
    assert [(part.step, part.valid) for part in listed(make)] == [(None, None), (10, True), (5, True)]


@pytest.mark.parametrize(
    ("name", "more", "step"),
    [
        ("ckpt.pt", {"iter_num": 15}, 15),
        ("checkpoint_last.pt", {"optimizer_history": [{"num_updates": 9}, {"num_updates": 15}]}, 15),
        ("latest.pth", {"meta": {"iter": 15}}, 15),
    ],
)
def test_one_file_that_is_written_anew(make, name, more, step):
    saved(make, name, more)
    assert [(part.step, part.valid) for part in listed(make)] == [(step, True)]


@pytest.mark.parametrize(
    ("name", "inside", "epoch"),
    [
        ("checkpoint.pth", {"epoch": 15}, 15),  # DETR, DINO
        ("last.pt", {"epoch": 15, "updates": 40}, 15),  # Ultralytics
        ("last.pth.tar", {"epoch": 15}, 15),  # timm
        ("checkpoint.pth", {"reporter": {"epoch": 15}}, 15),  # ESPnet
        ("latest.pth", {"meta": {"epoch": 15, "iter": 900}}, 15),  # mmcv
    ],
)
def test_one_file_that_states_an_epoch(make, name, inside, epoch):
    """Nothing was found in a folder that holds this file alone, and the numbered file before it where there is one."""
    saved(make, name, inside)
    (part,) = listed(make)
    assert (part.step, part.number, part.valid) == (None, epoch, True) and f"epoch {epoch} inside" in part.reason, part
    saved(make, "epoch_10.pth", {"epoch": 10, **({"meta": {"epoch": 10}} if "meta" in inside else {})})
    assert chosen(make).path.endswith(name)


def chosen(make):
    return choose(
        join([listed(make)], world_size=None), step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(),
        world_size=None, costs=Costs(), level="checksum",
    ).chosen  # fmt: skip


def test_a_name_that_counts_from_zero_and_a_state_that_counts_from_one(make):
    """DINO's ``checkpoint0009.pth`` holds epoch 10, and so does the ``checkpoint.pth`` that is written with it."""
    for name, epoch in (("checkpoint0009.pth", 10), ("checkpoint.pth", 10), ("checkpoint0004.pth", 5)):
        saved(make, name, {"epoch": epoch})
    assert {part.path.rpartition("/")[2]: part.number for part in listed(make)} == {
        "checkpoint.pth": 9, "checkpoint0009.pth": 9, "checkpoint0004.pth": 4,
    }  # fmt: skip


@pytest.mark.parametrize("other", [{}, {"epoch": 3}])
def test_numbers_and_epochs_that_cannot_be_compared(make, other):
    """The numbers in names count something else here: which of the two is the later one is not known."""
    saved(make, "checkpoint_400.pt", {"epoch": 2})
    saved(make, "checkpoint_900.pt", other)
    saved(make, "last.pt", {"epoch": 3})
    assert [(part.path.rpartition("/")[2], part.number) for part in listed(make)] == [
        ("last.pt", None), ("checkpoint_900.pt", 900), ("checkpoint_400.pt", 400),
    ]  # fmt: skip
    assert chosen(make).path.endswith("checkpoint_900.pt")


def test_the_best_is_no_newer_for_its_time_and_the_last_is_preferred(make):
    saved(make, "last.pt", {"epoch": 12}, age_s=7200)
    saved(make, "best.pt", {"epoch": 9}, age_s=60)
    assert chosen(make).path.endswith("last.pt")
    saved(make, "best.pt", {"epoch": 12}, age_s=60)
    assert chosen(make).path.endswith("last.pt")
    saved(make, "last.pt", {"epoch": -1}, age_s=60)  # made ready for use when training was over
    assert [(part.path.rpartition("/")[2], part.number) for part in listed(make)] == [("best.pt", 12)]


def test_the_last_one_under_a_name_of_its_own(make):
    for name, iteration in (("model_0000009.pth", 9), ("model_0000014.pth", 14), ("model_final.pth", 18)):
        saved(make, name, {"iteration": iteration})
    first = listed(make)[0]
    assert (first.path.rpartition("/")[2], first.step) == ("model_final.pth", 18)


def test_an_epoch_that_was_read_again_more_closely(make):
    """The number that a listing gave stays: by its name alone this file has none."""
    saved(make, "checkpoint.pth", {"epoch": 10})
    saved(make, "checkpoint0004.pth", {"epoch": 5})
    parts = listed(make, "structural")
    (candidate,) = [one for one in join([parts], world_size=None) if one.path.endswith("checkpoint.pth")]
    (deeper,) = [part for part in deepen(parts, candidate, "checksum") if part.key == candidate.key]
    assert (deeper.level, deeper.number, deeper.valid) == ("checksum", 9, True)


def test_numbered_files(make):
    for epoch in (9, 10):
        saved(make, f"checkpoint-{epoch}.pth.tar", {"epoch": epoch})
    assert [(part.step, part.number, part.valid) for part in listed(make)] == [(None, 10, True), (None, 9, True)]


def test_an_iteration_within_an_epoch_orders_no_files(make):
    for epoch, iteration in ((12, 900), (13, 10)):
        saved(make, f"checkpoint_{epoch}.pt", {"epoch": epoch, "iter": iteration})
    assert [(part.step, part.number) for part in listed(make)] == [(None, 13), (None, 12)]


def test_what_is_no_checkpoint_is_not_listed(make):
    """Weights alone, data, and what says neither step nor number."""
    saved(make, "model_0000015.pth", {}, optimizer=False)
    saved(make, "last_state.pt", {})
    make.write(make.root / "run/data_00001.pt", b"no torch file")
    make.write(make.root / "run/00001.tar", b"a shard of a data set")
    make.write(make.root / "run/features_7.pth", make.torch_file({"x": 1}))
    assert [part.path for part in listed(make) if part.valid] == []


@pytest.mark.parametrize("age_s", [10, 3600])
def test_files_of_one_save_hold_together(make, age_s):
    for step in (10, 15):
        for kind in "GD":
            saved(make, f"{kind}_{step}.pth", {"iteration": step})
    file = make.root / "run/D_15.pth"
    make.write(file, file.read_bytes()[:-30])
    make.age(file, age_s)
    answers = {part.path.rpartition("/")[2]: part for part in listed(make)}
    assert answers["D_15.pth"].valid is None
    assert answers["G_15.pth"].valid is None and "D_15.pth beside it" in answers["G_15.pth"].reason
    assert answers["G_10.pth"].valid is True and answers["D_10.pth"].valid is True


@pytest.mark.parametrize(
    ("damaged", "other", "together"),
    [
        ("epoch_03-loss_0.500.pt", "epoch_07-loss_0.500.pt", False),
        ("m_a_2024.pt", "m_b_2024.pt", False),
        ("model_10.pt", "optimizer_10.pt", True),
        ("a_last_10_part1.pt", "a_last_10_part2.pt", True),
        ("model_10.pt", "optimizer_20.pt", False),
        ("model_last_1-of-2_15.pt", "model_last_2-of-2_15.pt", True),
    ],
)
def test_which_files_are_of_one_save(make, damaged, other, together):
    """A shared number says nothing: names of one save differ in a rank, a part, or the kind of state."""
    for name in (damaged, other):
        path = saved(make, name, {"epoch": 1, "iteration": 15})
    path = make.root / "run" / damaged
    path.write_bytes(path.read_bytes()[:-30])
    make.age(path, 3600)
    answers = {part.path.rpartition("/")[2]: part.valid for part in listed(make)}
    assert answers[other] is (None if together else True), answers


def test_beside_saves_that_state_their_step_they_do_not_count(make):
    make.dcp("run/step-10", step=10)
    saved(make, "ckpt.pt", {"iter_num": 15})
    assert [part.step for part in listed(make)] == [10]


def test_a_file_that_is_being_written_is_not_known_yet(make):
    whole = saved(make, "model_step_20.pt", {"step": 20}).read_bytes()
    path = make.root / "run/model_step_20.pt"
    make.write(path, whole[: len(whole) // 2])
    for age_s, valid in ((10, None), (3600, False)):
        make.age(path, age_s)
        answer = validate(path, "structural", now_s=make.now_s)
        assert answer.valid is valid and "no end record" in answer.reason, answer


def test_a_pickle_of_another_kind_is_no_damage(make):
    path = make.root / "run/model_step_20.pt"
    data = make.dumps({"step": 20, "weights": [1.0, 2.0]}, 4)
    for written, valid in ((data, None), (data[:-3], False)):
        make.write(path, written)
        make.age(path, 3600)
        answer = validate(path, "structural", now_s=make.now_s)
        assert answer.valid is valid, answer


@pytest.mark.parametrize("age_s", [10, 3600])
def test_a_torn_file_is_shown_and_not_moved(make, age_s):
    """What is invalid is moved aside before a restart: never a file that may be no checkpoint."""
    path = saved(make, "ckpt.pt", {"iter_num": 15})
    path.write_bytes(path.read_bytes()[:-30])
    make.age(path, age_s)
    (part,) = listed(make)
    assert (part.step, part.valid) == (None, None) and "no end record" in part.reason, part


@pytest.mark.parametrize("data", [b"15", b"\x28\xb5\x2f\xfd compressed by somebody", b"\x89HDF\r\n"])
@pytest.mark.parametrize("name", ["counter.ckpt", "model_step_20.pt"])
def test_what_another_program_wrote_is_not_damaged(make, name, data):
    """A counter beside SpeechBrain's models was invalid, and moved aside before a restart."""
    make.write(make.root / "run" / name, data)
    make.age(make.root / "run" / name, 3600)
    (part,) = listed(make)
    assert part.valid is None and "does not begin as a file of torch.save" in part.reason, part


def test_a_file_without_an_ending(make):
    path = saved(make, "checkpoint_20", {"step": 20})
    assert [(part.step, part.valid) for part in listed(make)] == [(20, True)]
    make.write(path, make.dumps({"step": 20}, 4))
    make.age(path, 3600)
    (part,) = listed(make)
    assert part.valid is None and part.format == "unknown", part


def test_the_best_so_far_where_the_last_is_torn(make):
    """``best.pt`` beside ``last.pt``: a crash while the last was written left nothing that counted."""
    saved(make, "best.pt", {"step": 10})
    last = saved(make, "last.pt", {"step": 15})
    assert [(part.step, part.valid) for part in listed(make)] == [(10, True), (15, True)]
    last.write_bytes(last.read_bytes()[:-30])
    make.age(last, 3600)
    assert [(part.step, part.valid) for part in listed(make)] == [(10, True), (None, None)]
    saved(make, "best.pt", {}, optimizer=False)
    assert [(part.step, part.valid) for part in listed(make)] == [(None, None)]
