"""How closely `find` looks when nobody says: as a restart does, and a quick look says that it is one."""

from __future__ import annotations

import json
import os

import pytest
from saves.commands import run

from sentinel.cli.checkpoints.progress_bar import bar


@pytest.fixture
def damaged(make):
    """A run whose newest save has the length and the times of a whole one, and other bytes: 512 of them are zero."""
    for step in (10, 20):
        path = make.dcp(f"run/step-{step}", step=step)
    shard = path / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    at = data.index(b"archive/data/0") + 64
    data[at : at + 512] = bytes(512)
    status = shard.stat()
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    return make.root / "run"


def test_a_damaged_save_is_not_chosen_by_default(damaged):
    answer = json.loads(run("find", "--global", damaged, "--json").stdout)
    assert answer["chosen"]["step"] == 10 and answer["chosen"]["level"] == "checksum"
    assert next(c for c in answer["candidates"] if c["step"] == 20)["valid"] is False


def test_a_quick_look_says_that_no_checksum_was_read(damaged):
    quick = run("find", "--global", damaged, "--level", "structural").stdout.splitlines()
    assert "step 20" in quick[-2] and "checksums were not read" in quick[-1].lower()
    assert "not read" not in run("find", "--global", damaged).stdout


def test_a_quick_check_and_a_listing_say_so_too(damaged):
    """What `validate` calls valid by structure may be invalid for `find` and at a restart."""
    shown = run("validate", damaged / "step-20").stdout
    assert "structural: complete" in shown and "checksums were not read" in shown.lower(), shown
    assert "not read" not in run("validate", damaged / "step-10", "--level", "checksum").stdout
    (line,) = run("validate", damaged / "step-20", "--json").stdout.splitlines()
    assert json.loads(line)["level"] == "structural"
    for level in ("structural", "checksum"):
        listed = run("inventory", "--global", damaged, "--level", level).stdout
        assert f"{level}: " in next(line for line in listed.splitlines() if "step-10" in line), listed


@pytest.mark.parametrize(("extra", "asked"), [([], "checksum"), (["--deadline", "60"], "structural")])
def test_json_names_the_level_that_was_asked_for(damaged, extra, asked):
    assert json.loads(run("find", "--global", damaged, "--json", *extra).stdout)["level"] == asked


@pytest.mark.parametrize("eager", [1 << 40, 0])
def test_what_is_read_is_counted_for_whoever_watches(damaged, monkeypatch, eager):
    """Both where everything is read at once, and where only what would be chosen is."""
    from sentinel.cli.checkpoints import find as module

    counted = []

    def watched(what, size, wanted):
        counted.append((what, size() > 0, wanted))
        return bar(what, size, False)

    monkeypatch.setattr(module, "EAGER_BYTES", eager)
    monkeypatch.setattr(module, "bar", watched)
    run("find", "--global", damaged, "--no-cache")
    assert {entry for entry in counted if entry[2]} == {("reading", True, True)}
    for quiet in ("--json", "--level=structural"):
        counted.clear()
        run("find", "--global", damaged, "--no-cache", quiet)
        assert {wanted for _, _, wanted in counted} == {False}, quiet
