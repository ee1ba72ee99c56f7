"""``checkpoint-N`` of a Trainer with DeepSpeed: it resumes from the folder that ``latest`` beside it names."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.validate import validate, validate_part


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def saved(make, stage, step=6):
    path = make.hf(f"run/checkpoint-{step}", step)
    make.deepspeed(f"run/checkpoint-{step}/global_step{step}", step, stage=stage)
    make.write(path / "latest", f"global_step{step}".encode())
    for name in ("optimizer.pt", *(["model.safetensors"] if stage == 3 else [])):
        (path / name).unlink()
    return path


@pytest.mark.parametrize(("stage", "level"), [(1, "structural"), (3, "checksum")])
def test_a_whole_one(make, stage, level):
    path = saved(make, stage)
    assert ask(make, path, level).valid is True, ask(make, path, level)


@pytest.mark.parametrize("stage", [1, 3])
def test_no_latest(make, stage):
    path = saved(make, stage)
    (path / "latest").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "latest is missing" in answer.reason, answer


def test_a_nodes_part_without_it(make):
    """The first rank writes it, to its own node's disk."""
    path = saved(make, 3)
    (path / "latest").unlink()
    part = validate_part(path, "structural", tier="local", host="n2", root=make.root, now_s=make.now_s)
    assert part.valid is True, part


@pytest.mark.parametrize("text", [b"", b"global_rtep6", b"global_step4", b"\0" * 12, b"global_step6\n\xff"])
def test_a_latest_that_names_no_folder_there(make, text):
    path = saved(make, 3)
    make.write(path / "latest", text)
    answer = ask(make, path)
    assert answer.valid is False and "latest" in answer.reason, answer


def test_a_folder_of_another_step_that_latest_names(make):
    """A resume takes the optimizer of that step, and the rest of this one."""
    path = saved(make, 3)
    make.deepspeed("run/checkpoint-6/global_step4", 4, stage=3)
    make.write(path / "latest", b"global_step4")
    answer = ask(make, path)
    assert answer.valid is None and "global_step4" in answer.reason, answer


def test_one_that_is_being_written(make):
    path = saved(make, 3)
    (path / "latest").write_bytes(b"")
    make.age(path / "latest", 1)
    answer = ask(make, path)
    assert answer.valid is None and "being written" in answer.reason, answer
