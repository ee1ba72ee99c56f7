"""What was read of a step in one file per rank holds while no rank's file changes, not only the one that is listed."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints import manifest
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, record, validate
from sentinel.checkpoints.verified_files import Memory

NAME = "ep0-ba{}-rank{}.pt"


@pytest.fixture(params=[False, True], ids=["zip", "legacy"])
def run(make, request):
    for step in (20, 30):
        for rank in range(2):
            if request.param:
                make.legacy(f"run/{NAME.format(step, rank)}", step)
            else:
                make.write(make.root / "run" / NAME.format(step, rank), make.torch_file(*make.state(step)))
    return make.root / "run"


def flip(path):
    """Damage on the disk, which leaves the time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        data = file.read(64)
        file.seek(-64, os.SEEK_CUR)
        file.write(bytes(255 - byte for byte in data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def ask(make, run, **settings):
    return validate(run / NAME.format(30, 0), "checksum", now_s=make.now_s, settings=Settings(**settings))


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_remembered(make, run, rank):
    memory = Memory(make.root / "memory")
    (first,) = {ask(make, run, memory=memory, unsummed=True).valid for _ in range(2)}
    assert first and "read before" in ask(make, run, memory=memory, unsummed=True).reason
    make.age(run / NAME.format(30, rank), 3590)
    assert "read before" not in ask(make, run, memory=memory, unsummed=True).reason


@pytest.mark.parametrize("rank", [0, 1])
def test_the_manifest_that_is_made_while_the_job_runs(make, run, rank):
    store = make.root / "kept"
    kept = record(run / NAME.format(30, 0), store, lambda count: None, now_s=make.now_s)
    assert sorted(kept.files) == [NAME.format(30, one) for one in (0, 1)]
    assert ask(make, run, manifests=store).valid is True
    flip(run / NAME.format(30, rank))
    answer = ask(make, run, manifests=store)
    assert answer.valid is False and NAME.format(30, rank) in answer.reason


@pytest.mark.parametrize("rank", [0, 1])
def test_the_manifest_that_lies_beside_them(make, run, rank):
    manifest.write(run / NAME.format(30, 0))
    assert ask(make, run).valid is True
    flip(run / NAME.format(30, rank))
    answer = ask(make, run)
    assert answer.valid is False and NAME.format(30, rank) in answer.reason


def test_its_bytes_and_times_are_those_of_all(make, run):
    late = run / NAME.format(30, 1)
    make.age(late, 3000)
    part = listing(run, "global", "n1", now_s=make.now_s)[0]
    assert (part.path, part.bytes) == (
        str(run / NAME.format(30, 0)), sum(one.stat().st_size for one in run.glob("ep0-ba30-*"))
    )  # fmt: skip
    assert part.newest_mtime_s == late.stat().st_mtime
