"""Parts of two saves of one step, which several nodes copy to one place: they are not put together."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.checkpoints import copying, files
from sentinel.checkpoints.copying import copy, incoming

STEP = Path("step-10")


@pytest.fixture
def shared(make):
    (make.root / "shared" / "run").mkdir(parents=True)
    return make.root / "shared" / "run"


@pytest.fixture
def halves(make):
    """Makes the halves that two nodes hold of a save that was written so many seconds ago."""

    def saved(life, ago_s):
        whole = make.dcp(f"{life}/step-10")
        found = []
        for node in (0, 1):
            folder = make.root / f"{life}-n{node}/run/step-10"
            folder.mkdir(parents=True)
            shards = whole.glob(f"__[{2 * node}{2 * node + 1}]_0.distcp")
            for file in [*shards, whole / ".metadata"] if node == 0 else shards:
                shutil.copy2(file, folder / file.name)
                os.utime(folder / file.name, (time.time() - ago_s,) * 2)
            found.append(folder)
        return found

    return saved


@pytest.fixture
def copied_ago(make, monkeypatch):
    """Lets what was put into a folder until now count as put there so many seconds ago; only the kernel sets that."""
    then = {}
    of_kernel = files.entry_of

    def entry_of(status):
        entry = of_kernel(status)
        return replace(entry, ctime_ns=then.get((entry.inode, entry.ctime_ns), entry.ctime_ns))

    monkeypatch.setattr(files, "entry_of", entry_of)

    def put(folder, ago_s):
        for path in folder.iterdir():
            status = path.stat()
            then[status.st_ino, status.st_ctime_ns] = int((time.time() - ago_s) * 1e9)
        tick = make.root / "tick"
        tick.touch()
        while tick.stat().st_ctime_ns <= max(ctime_ns for _, ctime_ns in then):
            tick.touch()

    return put


def test_what_was_copied_of_a_save_of_the_run_before_its_restart(halves, shared, copied_ago):
    """Node 1 had copied its half when the job died; the step is saved anew a few minutes later."""
    copy(halves("first", 3600)[1], shared, STEP)
    copied_ago(incoming(shared, STEP), 3500)
    node0, node1 = halves("second", 3300)
    done = copy(node0, shared, STEP)
    assert not done.complete and re.match(r"__2_0.distcp was copied \d+ s before", done.waiting_for), done
    assert not (shared / STEP).exists()
    assert copy(node1, shared, STEP).complete
    assert (shared / STEP / "__3_0.distcp").read_bytes() == (node1 / "__3_0.distcp").read_bytes()


def test_that_a_large_save_takes_long_to_validate_makes_its_files_no_older(halves, shared, copied_ago, monkeypatch):
    copy(halves("first", 900)[1], shared, STEP)
    copied_ago(incoming(shared, STEP), 800)
    node0, _ = halves("second", 600)
    now, took = time.time, []

    def validate(*asked):
        took.append(600.0)
        return of_stage(*asked)

    of_stage = copying.validate
    monkeypatch.setattr(copying, "validate", validate)
    monkeypatch.setattr(time, "time", lambda: now() + sum(took))
    done = copy(node0, shared, STEP)
    assert not done.complete and "__2_0.distcp was copied" in done.waiting_for, done


def test_a_half_of_the_first_save_that_is_copied_after_the_second(halves, shared):
    """From the disk of a node that the restarted job does not use."""
    first, second = halves("first", 7200), halves("second", 3600)
    copy(first[1], shared, STEP)
    done = copy(second[0], shared, STEP)
    assert not done.complete and re.match(r"__2_0.distcp was written \d+ s before", done.waiting_for), done
    assert copy(second[1], shared, STEP).complete


def test_the_half_of_the_second_save_waits_there_when_that_of_the_first_comes(halves, shared):
    first, second = halves("first", 7200), halves("second", 3600)
    copy(second[0], shared, STEP)
    done = copy(first[1], shared, STEP)
    assert not done.complete and re.match(r"__0_0.distcp was written \d+ s after", done.waiting_for), done
    assert copy(second[1], shared, STEP).complete


def test_a_half_that_seems_to_be_copied_too_early_is_confirmed_by_copying_it_again(halves, shared, copied_ago):
    """The clock of a node was ahead when it saved."""
    node0, node1 = halves("only", 3600)
    copy(node1, shared, STEP)
    copied_ago(incoming(shared, STEP), 3700)
    assert "__2_0.distcp was copied" in copy(node0, shared, STEP).waiting_for
    done = copy(node1, shared, STEP)
    assert (done.complete, done.already) == (True, 2), done
