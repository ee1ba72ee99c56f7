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


def adam(make, step, name, shapes=((16, 8), (16, 8)), rate=0.1):
    value = {n: {"step": float(step), "exp_avg": make.tensor(shape, key=n)} for n, shape in enumerate(shapes)}
    groups = [{"params": list(range(len(shapes))), "lr": rate}] if shapes else [{"params": [0, 1], "lr": rate}]
    payloads = [make.floats(shape[0] * shape[1]) for shape in shapes]
    return make.torch_file({"state": value, "param_groups": groups}, payloads, name.partition(".")[0])


def model(make, name, dtype="float32"):
    if name.endswith(".safetensors"):
        of = "F32" if dtype == "float32" else "BF16"
        return make.safetensors({key: (of, (16, 8), make.floats(128, dtype)) for key in ("a.weight", "b.weight")})
    value = {key: make.tensor((16, 8), dtype, number) for number, key in enumerate(("a.weight", "b.weight"))}
    return make.torch_file(value, [make.floats(128, dtype) for _ in value], name.partition(".")[0])


def two_models(make, suffix, written, dtype="float32", rate=0.1):
    """Saves of two models; ``written(step)``: which of the models and optimizers are others than in the save before."""
    stem = "pytorch_model" if suffix == ".bin" else "model"
    held = {name: model(make, name, dtype) for name in (f"{stem}{suffix}", f"{stem}_1{suffix}")}
    held |= {name: adam(make, 0, name, (), rate) for name in ("optimizer.bin", "optimizer_1.bin")}
    paths = []
    for index, step in enumerate((10, 20, 30, 40, 50)):
        path = make.root / f"run/checkpoint-{step}"
        for name in held:
            if name.partition(".")[0].removeprefix("pytorch_") in written(step):
                kind = name.startswith("optimizer")
                held[name] = adam(make, step, name, rate=rate) if kind else model(make, name, dtype)
            make.write(path / name, held[name])
        make.write(path / "random_states_0.pkl", make.torch_file({"step": step}, prefix="random_states_0"), 1)
        for file in path.iterdir():
            make.age(file, 36_000 - 3600 * index - (file.suffix == ".pkl"))
        paths.append(path)
    return paths


def one_after_the_other(step):
    return ("model", "optimizer") if step <= 30 else ("model_1", "optimizer_1")


def put_back(path, before, names):
    for name in names:
        at = (path / name).stat().st_mtime
        (path / name).write_bytes((before / name).read_bytes())
        os.utime(path / name, (at, at))


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_models_that_are_trained_one_after_the_other(make, suffix, dtype):
    """The first one and its optimizer are the same in every save since."""
    paths = two_models(make, suffix, one_after_the_other, dtype)
    for path in paths:
        answer = ask(make, path, "checksum", unsummed=True)
        assert answer.valid is True, answer


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("stem", ["model_1", "optimizer_1"])
def test_a_file_of_the_save_before_beside_a_model_whose_training_is_over(make, suffix, stem):
    paths = two_models(make, suffix, one_after_the_other)
    name = next(file.name for file in paths[4].iterdir() if file.stem.removeprefix("pytorch_") == stem)
    put_back(paths[4], paths[3], [name])
    answer = ask(make, paths[4])
    assert answer.valid is None and "byte for byte" in answer.reason, answer


@pytest.mark.parametrize("stem", ["model", "optimizer", "model_1", "optimizer_1"])
def test_a_file_of_the_save_before_where_both_models_are_trained(make, stem):
    paths = two_models(make, ".bin", lambda _: ("model", "optimizer", "model_1", "optimizer_1"))
    assert ask(make, paths[3]).valid is True
    name = next(file.name for file in paths[3].iterdir() if file.stem.removeprefix("pytorch_") == stem)
    put_back(paths[3], paths[2], [name])
    assert ask(make, paths[3]).valid is None


def test_two_optimizers_of_one_model_that_are_used_one_after_the_other(make):
    def written(step):
        return ("model", "optimizer" if step <= 30 else "optimizer_1")

    paths = two_models(make, ".bin", written)
    for path in paths:
        (path / "pytorch_model_1.bin").unlink()
    assert [ask(make, path).valid for path in paths] == [True] * 5, [ask(make, path).reason for path in paths]


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
@pytest.mark.parametrize("stem", ["model", "optimizer"])
def test_a_file_of_the_save_before_beside_a_frozen_model(make, suffix, stem):
    paths = two_models(make, suffix, lambda _: ("model", "optimizer"))
    assert [ask(make, path).valid for path in paths] == [True] * 5, [ask(make, path).reason for path in paths]
    name = next(file.name for file in paths[3].iterdir() if file.stem.removeprefix("pytorch_") == stem)
    put_back(paths[3], paths[2], [name])
    answer = ask(make, paths[3])
    assert answer.valid is None and "byte for byte" in answer.reason, answer


@pytest.mark.parametrize(("dtype", "rate"), [("bfloat16", 0.1), ("float32", 0.0)])
def test_weights_that_no_step_changes(make, dtype, rate):
    """In 16 bits a small step is rounded away; a rate of 0 makes none."""
    paths = two_models(make, ".bin", lambda _: ("optimizer",), dtype, rate)
    assert [ask(make, path).valid for path in paths] == [True] * 5, [ask(make, path).reason for path in paths]
