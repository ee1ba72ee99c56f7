"""Listings of hosts, joined."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.checkpoints.formats import base
from sentinel.checkpoints.inventory import find, listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Part


def spread(make, path, ranks=4, base="nodes"):
    """Move each rank's files to its own node's folder."""
    for rank in range(ranks):
        for file in list(path.glob(f"__{rank}[._]*")):
            target = make.root / base / f"n{rank}" / "run" / path.name / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, target)
    for file in list(path.iterdir()):
        shutil.move(file, make.root / base / "n0" / "run" / path.name / file.name)
    return [make.root / base / f"n{rank}" for rank in range(ranks)]


def listed(make, roots, level="structural"):
    return [listing(root, "local", root.name, level=level, now_s=make.now_s) for root in roots]


@pytest.mark.parametrize("per_rank", [True, False])
def test_parts_of_four_nodes_make_one_whole(make, per_rank):
    roots = spread(make, make.dcp("step-10", per_rank=per_rank))
    (one,) = join(listed(make, roots, "checksum"))
    assert (one.valid, one.step, one.world_size, one.level) == (True, 10, 4, "checksum")
    assert one.shards == {rank: frozenset({f"n{rank}"}) for rank in range(4)}
    assert one.paths["n2"].endswith("nodes/n2/run/step-10")


@pytest.mark.parametrize("per_rank", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_missing_node_is_noticed(make, per_rank, lost):
    roots = spread(make, make.dcp("step-10", per_rank=per_rank))
    (one,) = join(listed(make, roots[:lost] + roots[lost + 1 :]))
    assert one.valid is None


def test_a_save_that_some_ranks_did_not_finish_is_none(make):
    """Killed when one of four had written its marker: the shards of the others look whole."""
    roots = spread(make, make.dcp("step-10", per_rank=True))
    for rank in (0, 2):
        (roots[rank] / f"run/step-10/__{rank}.metadata").unlink()
    (one,) = join(listed(make, roots, "checksum"))
    assert (one.valid, one.reason) == (None, "rank 0 has shards without an end marker: its save did not finish")


def test_a_bare_copy_of_a_finished_ranks_shard_spoils_nothing(make):
    roots = spread(make, make.dcp("step-10", per_rank=True))
    bare = make.root / "nodes/n4/run/step-10/__2_0.distcp"
    bare.parent.mkdir(parents=True)
    shutil.copy2(roots[2] / "run/step-10/__2_0.distcp", bare)
    (one,) = join(listed(make, [*roots, bare.parents[2]]))
    assert one.valid is True


def test_a_damaged_part_names_its_host(make):
    roots = spread(make, make.dcp("step-10", per_rank=True))
    shard = roots[2] / "run/step-10/__2_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-5])
    make.age(shard, 3600)
    (one,) = join(listed(make, roots))
    assert one.valid is False and one.reason.endswith("on n2")


def test_a_sound_replica_replaces_a_damaged_one(make):
    roots = spread(make, make.dcp("step-10", per_rank=True))
    for name in ("__2_0.distcp", "__2.metadata"):
        shutil.copy2(roots[2] / "run/step-10" / name, roots[3] / "run/step-10" / name)
    shard = roots[2] / "run/step-10/__2_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-5])
    (one,) = join(listed(make, roots))
    assert one.valid is True and one.shards[2] == {"n3"}


def test_records_survive_json(make):
    roots = spread(make, make.dcp("step-10", per_rank=True))
    parts = [part for parts in listed(make, roots) for part in parts]
    again = [Part.from_json(json.loads(json.dumps(part.to_json()))) for part in parts]
    assert again == parts


@pytest.mark.parametrize(
    "wrong", [{"tier": "moon"}, {"bytes": "1"}, {"valid": 1}, {"owners": {}}, {"coverage": {"a": [1]}}]
)
def test_json_from_elsewhere_is_checked(make, wrong):
    make.dcp("step-10")
    (part,) = listing(make.root, "global", None, now_s=make.now_s)
    with pytest.raises(ValueError):
        Part.from_json(part.to_json() | wrong)


def test_hostile_names_links_and_walls(make, tmp_path):
    make.dcp("run/step-10")
    make.dcp("run/step-20\nwarn: [bold]x")
    (make.root / "run/step-30").symlink_to("/etc")
    (make.root / "run/step-40").mkdir()
    (make.root / "run/step-50").write_bytes(b"a file")
    parts = {part.key: part for part in listing(make.root, "global", None, now_s=make.now_s)}
    assert parts["run/step-10"].valid is True
    assert parts["run/step-20\nwarn: [bold]x"].step == 20
    assert parts["run/step-30"].valid is None and "link" in parts["run/step-30"].reason
    assert parts["run/step-40"].valid is None and "empty" in parts["run/step-40"].reason


def test_too_many_are_cut_and_said(make):
    make.dcp("step-30", step=30, ranks=1)
    for step in range(30):
        (make.root / f"step-{step}").mkdir()
    assert [spot.path.name for spot in find(make.root).spots][:2] == ["step-30", "step-29"]
    parts = listing(make.root, "global", None, limit=10, now_s=make.now_s)
    assert len(parts) == 11 and "21 older" in parts[-1].reason


def test_a_good_one_below_many_bad_ones_is_found(make):
    make.dcp("step-3", step=3, ranks=1)
    for step in range(4, 60):
        (make.root / f"step-{step}").mkdir()
    parts = listing(make.root, "global", None, limit=10, now_s=make.now_s)
    assert [part.step for part in parts if part.valid] == [3]
    assert len(parts) == 12 and "46 more were looked at" in parts[-1].reason


def test_a_root_that_is_not_there(make):
    (part,) = listing(make.root / "nothing", "global", None, now_s=make.now_s)
    assert part.valid is None


def test_different_steps_under_one_key():
    part = Part("a", "/r", "/r/x", "x", 1, "local", "dcp", 1, True, "structural", "")
    (one,) = join([[part], [replace(part, host="b", step=2)]])
    assert one.valid is False and one.step is None


def test_a_host_whose_shards_are_of_another_step(make):
    roots = spread(make, make.dcp("step-20", step=20, per_rank=True))
    other = make.dcp("step-19", step=19, per_rank=True)
    for name in ("__2.metadata", "__2_0.distcp"):
        shutil.copy2(other / name, roots[2] / "run/step-20" / name)
    parts = listed(make, roots)
    assert all(part.valid for part in parts[2])  # off by one is a matter of counting, on one host
    (one,) = join(parts)
    assert one.valid is False and "different steps" in one.reason


def test_no_more_is_read_than_is_enough(make):
    for step in (10, 20, 30, 40, 50):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    (make.root / "run/step-30/.metadata").write_bytes(b"")
    parts = listing(make.root, "global", None, level="checksum", enough=2, before_step=50, now_s=make.now_s)
    assert {p.step: (p.valid, p.level) for p in parts} == {
        50: (True, "structural"),
        40: (True, "checksum"),
        30: (False, "structural"),
        20: (True, "checksum"),
        10: (True, "structural"),
    }


@pytest.mark.parametrize("below", ["", "a/run"])
def test_a_folder_below_a_link_that_leads_nowhere_is_not_one_that_nobody_has_made_yet(tmp_path, below):
    (tmp_path / "runs").symlink_to(tmp_path / "not-mounted")
    (note,) = find(tmp_path / "runs" / below).notes
    (missing,) = find(tmp_path / "new").notes
    assert note[1] == "cannot be read (a symbolic link whose target is missing)"
    assert missing[1] == "cannot be read (No such file or directory)"


def test_a_folder_of_many_saves_is_listed_for_their_neighbours_once(make, monkeypatch):
    """Each of thousands of saves asked for those beside it: a minute and more for five hundred of them."""
    for step in range(10, 60, 10):
        path = make.root / f"run/step_{step}"
        make.write(path / "state.pt", make.torch_file({"step": step}, prefix="state"))
        make.write(path / "optimizer.pt", make.torch_file({"state": {}, "param_groups": []}, prefix="optimizer"))
    monkeypatch.setattr(base, "_SETTLED_NS", 0)
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(Path(folder)) or scandir(folder))
    assert [part.valid for part in listing(make.root / "run", "global", None, now_s=make.now_s)] == [True] * 5
    assert listed.count(make.root / "run") == 2  # for what is in it, and for what lies beside each
    make.write(make.root / "run/step_60/state.pt", make.torch_file({"step": 60}, prefix="state"))
    answer = listing(make.root / "run", "global", None, now_s=make.now_s)[0]
    assert answer.valid is None and "optimizer.pt is missing" in answer.reason, answer


def test_a_folder_of_ranks_files_is_listed_for_their_steps_once(make, monkeypatch):
    """It was listed twice for each step: 40 s for 2,000 steps of eight ranks, and the time for all of them is 20 s."""
    for step in (10, 20, 30, 40, 50):
        for rank in (0, 1):
            state = {"optimizer": {"state": {}, "param_groups": []}, "step": step}
            make.write(make.root / f"run/ep0-ba{step}-rank{rank}.pt", make.torch_file(state))
    monkeypatch.setattr(base, "_SETTLED_NS", 0)
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(Path(folder)) or scandir(folder))
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [(part.step, part.valid, part.format) for part in parts][:1] == [(50, True, "torch_ranks")], parts
    assert len(parts) == 5 and listed.count(make.root / "run") < 5, listed
    make.write(make.root / "run/ep0-ba60-rank0.pt", make.torch_file({"step": 60}))
    answer = listing(make.root / "run", "global", None, now_s=make.now_s)[0]
    assert answer.valid is None and "1 ranks' files" in answer.reason, answer


@pytest.mark.parametrize("behind_s", [0, 3, 100])
def test_a_folder_whose_time_was_set_back_is_listed_anew(make, behind_s):
    """A copy keeps the mtime of a folder; the clock of a file system may be some seconds behind."""
    run, at_s = make.root / "run", time.time() - behind_s
    for step in (10, 20, 30):
        (run / f"step_{step}").mkdir(parents=True)
        os.utime(run, (at_s, at_s))
        found = {path.name for path in base.neighbours(run / "step_15", 8)}
        assert found == {f"step_{earlier}" for earlier in range(10, step + 10, 10)}


def test_a_nodes_own_part_of_accelerates_save(make):
    """Only the first node has rank 0's random states."""
    path = make.accelerate("run/best", 10, ranks=8)
    for rank in range(4):
        (path / f"random_states_{rank}.pkl").unlink()
    parts = listing(make.root / "run", "local", "node2", now_s=make.now_s)
    assert [part.format for part in parts] == ["accelerate"], parts


def test_a_folder_in_a_numbered_save_that_cannot_be_looked_at_does_not_hide_it(make, monkeypatch):
    make.write(make.root / "run/100/model.safetensors", b"x")
    (make.root / "run/100/private").mkdir()
    real = os.stat

    def refuse(path, *args, **kwargs):
        if "private/" in os.fspath(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    found = find(make.root)
    assert ([spot.place for spot in found.spots], found.notes) == ([str(make.root / "run/100")], [])
