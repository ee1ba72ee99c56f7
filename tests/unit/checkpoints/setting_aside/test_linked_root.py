"""A root that is a link to where the checkpoints lie, as to scratch on another file system."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.errors import Refused


@pytest.fixture
def run(make):
    for step in (10, 20, 30):
        make.dcp(f"scratch/run/step-{step}", step=step, ranks=1)
    (make.root / "home").mkdir()
    (make.root / "home/ckpt").symlink_to(make.root / "scratch/run")
    return make.root / "home/ckpt"


def test_what_lies_behind_a_link_is_moved_on_its_own_file_system(run):
    real = run.resolve()
    (run / "latest").symlink_to(run / "step-30")
    moves = move_aside(run, [str(run / "step-30")], None, "torn", run / "step-20")
    assert [move.source for move in moves] == [str(run / "step-30"), str(run / "latest")]
    assert Path(moves[0].target).is_relative_to(real.parent / ".quarantine/run") and not (run / "step-30").exists()
    assert os.readlink(run / "latest") == str(run / "step-20") and not (run.parent / ".quarantine").exists()
    assert move_aside(run, [str(run / "step-30")], None, "torn", run / "step-20") == moves
    assert len(q.read_journal(run)) == len(q.read_journal(real)) == 2


@pytest.mark.parametrize("back", ["link", "real"])
def test_it_is_brought_back_by_either_name(run, back):
    real = run.resolve()
    q.quarantine(run, [run / "step-30"])
    q.quarantine(real, [real / "step-20"])
    assert sorted(os.listdir(run)) == ["step-10"]
    root = run if back == "link" else real
    assert [Path(move.source) for move in q.undo(root, [root / "step-30"])] == [root / "step-30"]
    assert len(q.undo(root)) == 1 and sorted(os.listdir(run)) == ["step-10", "step-20", "step-30"]


def test_another_file_system(run):
    """Where this machine has one, and one may write there."""
    try:
        other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        pytest.skip("no /dev/shm")
    try:
        (other / "run/step-40").mkdir(parents=True)
        (run.parent / "far").symlink_to(other / "run")
        q.quarantine(run.parent / "far", [run.parent / "far/step-40"])
        assert os.listdir(other / "run") == [] and len(q.undo(run.parent / "far")) == 1
    finally:
        for path in sorted(other.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        other.rmdir()


def test_a_link_that_is_changed_meanwhile(run, make):
    fd = os.open(run, os.O_RDONLY)
    try:
        run.unlink()
        (make.root / "elsewhere/run").mkdir(parents=True)
        run.symlink_to(make.root / "elsewhere/run")
        with pytest.raises(Refused, match="another folder"):
            q.quarantine(run, [run / "step-30"], opened=fd)
    finally:
        os.close(fd)
    assert (make.root / "scratch/run/step-30").exists()
