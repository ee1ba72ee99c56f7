"""Files that programs resume from by their names (Lightning's ``save_last=True``): with none they begin anew, silently."""

from __future__ import annotations

import errno
import itertools
import os
import time
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import answer, move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.formats import tracked
from sentinel.checkpoints.setting_aside import standing_in
from sentinel.daemon.effects.unusable_parts import words_of_links
from sentinel.errors import Denied

NAMES = {
    "lightning": ("last.ckpt", "epoch=0-step={}.ckpt"),
    "its second run": ("last-v1.ckpt", "epoch=0-step={}.ckpt"),
    "fairseq": ("checkpoint_last.pt", "checkpoint_1_{}.pt"),
    "timm": ("last.pth.tar", "checkpoint-{}.pth.tar"),
}


@pytest.fixture(params=NAMES)
def run(make, request):
    last, name = NAMES[request.param]
    for step in (10, 20):
        make.lightning(f"run/{name.format(step)}", step)
    whole = make.lightning(f"run/{last}", 30).read_bytes()
    make.write(make.root / "run" / last, whole[: len(whole) // 2])
    return make.root / "run" / last, make.root / "run" / name.format(20)


def contents(root):
    return {entry.name: entry.read_bytes() for entry in root.iterdir()}


def test_a_copy_of_the_chosen_one_is_in_its_place(run):
    last, chosen = run
    before = contents(last.parent)
    asked = {"root": str(last.parent), "paths": [str(last)], "chosen": str(chosen)}
    told = answer(asked)["result"]
    assert [source for source, _ in told["moved"]] == [str(last)] and told["left"] == []
    assert any(f"{last} now names {chosen.name}" in words for words in words_of_links(told))
    assert contents(last.parent) == before | {last.name: before[chosen.name]}
    assert not last.is_symlink() and last.stat().st_ino != chosen.stat().st_ino  # the next save is written to it
    assert last.stat().st_mtime_ns == chosen.stat().st_mtime_ns
    assert answer(asked)["result"] == told and contents(last.parent)[last.name] == before[chosen.name]
    assert [move.source for move in q.undo(last.parent)] == [str(last)]
    assert contents(last.parent) == before


def test_what_has_been_written_since_is_not_written_over(run):
    last, chosen = run
    move_aside(last.parent, [str(last)], None, "torn", chosen)
    last.write_bytes(b"of the run that went on")
    with pytest.raises(q.Refused, match="exists again"):
        q.undo(last.parent)
    assert last.read_bytes() == b"of the run that went on"


@pytest.mark.parametrize("after", ["prepare", "_move_aside"])
def test_killed_on_the_way(run, monkeypatch, after):
    last, chosen = run
    torn = last.read_bytes()
    place = standing_in if after == "prepare" else q
    real = getattr(place, after)

    def killed(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, after, killed)
        move_aside(last.parent, [str(last)], None, "torn", chosen)
    move_aside(last.parent, [str(last)], None, "torn", chosen)
    assert last.read_bytes() == chosen.read_bytes() and len(os.listdir(last.parent)) == 3
    q.undo(last.parent)
    assert last.read_bytes() == torn


def test_with_no_space_for_a_copy_it_stays_and_the_others_go(run, monkeypatch):
    last, chosen = run
    other = next(path for path in last.parent.iterdir() if path not in run)
    before = contents(last.parent)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "sendfile", full)
    asked = {"root": str(last.parent), "paths": [str(last), str(other)], "chosen": str(chosen)}
    told = answer(asked)["result"]
    assert [source for source, _ in told["moved"]] == [str(other)] and [path for path, _ in told["left"]] == [str(last)]
    assert any(f"{last} stays: programs resume from it" in words for words in words_of_links(told))
    before.pop(other.name)
    assert contents(last.parent) == before
    with pytest.raises(Denied, match="No space left"):
        q.quarantine(last.parent, [last], chosen=chosen)
    assert contents(last.parent) == before


def test_where_a_copy_takes_longer_than_the_order_has_it_stays_and_the_others_go(run, monkeypatch):
    last, chosen = run
    other = next(path for path in last.parent.iterdir() if path not in run)
    before = contents(last.parent)
    ticks = itertools.count(0.0, 6.0)  # each look at the clock is six seconds later
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(standing_in, "PIECE_BYTES", 64)
    asked = {"root": str(last.parent), "paths": [str(last), str(other)], "chosen": str(chosen), "deadline_s": 20.0}
    told = answer(asked)["result"]
    assert [source for source, _ in told["moved"]] == [str(other)] and [path for path, _ in told["left"]] == [str(last)]
    before.pop(other.name)
    assert contents(last.parent) == before


def test_where_it_cannot_be_moved_nothing_is_left_of_the_copy(run, monkeypatch):
    last, chosen = run
    before = contents(last.parent)

    def none(*arguments, **more):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch, pytest.raises(Denied, match="cannot be moved"):
        patch.setattr(os, "rename", none)
        q.quarantine(last.parent, [last], chosen=chosen)
    assert contents(last.parent) == before


def test_killed_between_the_two_names_of_the_copy(run, monkeypatch):
    last, chosen = run
    real = os.link

    def killed(*arguments, **more):
        real(*arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "link", killed)
        move_aside(last.parent, [str(last)], None, "torn", chosen)
    move_aside(last.parent, [str(last)], None, "torn", chosen)
    assert last.read_bytes() == chosen.read_bytes() and len(os.listdir(last.parent)) == 3


def test_on_a_file_system_without_second_names(run, monkeypatch):
    last, chosen = run

    def none(*arguments, **more):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    move_aside(last.parent, [str(last)], None, "torn", chosen)
    assert last.read_bytes() == chosen.read_bytes() and len(os.listdir(last.parent)) == 3


def test_a_link_to_it_names_the_chosen_one(run):
    last, chosen = run
    (last.parent / "resume").symlink_to(last.name)
    move_aside(last.parent, [str(last)], None, "torn", chosen)
    assert (last.parent / "resume").resolve().read_bytes() == chosen.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
def test_what_an_operator_puts_there_is_the_users(run):
    """Else the run could not read what it is to resume from: its user's files may be closed to all others."""
    last, chosen = run
    tracker = last.parent / tracked.MMENGINE
    tracker.write_text(last.name)
    for path in last.parent.iterdir():
        path.chmod(0o600)
        os.chown(path, 1234, 1235)
    q.quarantine(last.parent, [last], chosen=chosen)
    assert last.read_bytes() == chosen.read_bytes() and tracker.read_text() == chosen.name
    for path in (last, tracker):
        told = path.stat()
        assert (told.st_uid, told.st_gid, told.st_mode & 0o777) == (1234, 1235, 0o600), path
    q.undo(last.parent)
    assert (tracker.stat().st_uid, tracker.read_text()) == (1234, last.name)


@pytest.mark.parametrize("chosen", [None, "sub/epoch=0-step=20.ckpt", "step=20.pt", "last-v1.ckpt"])
def test_without_such_a_save_beside_it_nothing_is_put_there(make, chosen):
    root = make.root / "run"
    make.lightning("run/last.ckpt", 30)
    if chosen:
        make.lightning(f"run/{chosen}", 20)
    move_aside(root, [str(root / "last.ckpt")], None, "torn", chosen and root / chosen)
    assert not os.path.lexists(root / "last.ckpt")
    assert [Path(move.source).name for move in q.read_journal(root)] == ["last.ckpt"]
