"""Copies by rsync that were broken off: what lies in its own folder is not in its place."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints import files
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, validate

KINDS = {"dcp": "run/step-20", "hf": "run/checkpoint-20", "accelerate": "run/step_20", "deepspeed": "run/global_step20"}


@pytest.fixture(params=[".~tmp~", ".rsync-partial"])
def folder(request):
    return request.param


def ask(make, path):
    return validate(path, "checksum", now_s=make.now_s, settings=Settings(unsummed=True))


def stage(make, path, folder, files):
    for file in files:
        (file.parent / folder).mkdir(exist_ok=True)
        file.rename(file.parent / folder / file.name)
    for one in [path, *path.rglob("*")]:
        if one.is_dir():
            make.age(one, 3600)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1, 2])
def test_what_is_not_in_its_place_is_no_save(make, kind, folder, share):
    getattr(make, kind)(KINDS[kind], step=20)
    path = make.root / KINDS[kind]
    assert ask(make, path).valid is True, ask(make, path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    stage(make, path, folder, files[len(files) - len(files) // share :])
    answer = ask(make, path)
    assert answer.valid is None and "copy that did not end" in answer.reason, answer
    make.dcp("run/step-10")
    parts = listing(path.parent, "global", None, level="checksum", now_s=make.now_s)
    assert not [part for part in parts if part.valid and part.step == 20], parts


def test_half_of_another_save_is_in_its_place(make, folder):
    """Over a save that was there: what comes first by name is new, the rest waits."""
    path, new = make.dcp("run/last"), make.dcp("new/last", step=20)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        make.write(path / name, (new / name).read_bytes())
    (path / folder).mkdir()
    for name in ("__2_0.distcp", "__3_0.distcp"):
        make.write(path / folder / name, (new / name).read_bytes(), 5)
    make.age(path / folder, 3600)
    make.age(path, 3600)
    answer = ask(make, path)
    assert answer.valid is None and "__2_0.distcp: rsync has not put another" in answer.reason, answer


def test_what_is_there_twice_is_in_its_place(make, folder):
    path = make.dcp("run/step-10")
    (path / folder).mkdir()
    os.link(path / "__2_0.distcp", path / folder / "__2_0.distcp")
    make.age(path / folder, 3600)
    make.age(path, 3600)
    assert ask(make, path).valid is True, ask(make, path)


def test_of_too_many_files_not_all_are_looked_at(make, folder, monkeypatch):
    make.dcp("run/step-20", step=20)
    path = make.root / "run/step-20"
    (path / folder).mkdir()
    for index in range(40):
        (path / folder / f"{index}").write_bytes(b"")
    looked = []
    monkeypatch.setattr(files, "entry_of", lambda told, real=files.entry_of: looked.append(told) or real(told))
    monkeypatch.setattr(files, "MAX_FILES", 20)
    with pytest.raises(files.NotKnown, match="more than 20 files"):
        files.scan(path)
    assert len(looked) < 30
