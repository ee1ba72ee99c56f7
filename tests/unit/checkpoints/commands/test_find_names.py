"""What --rejected and --lost of `find` name: however it is written; and what names nothing is refused."""

from __future__ import annotations

import os

import pytest
from saves.commands import rows, run

from sentinel.errors import UserError


@pytest.fixture
def saved(make):
    for step in (50, 60):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    (make.root / "link").symlink_to(make.root / "run")
    return make.root / "run"


def chosen(*words):
    result = run("find", "--no-cache", "--json", *words)
    assert result.exception is None, result.exception
    return rows(result)[0]["chosen"]["step"]


@pytest.mark.parametrize(
    "written",
    [
        "{run}/step-60",
        "{run}/step-60/",
        "{run}/./step-60",
        "./run/step-60",
        "link/step-60",
        "step-60",
        "{run}/step-60@60",
    ],
)
@pytest.mark.parametrize("folder", ["{run}", "run", "link"])
def test_a_rejected_one_however_it_is_written(make, saved, monkeypatch, written, folder):
    monkeypatch.chdir(make.root)
    assert chosen("--global", folder.format(run=saved), "--rejected", written.format(run=saved)) == 50


def test_within_a_deadline_too(saved):
    assert chosen("--global", saved, "--deadline", 60, "--rejected", f"{saved}/step-60/") == 50


@pytest.mark.parametrize("written", ["step-600", ".", "step-60/.metadata", "step-60@50", "../elsewhere/step-60"])
def test_what_names_no_checkpoint_is_refused(make, saved, written):
    make.dcp("elsewhere/step-60", step=60, ranks=1)
    result = run("find", "--no-cache", "--global", saved, "--rejected", saved / written)
    assert isinstance(result.exception, UserError) and "names no checkpoint" in result.exception.message


def test_one_that_is_older_than_what_is_listed(saved):
    result = run("find", "--no-cache", "--global", saved, "--limit", 1, "--rejected", saved / "step-50")
    assert result.exception is None and "no checkpoint was listed there" in result.stderr
    assert "step 60" in result.stdout


def test_on_the_disk_of_any_node(make):
    whole = make.nvrx("whole", step=200)
    for rank in range(4):
        for path in whole.rglob("*"):
            if path.is_file() and path.parent.name == str(rank):
                place = make.root / f"nvme/n{rank}" / path.relative_to(whole)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, place)
    words = ("--local", make.root / "nvme/%N", "--nodes", "n[0-3]", "--json")
    (before,) = rows(run("find", *words))
    path = before["chosen"]["paths"]["n2"]
    (after,) = rows(run("find", *words, "--rejected", f"{path}/"))
    assert after["chosen"] is None and "failed to load" in after["candidates"][0]["verdict"]


def test_a_lost_node_that_is_none_of_the_jobs(make, saved):
    result = run("find", "--global", saved, "--nodes", "n[1-4]", "--lost", "n01")
    assert isinstance(result.exception, UserError) and "n01 is none of the job's nodes" in result.exception.message
    template = run("find", "--global", saved, "--local", make.root / "nvme/%N", "--nodes", "n[1-4]", "--lost", "n01")
    assert isinstance(template.exception, UserError)
    assert run("find", "--global", saved, "--nodes", "n[1-4]", "--lost", "n2").exception is None
    alone = run("find", "--global", saved, "--local", f"n1={saved}", "--lost", "n3")  # its folder may not be reachable
    assert alone.exception is None and "no folder of that node" in alone.stderr
