"""Moving aside and back, and telling the frameworks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.errors import FileError, Refused, UserError


@pytest.fixture
def run(make):
    for step in (10, 20, 30):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    return make.root / "run"


def tree(root: Path):
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and ".quarantine" not in p.parts
    }


def test_moves_to_a_sibling_and_back(run):
    before = tree(run)
    moves = q.quarantine(run, [run / "step-30", run / "step-20"], reason="newer")
    assert sorted(os.listdir(run)) == ["step-10"]
    assert all(Path(move.target).is_relative_to(run.parent / ".quarantine/run") for move in moves)
    assert len(q.undo(run)) == 2
    assert tree(run) == before and q.undo(run) == []


def test_again_gives_the_same(run):
    first = q.quarantine(run, [run / "step-30"])
    assert q.quarantine(run, [run / "step-30"]) == first


def test_killed_between_journal_and_rename(run, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", killed)
        q.quarantine(run, [run / "step-30"])
    assert (run / "step-30").is_dir()
    (move,) = q.quarantine(run, [run / "step-30"])
    assert not (run / "step-30").exists() and Path(move.target).is_dir()
    assert len(q.undo(run)) == 1 and (run / "step-30").is_dir()


def test_the_same_step_twice(run, make):
    q.quarantine(run, [run / "step-30"])
    make.dcp("run/step-30", step=30, ranks=1)
    q.quarantine(run, [run / "step-30"])
    assert not (run / "step-30").exists()
    with pytest.raises(Refused, match="not overwritten"):
        q.undo(run)
    assert (run / "step-30").is_dir()  # the latest is back; the older one waits


def test_undo_of_one_only(run):
    q.quarantine(run, [run / "step-30", run / "step-20"])
    assert [Path(m.source).name for m in q.undo(run, [run / "step-20"])] == ["step-20"]
    assert sorted(os.listdir(run)) == ["step-10", "step-20"]


def test_only_what_is_below_the_root(run, tmp_path):
    for outside in (run, run.parent, Path("/etc"), run / "..", run / "step-10/../../other"):
        with pytest.raises(UserError, match="not below"):
            q.quarantine(run, [outside])
    (run / "link").symlink_to(run.parent)
    with pytest.raises(UserError, match="link"):
        q.quarantine(run, [run / "link/run/step-10"])
    assert (run / "step-10").is_dir()


def test_a_cut_line_is_passed_over_a_damaged_one_is_named(run):
    q.quarantine(run, [run / "step-30"])
    journal = run.parent / ".quarantine/run/journal.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"event": "mo')
    q.quarantine(run, [run / "step-20"])
    assert len(q.read_journal(run)) == 2
    with journal.open("ab") as file:
        file.write(b'{"event": "move"}\n')
    with pytest.raises(FileError, match=r"journal.jsonl:\d"):
        q.read_journal(run)


def test_files_of_one_iteration(make):
    for step in (100, 200):
        make.write(make.root / f"s/0/iter_{step:07d}_0_local.pt", b"x")
    assert q.paths_of(make.root / "s", 200) == [make.root / "s/0/iter_0000200_0_local.pt"]
    assert q.paths_of(make.root / "s/0", 200) == [make.root / "s/0"]


@pytest.mark.parametrize("steps", [(100, 200), (200,)])
def test_repeated_order_for_one_iteration_moves_nothing_more(make, steps):
    for step in steps:
        make.write(make.root / f"run/s/0/iter_{step:07d}_0_local.pt", b"x")
    root = make.root / "run"
    session = str(root / "s")
    first = move_aside(root, [session], [200], "")
    assert [move.source for move in first] == [f"{session}/0/iter_0000200_0_local.pt"]
    before = tree(root)
    assert move_aside(root, [session], [200], "") == first
    assert tree(root) == before and (root / "s/0").is_dir()
    if len(steps) > 1:
        assert move_aside(root, [session], [300], "") == []  # no file of that iteration was ever there


def test_trackers(tmp_path):
    (tmp_path / "iter_0000100").mkdir()
    (tmp_path / "global_step100").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("200\n")
    pointed = q.point_to(tmp_path, "megatron", 100)
    assert pointed.before == "200\n" and Path(pointed.tracker).read_text() == "100"
    assert Path(q.point_to(tmp_path, "deepspeed", 100).tracker).read_text() == "global_step100"
    assert q.point_to(tmp_path, "hf_trainer", 100).tracker == ""
    assert not list(tmp_path.glob(".*tmp"))
    with pytest.raises(UserError, match="no iter_0000300"):
        q.point_to(tmp_path, "megatron", 300)
