"""What Accelerate's ``save_state`` writes when the rest of a save is there."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.validate import Settings, record, validate

LEVELS = ("structural", "checksum", "content")


def ask(make, path, level="structural", **settings):
    return validate(path, level, now_s=make.now_s, settings=Settings(**settings))


def with_an_object(make, folder="step_100", step=100, model="bin"):
    """A save of which the last file is the state of an object that the program registered."""
    path = make.accelerate(folder, step, model=model)
    value = {"count": step, "average": make.tensor((300,))}
    data = make.torch_file(value, [make.floats(300)], "custom_checkpoint_0")
    make.write(path / "custom_checkpoint_0.pkl", data, 2)
    return path


def damaged(data, how):
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "zeros": bytes(len(data)),
        "a lost end": data[:-100] + bytes(100),
    }[how]


@pytest.mark.parametrize("name", ["custom_checkpoint_0.pkl", "random_states_3.pkl"])
@pytest.mark.parametrize("how", ["cut", "empty", "zeros", "a lost end"])
def test_the_last_file_is_torn(make, name, how):
    """Those are the files that a kill in the middle of a save tears."""
    path = with_an_object(make)
    assert [ask(make, path, level).valid for level in LEVELS] == [True] * 3
    make.write(path / name, damaged((path / name).read_bytes(), how), 2)
    for level in LEVELS:
        answer = ask(make, path, level)
        assert answer.valid is False and name in answer.reason, answer
    make.age(path / name, 30)
    answer = ask(make, path)
    assert answer.valid is None and "being written" in answer.reason, answer


def test_a_flipped_bit_in_a_registered_object(make):
    path = with_an_object(make)
    file = path / "custom_checkpoint_0.pkl"
    data = bytearray(file.read_bytes())
    at = data.index(b"/data/0") + 512
    data[at] ^= 1
    make.write(file, bytes(data), 2)
    answer = ask(make, path, "checksum")
    assert answer.valid is False and "CRC-32 differs" in answer.reason, answer


def test_a_torn_object_is_not_recorded_as_whole(make, tmp_path_factory):
    path = with_an_object(make, model="safetensors")
    file = path / "custom_checkpoint_0.pkl"
    whole = file.read_bytes()
    manifests = tmp_path_factory.mktemp("manifests")
    record(path, manifests, lambda _: None, now_s=make.now_s)
    assert ask(make, path, "content", manifests=manifests).valid is True
    make.write(file, whole[:1000], 2)
    with pytest.raises(Exception, match=r"custom_checkpoint_0\.pkl"):
        record(path, manifests, lambda _: None, now_s=make.now_s)


def test_a_registered_object_of_more_than_is_taken_into_memory(make, monkeypatch):
    """A dataset's order: the loader takes it, and its checksum shows that it is whole."""
    path = make.accelerate("step_100", model="bin")
    file = path / "custom_checkpoint_0.pkl"
    data = make.torch_file({"order": [str(n) for n in range(100_000)]}, prefix="custom_checkpoint_0")
    make.write(file, data, 2)
    monkeypatch.setenv("SENTINEL_PICKLE_MEMORY_MB", "2")
    assert [ask(make, path, level).valid for level in LEVELS] == [True] * 3, ask(make, path)
    make.write(file, data[:-200], 2)
    assert ask(make, path).valid is False
    middle = len(data) // 2
    make.write(file, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], 2)
    assert ask(make, path, "checksum").valid is False


@pytest.mark.parametrize("kept", ["average", "scores"])
def test_a_registered_object_may_hold_anything(make, kept):
    """No score has a value before its first evaluation, and an average of weights has to be finite."""
    path = make.accelerate("step_100", model="bin")
    held = {"ema": {"a.weight": make.tensor((4, 4))}} if kept == "average" else {"best_score": make.tensor((16,))}
    data = make.torch_file(held, [b"\0\0\xc0\x7f" * 16], "custom_checkpoint_0")
    make.write(path / "custom_checkpoint_0.pkl", data, 2)
    assert ask(make, path, "checksum").valid is True
    assert ask(make, path, "content").valid is (kept == "scores"), ask(make, path, "content")


def test_a_model_that_is_missing_beside_an_average_of_it(make):
    path = with_an_object(make)
    held = {"a.weight": make.tensor((16, 8)), "b.weight": make.tensor((16, 8), key=1)}
    data = make.torch_file(held, [make.floats(128), make.floats(128)], "custom_checkpoint_0")
    make.write(path / "custom_checkpoint_0.pkl", data, 2)
    assert ask(make, path).valid is True
    os.remove(path / "pytorch_model.bin")
    assert ask(make, path).valid is not True
