"""Ranks' files whose number follows the suffix: ``state.pt.0`` to ``state.pt.3``."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.validate import validate


def save(make, step, ranks=4):
    path = make.root / f"run/step-{step}"
    for rank in range(ranks):
        value = {"model": {"w": make.tensor((16, 8))}, "optimizer": {"state": {}, "param_groups": []}, "step": step}
        make.write(path / f"state.pt.{rank}", make.torch_file(value, [make.floats(128)], prefix="state.pt"))
        make.age(path / f"state.pt.{rank}", 3600)
    return path


@pytest.fixture
def path(make):
    save(make, 10)
    return save(make, 20)


@pytest.mark.parametrize("level", ["structural", "checksum"])
@pytest.mark.parametrize("ranks", [2, 4, 12])
def test_they_are_not_taken_for_copies(make, level, ranks):
    path = save(make, 10, ranks)
    answer = validate(path, level, now_s=make.now_s)
    assert (answer.valid, answer.step, answer.level) == (True, 10, level), answer


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_one_that_is_missing(make, path, lost):
    (path / f"state.pt.{lost}").unlink()
    assert validate(path, "structural", now_s=make.now_s).valid is not True


@pytest.mark.parametrize("damage", ["cut", "empty", "zeroed head", "flipped", "another step"])
def test_one_that_is_damaged(make, path, damage):
    file = path / "state.pt.2"
    data = bytearray(file.read_bytes())
    if damage == "another step":
        data[:] = (make.root / "run/step-10/state.pt.2").read_bytes()
    elif damage == "zeroed head":
        data[:64] = bytes(64)
    elif damage == "flipped":
        data[data.index(b"data/0") + 200] ^= 1
    else:
        del data[len(data) // 2 if damage == "cut" else 0 :]
    make.write(file, bytes(data))
    make.age(file, 3600)
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is not True, answer


@pytest.mark.parametrize("names", [("state.pt.1",), ("state.pt.1", "state.pt.2"), ("state.pt.0",)])
def test_what_was_set_aside_is_no_rank(make, path, names):
    """wget and logrotate count from one, and a set of one is none."""
    kept = {name: (path / name).read_bytes() for name in names}
    for file in path.iterdir():
        file.unlink()
    for name, data in kept.items():
        make.write(path / name, data)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "state.pt is missing" in answer.reason, answer


def test_copies_beside_the_file_are_no_part_of_the_save(make):
    for step in (10, 20):
        make.write(
            make.root / f"run/step-{step}/state.pt", make.torch_file({"step": step, "optimizer": {}}, prefix="state")
        )
    for number in (0, 1):
        make.write(make.root / f"run/step-10/state.pt.{number}", b"cut")
    for step in (10, 20):
        answer = validate(make.root / f"run/step-{step}", "structural", now_s=make.now_s)
        assert answer.valid is True, answer
