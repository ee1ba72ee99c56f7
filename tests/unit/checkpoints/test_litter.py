"""What is left behind beside a checkpoint's files is no part of it: it neither condemns a save nor counts as one."""

from __future__ import annotations

import re

import pytest

from sentinel.checkpoints import kept_manifest, manifest
from sentinel.checkpoints.files import scan
from sentinel.checkpoints.validate import Settings, record, validate

LEFT = (".nfs000000000001a2b3", ".DS_Store", "core.4711", "notes.txt~", "._model.safetensors", ".trainer.swp")


@pytest.mark.parametrize("kind", ["dcp", "hf", "deepspeed", "megatron", "accelerate"])
def test_leftovers_newer_than_everything(make, kind):
    path = getattr(make, kind)("run/step-10")
    path = path if path is not None else make.root / "run/step-10"
    before = validate(path, "structural", now_s=make.now_s)
    for name in LEFT:
        make.write(path / name, b"left behind")
        make.age(path / name, 1)
    assert validate(path, "structural", now_s=make.now_s) == before
    assert not set(scan(path).files) & set(LEFT)


def test_a_manifest_that_named_one_does_not_miss_it(make, tmp_path, monkeypatch):
    make.dcp("run/step-10")
    path = make.root / "run/step-10"
    make.write(path / LEFT[0], b"left behind")
    pattern = manifest.LITTER
    for module in ("files", "manifest", "kept_manifest"):
        monkeypatch.setattr(f"sentinel.checkpoints.{module}.LITTER", re.compile("none"))
    record(path, tmp_path, lambda _: None, now_s=make.now_s)
    manifest.write(path)
    for module in ("files", "manifest", "kept_manifest"):
        monkeypatch.setattr(f"sentinel.checkpoints.{module}.LITTER", pattern)
    (path / LEFT[0]).unlink()
    settings = Settings(manifests=tmp_path)
    assert kept_manifest.find(tmp_path, scan(path)) is not None
    assert validate(path, "checksum", now_s=make.now_s, settings=settings).valid is True
