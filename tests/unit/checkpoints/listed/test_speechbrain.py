"""SpeechBrain keeps each save in a folder, ``CKPT+<time>``, with a file ``.ckpt`` for each part; counters are text."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.steps import number_of


@pytest.fixture
def run(make):
    for minute in (1, 2, 3):
        folder = make.root / f"run/save/CKPT+2026-11-30+08-0{minute}-25+00"
        state, payloads = make.state(100 * minute)
        files = {
            "CKPT.yaml": b"# yamllint disable\nend-of-epoch: true\nunixtime: 1796025685.5\n",
            "model.ckpt": make.torch_file({"0.weight": make.tensor((16, 8))}, [make.floats(128)]),
            "optimizer.ckpt": make.torch_file({"state": state, "param_groups": []}, payloads),
            "counter.ckpt": b"%d" % minute,
        }
        for name, data in files.items():
            make.write(folder / name, data, 60 * minute)
    return make.root / "run/save"


def listed(make, run):
    return listing(run, "global", "", level="checksum", now_s=make.now_s)


def test_a_folder_is_one_save_and_the_newest_is_chosen(make, run):
    parts = listed(make, run)
    assert [(part.path, part.valid) for part in parts] == [
        (str(run / name), True) for name in sorted(os.listdir(run), reverse=True)
    ], parts
    decision = choose(
        join([parts]),
        step_last=None,
        step_time_s=1,
        next_nodes=None,
        lost_nodes=frozenset(),
        world_size=None,
        costs=Costs(),
    )
    assert decision.chosen is not None and decision.chosen.path.endswith("08-03-25+00"), decision


@pytest.mark.parametrize("name", ["model.ckpt", "optimizer.ckpt", "counter.ckpt"])
@pytest.mark.parametrize("damage", ["gone", "torn", "empty"])
def test_one_that_is_not_whole(make, run, name, damage):
    newest = run / "CKPT+2026-11-30+08-03-25+00"
    data = (newest / name).read_bytes()
    (newest / name).unlink()
    if damage != "gone":
        make.write(newest / name, data[: len(data) // 2] if damage == "torn" and name != "counter.ckpt" else b"", 180)
    (part,) = [part for part in listed(make, run) if part.path == str(newest)]
    assert part.valid is not True, part


def test_its_times_are_in_order():
    names = ["CKPT+2026-11-30+08-01-25+00", "CKPT+2026-11-30+08-01-25+01", "CKPT+2026-12-01+00-00-00+00"]
    numbers = [number_of(name) for name in names]
    assert None not in numbers and numbers == sorted(numbers) and number_of("CKPT+best") is None


def test_text_elsewhere_is_no_counter(make):
    make.write(make.root / "run/last.ckpt", b"7 epochs")
    (part,) = listed(make, make.root / "run")
    assert part.valid is not True, part
