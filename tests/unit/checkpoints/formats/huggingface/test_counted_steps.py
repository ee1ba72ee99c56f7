"""A schedule or a random state of another save of Accelerate's, with the times of this one: its count of steps tells."""

from __future__ import annotations

import shutil

import pytest

from sentinel.checkpoints.validate import validate


def saves(
    make,
    steps=(10, 20, 30, 40),
    rate=lambda step: 1.0 - step / 100,
    counted=lambda step: step,
    batches=lambda step: step,
):
    """As Accelerate 1.15 writes them: the schedule counts, and gives the rate that the optimizer keeps."""
    for step in steps:
        path = make.accelerate(f"run/step_{step}", step, ranks=1, model="bin")
        value, payloads = make.state(step)
        groups = [{"lr": rate(step), "params": [0]}]
        optimizer = make.torch_file({"state": value, "param_groups": groups}, payloads, "optimizer")
        make.write(path / "optimizer.bin", optimizer)
        schedule = {"last_epoch": counted(step), "_last_lr": [rate(step)]}
        make.write(path / "scheduler.bin", make.torch_file(schedule, prefix="scheduler"))
        make.write(path / "random_states_0.pkl", make.torch_file({"step": batches(step)}, prefix="random_states_0"), 1)
    return make.root / "run"


def put(run, name, source, target):
    shutil.copy2(run / f"step_{source}" / name, run / f"step_{target}" / name)


def judged(make, run, step, level="checksum"):
    return validate(run / f"step_{step}", level, now_s=make.now_s)


@pytest.mark.parametrize(("source", "target"), [(30, 40), (40, 30), (10, 40), (20, 10)])
def test_a_schedule_of_another_save(make, source, target):
    run = saves(make)
    put(run, "scheduler.bin", source, target)
    answer = judged(make, run, target)
    assert answer.valid is None and f"as that of step_{source}" in answer.reason and "two saves mixed" in answer.reason
    assert judged(make, run, source).valid is True, "where it belongs it is whole"


@pytest.mark.parametrize(
    ("source", "target", "shown"), [(30, 40, True), (40, 30, True), (10, 40, False), (10, 20, False)]
)
def test_a_random_state_of_another_save(make, source, target, shown):
    """An epoch that began anew could have come to 10 batches again, not to 30 within 10 steps."""
    run = saves(make)
    put(run, "random_states_0.pkl", source, target)
    answer = judged(make, run, target)
    assert answer.valid is (None if shown else True), answer.reason


def test_a_schedule_that_has_come_to_rest_is_none(make):
    """Its count stays, and so do the rates: the newest save may have been made that way. Between others it was not."""
    run = saves(make, rate=lambda _: 0.5)
    put(run, "scheduler.bin", 30, 40)
    assert judged(make, run, 40).valid is True
    run = saves(make, rate=lambda _: 0.5)
    put(run, "scheduler.bin", 30, 20)
    assert judged(make, run, 20).valid is None


@pytest.mark.parametrize(
    "how",
    [
        {"counted": lambda step: step // 25},  # epochs
        {"counted": lambda step: min(step, 30)},  # stands still from a save on
        {"counted": lambda step: 4 * step},  # one for each of four processes
        {"batches": lambda step: step % 15},
        {"batches": lambda step: step % 10},
        {"batches": lambda _: 0},
        {"counted": lambda step: max(0, step - 20)},  # made anew
    ],
)
def test_what_a_run_may_count_by_itself(make, how):
    run = saves(make, **how)
    for step in (10, 20, 30, 40):
        answer = judged(make, run, step)
        assert answer.valid is True, (step, answer.reason)


def test_two_saves_alone_show_no_line(make):
    run = saves(make, steps=(10, 20))
    put(run, "scheduler.bin", 10, 20)
    assert judged(make, run, 20).valid is True


def test_a_quick_look_reads_no_other_save(make):
    run = saves(make)
    put(run, "scheduler.bin", 30, 40)
    assert judged(make, run, 40, "structural").valid is True
