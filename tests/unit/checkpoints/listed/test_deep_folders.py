"""Saves some folders below the one that is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.checkpoints.inventory import find, listing


@pytest.mark.parametrize("folders", ["", "exp/name/version/checkpoints", "outputs/2026-11-30/04-10-00/a/checkpoints"])
def test_a_save_that_lies_deep_is_found(make, folders):
    """NeMo's and Hydra's folders, below the folder of a project."""
    path = make.dcp(f"run/{folders}/step-10", step=10)
    (part,) = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert (part.path, part.valid) == (str(path), True)


@pytest.mark.parametrize("near", ["step-10", "a/b/step-10", "ckpt.pt"])
def test_no_folder_is_looked_at_that_lies_deeper_than_the_saves(make, near, monkeypatch):
    """Data and environments lie there, in very many folders."""
    if near.endswith(".pt"):
        make.write(make.root / "run" / near, make.torch_file({"step": 10}))
    else:
        make.dcp(f"run/{near}", step=10)
    make.dcp("run/a/b/c/d/e/step-20", step=20)
    seen = []
    scandir = os.scandir
    monkeypatch.setattr("os.scandir", lambda path: (seen.append(Path(path)), scandir(path))[1])
    assert [spot.path for spot in find(make.root / "run").spots] == [make.root / "run" / near]
    assert max(len(path.relative_to(make.root / "run").parts) for path in seen) <= 3


def test_what_lies_too_deep_is_said(make):
    make.dcp("run/" + "/".join("abcdefgh") + "/step-10", step=10)
    (part,) = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert (part.valid, part.key, part.step) == (None, ".", None) and "deep" in part.reason, part


def test_a_root_that_says_something_of_itself_is_no_save_of_that_step(make):
    """What is of a later step than the chosen one is moved aside."""
    make.dcp("run-step-99/" + "/".join("abcdefgh") + "/step-10", step=10)
    (part,) = listing(make.root / "run-step-99", "global", None, now_s=make.now_s)
    assert part.step is None, part
    (part,) = listing(make.root / "none-step-99", "global", None, now_s=make.now_s)
    assert part.step is None and part.valid is None, part
