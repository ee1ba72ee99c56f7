"""A save beside that cannot be read says nothing: what is held against it stays as it is."""

from __future__ import annotations

import pytest
from saves.unreadable import lock

from sentinel.checkpoints.validate import validate

RUNS = {
    "dcp": ("step-{}", lambda make, at, step: make.dcp(at, step=step)),
    "ranks": ("step-{}", lambda make, at, step: make.dcp(at, step=step, per_rank=True)),
    "megatron": ("iter_{:07d}", lambda make, at, step: make.megatron(at, step)),
    "megatron_legacy": ("iter_{:07d}", lambda make, at, step: make.megatron_legacy(at, step)),
    "deepspeed": ("global_step{}", lambda make, at, step: make.deepspeed(at, step)),
    "universal": ("global_step{}_universal", lambda make, at, step: make.universal(at, step)),
    "hf": ("checkpoint-{}", lambda make, at, step: make.hf(at, step)),
    "accelerate": ("step_{}", lambda make, at, step: make.accelerate(at, step)),
    "nemo": ("m--step={}-last", lambda make, at, step: make.nemo(at, step)),
}


def run(make, kind, steps=(10, 20, 30, 40)):
    name, write = RUNS[kind]
    paths = [make.root / "run" / name.format(step) for step in steps]
    for index, (path, step) in enumerate(zip(paths, steps, strict=True)):
        write(make, str(path.relative_to(make.root)), step)
        for file in path.rglob("*"):
            make.age(file, 36_000 - 3600 * index)
    return paths


def answers(make, paths):
    return [validate(path, level, now_s=make.now_s) for path in paths for level in ("structural", "content")]


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_folder_beside_that_is_another_users(make, monkeypatch, kind, index):
    paths = run(make, kind)
    locked = paths.pop(index)
    before = answers(make, paths)
    assert all(answer.valid for answer in before[::2]), before
    lock(monkeypatch, locked)
    assert answers(make, paths) == before
    assert validate(locked, "structural", now_s=make.now_s).valid is None


@pytest.mark.parametrize("kind", ["dcp", "megatron", "hf", "accelerate", "deepspeed"])
def test_what_all_readable_saves_beside_have_is_still_missed(make, monkeypatch, kind):
    """A save further off takes the place of the one that cannot be read."""
    paths = run(make, kind)
    for index, path in enumerate(paths):
        make.write(path / "dataloader_0.pt", make.torch_file({"cursor": 7}, prefix="extra"))
        make.age(path / "dataloader_0.pt", 36_000 - 3600 * index)
    (paths[3] / "dataloader_0.pt").unlink()
    lock(monkeypatch, paths[2])
    answer = validate(paths[3], "structural", now_s=make.now_s)
    assert answer.valid is None and "dataloader_0.pt is missing" in answer.reason, answer


def texts(make, kind, name):
    paths = run(make, kind, (10, 20, 30))
    for index, path in enumerate(paths):
        make.write(path / name, b'{"version": 1}' if name.endswith(".json") else b"version: 1\n")
        make.age(path / name, 36_000 - 3600 * index)
    return paths


@pytest.mark.parametrize("kind", ["dcp", "hf", "accelerate", "deepspeed"])
@pytest.mark.parametrize("name", ["actor/fsdp_config.json", "settings.yaml"])
def test_a_text_that_cannot_be_read_is_not_taken_for_a_whole_one(make, monkeypatch, kind, name):
    """A load may read it, and could not."""
    paths = texts(make, kind, name)
    assert [validate(path, "structural", now_s=make.now_s).valid for path in paths] == [True] * 3
    lock(monkeypatch, paths[2] / name)
    for level in ("structural", "checksum", "content"):
        answer = validate(paths[2], level, now_s=make.now_s)
        assert answer.valid is None and name in answer.reason and "Permission denied" in answer.reason, answer
    assert validate(paths[1], "structural", now_s=make.now_s).valid is True


@pytest.mark.parametrize("locked", [True, False])
def test_settings_with_comments_are_held_against_none_that_cannot_be_read(make, monkeypatch, locked):
    paths = texts(make, "dcp", "settings.json")
    make.write(paths[2] / "settings.json", b"// since today\n{}")
    make.age(paths[2] / "settings.json", 28_800)
    if locked:
        lock(monkeypatch, *(path / "settings.json" for path in paths[:2]))
    answer = validate(paths[2], "structural", now_s=make.now_s)
    assert answer.valid is (True if locked else None), answer
