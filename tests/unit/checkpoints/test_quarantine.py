"""Moving aside and back, and telling the frameworks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import answer, move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.setting_aside import pointing
from sentinel.daemon.effects.unusable_parts import words_of_links
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
    pointed = pointing.point_to(tmp_path, "megatron", 100)
    assert pointed.before == "200\n" and Path(pointed.tracker).read_text() == "100"
    assert Path(pointing.point_to(tmp_path, "deepspeed", 100).tracker).read_text() == "global_step100"
    assert pointing.point_to(tmp_path, "hf_trainer", 100).tracker == ""
    assert not list(tmp_path.glob(".*tmp"))
    with pytest.raises(UserError, match="no iter_0000300"):
        pointing.point_to(tmp_path, "megatron", 300)


def link(run, name, text):
    (run / name).symlink_to(text)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_to_what_is_moved_names_the_chosen_one(run, absolute):
    """Left to name nothing, a script takes it for a run that has yet to begin, and writes over its saves."""
    link(run, "latest", run / "step-30" if absolute else "step-30")
    link(run, "newest", "latest")
    link(run, "first", "step-10")
    before = {name: os.readlink(run / name) for name in ("latest", "newest", "first")}
    moves = q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    assert os.readlink(run / "latest") == str(run / "step-20" if absolute else "step-20")
    assert (run / "newest").resolve() == (run / "step-20") and os.readlink(run / "first") == "step-10"
    assert q.quarantine(run, [run / "step-30"], chosen=run / "step-20") == moves
    q.undo(run)
    assert {name: os.readlink(run / name) for name in before} == before and (run / "latest").resolve().is_dir()


@pytest.mark.parametrize("chosen", [None, "step-15", "../elsewhere/step-20"])
def test_a_link_to_what_is_moved_goes_with_it_where_the_chosen_one_is_not_beside(run, chosen):
    link(run, "latest", "step-30")
    link(run, "newest", "latest")
    link(run, "model", "step-30/.metadata")
    moves = q.quarantine(
        run, [run / "step-30"], chosen=None if chosen is None else Path(os.path.normpath(run / chosen))
    )
    assert sorted(os.listdir(run)) == ["step-10", "step-20"]
    assert sorted(Path(move.source).name for move in moves if move.link) == ["latest", "model", "newest"]
    assert len(q.undo(run, [run / "step-30"])) == 4
    assert (run / "newest").resolve() == run / "step-30"


def test_killed_before_the_link_is_made_anew(run, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    link(run, "latest", "step-30")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "symlink", killed)
        q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    assert not os.path.lexists(run / "latest")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    assert os.readlink(run / "latest") == "step-20"


def test_a_link_that_was_made_meanwhile_stays(run, make):
    link(run, "latest", "step-30")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    make.dcp("run/step-30", step=30, ranks=1)
    os.unlink(run / "latest")
    link(run, "latest", "step-30")  # the job trained on, to the same step
    q.quarantine(run, [run / "step-30"], chosen=run / "step-10")
    assert os.readlink(run / "latest") == "step-10"
    os.unlink(run / "latest")
    link(run, "latest", "step-20")
    with pytest.raises(Refused, match="exists again"):
        q.undo(run)
    assert os.readlink(run / "latest") == "step-20"


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("chosen", ["step-10", None])
def test_a_link_of_an_earlier_move_is_not_made_anew_for_what_was_chosen_then(run, make, gone, chosen):
    """The job may have no such link any more, and may have deleted what it named."""
    link(run, "latest", "step-30")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    os.unlink(run / "latest")
    if gone:
        shutil.rmtree(run / "step-20")
    make.dcp("run/step-30", step=30, ranks=1)
    moves = q.quarantine(run, [run / "step-30"], chosen=run / chosen if chosen else None)
    assert not os.path.lexists(run / "latest") and [move.points_to for move in moves] == [""]


def test_killed_before_the_link_is_moved_and_another_one_is_chosen_since(run, monkeypatch):
    def killed(source, inside, *_):
        if inside.name == "latest":
            raise KeyboardInterrupt
        return rename(source, inside, *_)

    rename = q._rename
    link(run, "latest", "step-30")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(q, "_rename", killed)
        q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    shutil.rmtree(run / "step-20")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-10")
    assert os.readlink(run / "latest") == "step-10"
    q.undo(run)
    assert os.readlink(run / "latest") == "step-30"


def test_a_link_is_not_made_anew_to_a_chosen_one_that_is_gone(run):
    link(run, "latest", "step-30")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    os.unlink(run / "latest")
    shutil.rmtree(run / "step-20")
    q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
    assert not os.path.lexists(run / "latest")


def test_the_users_process_is_told_which_one_was_chosen(run):
    link(run, "latest", "step-30")
    moves = move_aside(run, [str(run / "step-30")], [30], "incident i1", run / "step-20")
    assert [(move.link, move.points_to) for move in moves] == [("", ""), (str(run / "step-30"), "step-20")]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("text", ["step-30/.metadata", "./step-30/__0_0.distcp"])
def test_a_link_into_what_is_moved_names_the_same_file_of_the_chosen_one(run, text, absolute):
    text = str(run / text) if absolute else text
    link(run, "latest.pt", text)
    link(run, "only-30.pt", "step-30/only-30.pt")
    link(run, "to-it", "only-30.pt")
    link(run, "around", "../run/step-30/../step-30/.metadata")
    before = {name: os.readlink(run / name) for name in ("latest.pt", "only-30.pt", "to-it", "around")}
    (run / "step-30/only-30.pt").touch()
    for _ in range(2):
        q.quarantine(run, [run / "step-30"], chosen=run / "step-20")
        assert (run / "latest.pt").resolve() == run / "step-20" / Path(text).name
        assert not {"only-30.pt", "to-it", "around"}.intersection(os.listdir(run))
    assert os.readlink(run / "latest.pt").startswith("/") is absolute
    q.undo(run)
    assert {name: os.readlink(run / name) for name in before} == before


def test_a_link_above_the_root_that_leads_nowhere_then_is_told(run):
    """It lies outside of what the job names, and is not changed."""
    link(run.parent, "latest", "run/step-30/.metadata")
    link(run.parent, "first", "run/step-10")
    asked = {"root": str(run), "paths": [str(run / "step-30")], "chosen": str(run / "step-20")}
    told = answer(asked)["result"]
    assert told["nowhere"] == [[str(run.parent / "latest"), str(run / "step-30")]]
    (words,) = words_of_links(told)
    assert str(run.parent / "latest") in words and "leads nowhere" in words
    assert os.readlink(run.parent / "latest") == "run/step-30/.metadata" and answer(asked)["result"] == told
