"""A step in one file per rank is moved aside as a whole: what is left of it would be mixed with an earlier one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import answer, move_aside
from sentinel.checkpoints import manifest
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.formats import tracked
from sentinel.checkpoints.validate import validate
from sentinel.errors import Denied, Refused

NAMES = ("ep0-ba{}-rank{}.pt", "step{}_rank{}.pt", "model_00000{}.rank_{}.pth")


def file_of(root: Path, step: int, rank: int, name: str = NAMES[0]) -> Path:
    return root / name.format(step, rank)


def saved(make, name: str = NAMES[0], count: int = 2) -> Path:
    for step in (10, 20, 30):
        for rank in range(count):
            state, payloads = make.state(step)
            make.write(make.root / "run" / name.format(step, rank), make.torch_file(state, payloads))
    return make.root / "run"


@pytest.fixture
def run(make):
    return saved(make)


def steps_of(root: Path) -> dict[str, list[int]]:
    """By the step of each file that is there, the ranks."""
    found: dict[str, list[int]] = {}
    for name in sorted(entry.name for entry in root.iterdir() if not entry.is_symlink()):
        step, _, rank = name.removeprefix("ep0-ba").removesuffix(".pt").partition("-rank")
        found.setdefault(step, []).append(int(rank))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_all_files_of_a_step_go_and_come_back(make, name):
    run = saved(make, name)
    before = sorted(os.listdir(run))
    asked = {
        "root": str(run), "paths": [str(file_of(run, 30, 0, name))], "steps": [30],
        "chosen": str(file_of(run, 20, 0, name)),
    }  # fmt: skip
    told = answer(asked)["result"]
    gone = [file_of(run, 30, rank, name) for rank in (0, 1)]
    assert sorted(source for source, _ in told["moved"]) == sorted(map(str, gone))
    assert sorted(os.listdir(run)) == [one for one in before if one not in {path.name for path in gone}]
    assert answer(asked)["result"] == told
    q.undo(run, [gone[0]])  # as the order names it
    assert sorted(os.listdir(run)) == before


def test_a_person_who_names_one_of_them_moves_all(run):
    q.quarantine(run, [file_of(run, 30, 1)])
    assert steps_of(run) == {"10": [0, 1], "20": [0, 1]}


@pytest.mark.parametrize("renamed", [0, 1])
def test_killed_on_the_way(run, monkeypatch, renamed):
    made = []

    def rename(*args, real=os.rename, **how):
        if len(made) == renamed:
            raise KeyboardInterrupt
        made.append(args)
        real(*args, **how)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", rename)
        move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    assert steps_of(run) == {"10": [0, 1], "20": [0, 1]}
    assert len(q.undo(run)) == 2 and steps_of(run) == {step: [0, 1] for step in ("10", "20", "30")}


def test_what_a_person_removed_from_the_quarantine_keeps_nothing(make):
    """The step is saved anew by fewer ranks: files that are nowhere any more were to be moved with it."""
    run = saved(make, count=4)
    move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    for place in q.store_of(run).iterdir():
        if place.is_dir():
            shutil.rmtree(place)
    saved(make, count=2)
    move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    assert "30" not in steps_of(run)


def test_one_that_cannot_be_moved_keeps_the_others(run, monkeypatch):
    def rename(name, *args, real=os.rename, **how):
        if name == file_of(run, 30, 1).name:
            raise PermissionError(1, "not permitted")
        real(name, *args, **how)

    with monkeypatch.context() as patch, pytest.raises(Denied):
        patch.setattr(os, "rename", rename)
        move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    assert steps_of(run) == {step: [0, 1] for step in ("10", "20", "30")} and q.read_journal(run)[1:] == []


def test_what_a_tracker_names_keeps_the_others(run, make):
    (run / tracked.MMENGINE).write_text(file_of(run, 30, 1).name)
    left: dict[Path, str] = {}
    assert move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", left=left) == []
    assert set(left) == {file_of(run, 30, rank) for rank in (0, 1)}
    assert len(list(run.glob("ep0-ba30-*"))) == 2


def test_links_of_ranks_name_the_chosen_files_of_the_same_ranks(run):
    for rank in (0, 1):
        os.symlink(file_of(run, 30, rank).name, run / f"latest-rank{rank}.pt")
    for _ in range(2):
        move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
        assert [os.readlink(run / f"latest-rank{rank}.pt") for rank in (0, 1)] == [
            file_of(run, 20, rank).name for rank in (0, 1)
        ]


def test_nothing_comes_back_beside_files_of_another_save(run):
    move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    file_of(run, 30, 0).write_bytes(b"saved again by the run that went on")
    with pytest.raises(Refused, match="exists again"):
        q.undo(run)
    assert steps_of(run)["30"] == [0]


def test_what_is_not_listed_is_not_moved(run):
    """One rank's file stands for its step where checkpoints are looked for."""
    with pytest.raises(Refused, match="is no checkpoint"):
        move_aside(run, [str(file_of(run, 30, 1))], [30], "torn")


@pytest.mark.parametrize("count", [1, 2])
def test_a_manifest_goes_with_its_files(make, count):
    """The step that was saved anew was held against the manifest of the one that was moved aside, and invalid."""
    run = saved(make, count=count)
    before = {path.name: path.read_bytes() for path in [manifest.write(file_of(run, 30, 0)), *run.iterdir()]}
    for _ in range(2):
        move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
        assert not list(run.glob("ep0-ba30-*"))
    q.undo(run, [file_of(run, 30, 0)])
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    move_aside(run, [str(file_of(run, 30, 0))], [30], "torn", file_of(run, 20, 0))
    saved(make, count=count)
    assert validate(file_of(run, 30, 0), "checksum", now_s=make.now_s).valid is True
    with pytest.raises(Refused, match="exists again"):
        q.undo(run, [file_of(run, 30, 0)])
    assert validate(file_of(run, 30, 0), "checksum", now_s=make.now_s).valid is True


def test_the_files_of_a_step_are_listed_once(make, monkeypatch):
    """Each of them listed all: minutes for a thousand ranks in a folder that has changed just now."""
    run, listed, scandir = saved(make, count=12), [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(folder) or scandir(folder))
    q.quarantine(run, [file_of(run, 30, rank) for rank in range(12)])
    assert "30" not in steps_of(run) and listed.count(run) < 6
