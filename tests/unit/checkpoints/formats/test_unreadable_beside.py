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
