"""A save that is being deleted: what is left of it keeps its times, only its folders change."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints import manifest
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, validate

KINDS = {
    "dcp": lambda make: make.dcp("run/step-30", step=30),
    "ranks": lambda make: make.dcp("run/step-30", step=30, per_rank=True),
    "megatron": lambda make: make.megatron("run/iter_0000030", 30),
    "megatron_legacy": lambda make: make.megatron_legacy("run/iter_0000030", 30),
    "deepspeed": lambda make: make.deepspeed("run/global_step30", 30),
    "universal": lambda make: make.universal("run/global_step30_universal", 30),
    "hf": lambda make: make.hf("run/checkpoint-30", 30),
    "accelerate": lambda make: make.accelerate("run/step_30", 30),
    "nemo": lambda make: make.nemo("run/m--step=30-last", 30),
    "manifest": lambda make: make.dcp("run/step-30", step=30),
}


def ages(make, path, age_s):
    for folder in [path, *(inner for inner in path.rglob("*") if inner.is_dir())]:
        os.utime(folder, (make.now_s - age_s,) * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_being_deleted_is_invalid(make, kind):
    """As rmtree takes the files, in either order."""
    path = KINDS[kind](make)
    path = path if path is not None else next((make.root / "run").iterdir())
    if kind == "manifest":
        manifest.write(path)
    for file in path.rglob("*"):
        make.age(file, 36_000)
    whole = {file: (file.read_bytes(), file.stat()) for file in sorted(path.rglob("*")) if file.is_file()}
    for order in (list(whole), list(whole)[::-1]):
        for file in order[:-1]:
            file.unlink()
            ages(make, path, 10)
            answer = validate(path, "checksum", now_s=make.now_s)
            assert answer.valid is not False, (file.name, answer)
        for file, (data, status) in whole.items():
            file.write_bytes(data)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("kind", ["dcp", "universal"])
def test_what_nobody_deletes_any_more_is_invalid(make, kind):
    """After two minutes; and at a restart, when whoever deleted it is gone."""
    path = KINDS[kind](make)
    for file in path.rglob("*"):
        make.age(file, 36_000)
    next(file for file in sorted(path.rglob("*")) if file.name in ("__0_0.distcp", "exp_avg.pt")).unlink()
    ages(make, path, 10)
    (part,) = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert part.valid is None and "deleted" in part.reason and part.after_its_writer().valid is False
    assert validate(path, "checksum", now_s=make.now_s, settings=Settings(fresh_s=0.0)).valid is False
    for age_s in (130, -3600):  # of a clock that is ahead nothing is known
        ages(make, path, age_s)
        assert validate(path, "checksum", now_s=make.now_s).valid is False
