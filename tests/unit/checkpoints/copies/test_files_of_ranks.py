"""A step in one file per rank is copied as a whole."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from saves.commands import rows, run

from sentinel.checkpoints.copying import copy
from sentinel.errors import Refused

NAME = "ep0-ba{}-rank{}.pt"


@pytest.fixture
def source(make):
    for step in (20, 30):
        for rank in range(3):
            path = make.root / "nvme/run" / NAME.format(step, rank)
            make.write(path, make.torch_file(*make.state(step)))
            os.utime(path, (time.time() - 3600,) * 2)  # nobody writes it any more
    return make.root / "nvme/run"


@pytest.fixture
def target(make):
    (make.root / "shared").mkdir()
    return make.root / "shared/run"


def contents(folder, step=30):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob(NAME.format(step, "*"))}


@pytest.mark.parametrize("command", ["drain", "replicate"])
@pytest.mark.parametrize("ranks", [[0], [2], [0, 1, 2]])
def test_all_ranks_files_are_copied_once(source, target, command, ranks):
    named = [source / NAME.format(30, rank) for rank in ranks]
    (told,) = rows(run(command, *named, "--to", target, "--json"))
    assert (told["files"], told["complete"], told["bytes"]) == (
        3,
        True,
        sum(p.stat().st_size for p in source.iterdir()) / 2,
    )
    assert contents(target) == contents(source) and len(list(target.iterdir())) == 3
    (again,) = rows(run(command, *named, "--to", target, "--json"))
    assert (again["files"], again["already"], again["complete"]) == (0, 3, True)


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_killed_while_they_are_renamed(source, target, monkeypatch, renamed):
    path, made = source / NAME.format(30, 0), []

    def rename(name, other, *args, real=os.rename, **how):
        if name == other:
            if len(made) == renamed:
                raise KeyboardInterrupt
            made.append(name)
        real(name, other, *args, **how)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", rename)
        copy(path, target, path.relative_to(source))
    assert not (target / path.name).exists()  # by it the step would be found
    assert copy(path, target, path.relative_to(source)).complete
    assert contents(target) == contents(source)
    assert not [one for one in (target.parent / ".incoming").rglob("*") if one.is_file()]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_file_of_another_save_that_is_there_is_kept_and_alone(source, target, rank):
    target.mkdir()
    other = target / NAME.format(30, rank)
    shutil.copy(source / NAME.format(20, rank), other)
    before = other.read_bytes()
    with pytest.raises(Refused, match="exists with other contents"):
        copy(source / NAME.format(30, 0), target, (source / NAME.format(30, 0)).relative_to(source))
    assert contents(target).keys() == {other.name} and other.read_bytes() == before


def test_one_that_is_torn_is_not_copied_for_the_others(source, target):
    torn = source / NAME.format(30, 2)
    status = torn.stat()
    os.truncate(torn, status.st_size // 2)
    os.utime(torn, ns=(status.st_atime_ns, status.st_mtime_ns))
    result = run("drain", source / NAME.format(30, 0), "--to", target, "--json")
    assert torn.name in rows(result)[0]["damaged"] and not target.exists()


@pytest.mark.parametrize("ranks", [(2,), (1, 2)])
@pytest.mark.parametrize("first", [0, 1])
def test_those_of_several_nodes_come_together(source, target, ranks, first):
    nodes = [source, source.parent.parent / "n2/run"]
    nodes[1].mkdir(parents=True)
    for rank in ranks:
        (source / NAME.format(30, rank)).rename(nodes[1] / NAME.format(30, rank))
    every = contents(nodes[0]) | contents(nodes[1])
    for node in (nodes[first], nodes[1 - first]):
        path = min(node.glob(NAME.format(30, "*")))
        done = copy(path, target, path.relative_to(node))
    assert done.complete and contents(target) == every


@pytest.mark.parametrize("after", [1, 2])
def test_one_node_ends_while_another_copies(source, target, after):
    """It puts in their place what the other one had copied by then; the other one called that complete, without the rest."""
    other, every = source.parent.parent / "n2/run", contents(source)
    other.mkdir(parents=True)
    for rank in range(3, 6):
        path = other / NAME.format(30, rank)
        shutil.copy2(source / NAME.format(30, 0), path)
        every |= {path.name: contents(source)[NAME.format(30, 0)]}
    copied = []

    def progress(count):
        copied.append(count)
        if len(copied) == after + 1:
            assert copy(source / NAME.format(30, 0), target, Path(NAME.format(30, 0))).complete

    done = copy(other / NAME.format(30, 3), target, Path(NAME.format(30, 3)), progress=progress)
    assert done.complete and contents(target) == every
