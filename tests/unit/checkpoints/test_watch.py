"""Whether saves still come, and are what they were."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.watch import Save, assess, rhythm, saves_of


def saves(count=6, interval=600.0, duration=20.0, size=1000):
    return [
        Save(100 * i, i * interval - duration, i * interval, size, True, "") for i in range(1, count + 1)
    ]  # the last ended at count x interval


def kinds(troubles):
    return [trouble.kind for trouble in troubles]


def last(**changes):
    base = {"step": 700, "began_s": 4180.0, "ended_s": 4200.0, "bytes": 1000, "valid": True, "reason": ""}
    return Save(**(base | changes))


def test_a_quiet_run_is_quiet():
    assert assess(saves(), 3700.0) == []


@pytest.mark.parametrize(("silent", "told"), [(1400, []), (1700, ["stopped"])])
def test_saves_that_stop(silent, told):
    assert kinds(assess(saves(), 3600.0 + silent)) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"bytes": 875}, ["shrunk"]),
        ({"bytes": 400, "valid": None}, []),
        ({"bytes": 1600}, ["grown"]),
        ({"began_s": 4150.0}, ["slow"]),
        ({"valid": False, "reason": "no marker"}, ["invalid"]),
    ],
)
def test_a_save_unlike_the_others(changes, told):
    assert kinds(assess([*saves(), last(**changes)], 4300.0)) == told


def test_saving_most_of_the_time():
    assert kinds(assess(saves(duration=90.0), 3700.0)) == ["overlap"]


def test_too_few_to_know():
    assert rhythm(saves(2)).interval_s is None
    assert assess(saves(2), 1e9) == [] and assess([], 1e9) == []


def test_read_from_listings(make):
    for step in (10, 20, 30):
        path = make.dcp(f"run/step-{step}", step=step, ranks=2)
        for file in path.iterdir():
            make.age(file, 3600 - step * 10 + (5 if file.suffix == ".distcp" else 0))
    seen = saves_of(listing(make.root, "global", None, now_s=make.now_s))
    assert [save.step for save in seen] == [10, 20, 30] and seen[0].duration_s == pytest.approx(5)
    assert rhythm(seen).interval_s == pytest.approx(100)
