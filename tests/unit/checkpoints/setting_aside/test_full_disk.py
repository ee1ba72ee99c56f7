"""A full disk, which tears saves: they are moved aside all the same, since a rename needs no room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import move_aside
from sentinel.checkpoints import manifest
from sentinel.checkpoints import quarantine as q
from sentinel.errors import Denied


@pytest.fixture
def run(make):
    for step in (10, 20, 30):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    return make.root / "run"


@pytest.fixture(params=["none", "half"])
def full(request, monkeypatch):
    """Of what is written nothing, or a half, gets a place."""
    real = os.write

    def write(fd, data):
        if request.param == "none":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[: len(data) // 2])

    context = pytest.MonkeyPatch()
    context.setattr(os, "write", write)
    yield context
    context.undo()


def test_a_torn_save_is_moved_and_brought_back(run, full):
    moves = move_aside(run, [str(run / "step-30")], None, "torn", run / "step-20")
    assert [move.source for move in moves] == [str(run / "step-30")] and Path(moves[0].target).is_dir()
    assert sorted(os.listdir(run)) == ["step-10", "step-20"]
    again = move_aside(run, [str(run / "step-30")], None, "torn", run / "step-20")
    assert [(move.source, move.target) for move in again] == [(moves[0].source, moves[0].target)]
    assert [move.target for move in q.read_journal(run)] == [moves[0].target]
    assert [move.source for move in q.undo(run)] == [str(run / "step-30")]
    assert q.undo(run) == [] and q.read_journal(run) == [] and (run / "step-30").is_dir()


def test_room_again(run, full):
    q.quarantine(run, [run / "step-30"])
    full.undo()
    q.quarantine(run, [run / "step-20"])
    assert len(q.read_journal(run)) == 2
    assert len(q.undo(run)) == 2 and sorted(os.listdir(run)) == ["step-10", "step-20", "step-30"]


@pytest.mark.parametrize("name", ["step-30", "a b@c.%41\n", "\udcff30"])
def test_links_and_odd_names(run, full, name):
    if name != "step-30":
        (run / "step-30").rename(run / name)
    (run / "latest").symlink_to(name)
    q.quarantine(run, [run / name], chosen=run / "step-20")
    assert os.readlink(run / "latest") == "step-20" and not (run / name).exists()
    assert len(q.undo(run)) == 2 and os.readlink(run / "latest") == name and (run / name).is_dir()


def test_a_name_that_cannot_tell_it_is_left_where_it_is(run, full):
    (run / "step-30").rename(run / ("s" * 240))
    with pytest.raises(Denied, match="no space") as error:
        q.quarantine(run, [run / ("s" * 240)])
    assert "Free some space" in error.value.fix and (run / ("s" * 240)).is_dir()


def test_a_name_in_the_quarantine_that_leads_out_is_nothing(run):
    q.quarantine(run, [run / "step-30"])
    for name in ("..%2Fother", "%2Fetc", "step-10%2F..%2F..%2Fx", "."):
        (q.store_of(run) / f"20261130T041428Z.unwritten.{name}@@").mkdir()
    assert [Path(move.source).name for move in q.read_journal(run)] == ["step-30"]
    assert len(q.undo(run)) == 1


def test_half_a_manifest_is_not_left_in_the_save(run, monkeypatch):
    def no_room(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(os.listdir(run / "step-30"))
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(Denied, match="No space left") as error:
        manifest.write(run / "step-30")
    assert sorted(os.listdir(run / "step-30")) == before and "Free some space" in error.value.fix
