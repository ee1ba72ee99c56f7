"""A torch folder with a model in numbered torch files, as Hugging Face's: the index names them, and is asked for."""

from __future__ import annotations

import json

import pytest

from sentinel.checkpoints.validate import validate, validate_part

INDEX = "pytorch_model.bin.index.json"


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def save(make, step, folder, index=True):
    path = make.root / f"run/step_{step}"
    table = {}
    for number in (1, 2):
        name = f"pytorch_model-{number:05d}-of-00002.bin"
        value = {f"{number}.weight": make.tensor((16, 8)), f"{number}.bias": make.tensor((8,), key=1)}
        table |= dict.fromkeys(value, name)
        make.write(path / folder / name, make.torch_file(value, [make.floats(128), make.floats(8)], name[:-4]))
    if index:
        make.json(path / folder / INDEX, {"metadata": {"total_size": 1088}, "weight_map": table})
    value, payloads = make.state(step, keys=2)
    make.write(path / "trainer.pt", make.torch_file({"optimizer": {"state": value}, "global_step": step}, payloads))
    for file in path.rglob("*"):
        make.age(file, 36_000 - 100 * step)
    return path


def run(make, folder, **kind):
    return [save(make, step, folder, **kind) for step in (10, 20, 30)]


both = pytest.mark.parametrize("folder", [".", "policy"])


@both
@pytest.mark.parametrize("index", [False, True])
def test_whole_ones(make, folder, index):
    """A loop of somebody's may write none."""
    for path in run(make, folder, index=index):
        assert ask(make, path, "checksum").valid is True, ask(make, path, "checksum")


@both
def test_no_index(make, folder):
    path = run(make, folder)[-1]
    (path / folder / INDEX).unlink()
    answer = ask(make, path)
    assert answer.valid is None and f"{INDEX} is missing" in answer.reason, answer


@both
def test_a_tensor_that_is_not_in_its_file(make, folder):
    path = run(make, folder)[-1]
    text = (path / folder / INDEX).read_text().replace("1.weight", "1.veight")
    make.write(path / folder / INDEX, text.encode())
    answer = ask(make, path)
    assert answer.valid is False and "disagree" in answer.reason, answer


@both
def test_an_index_without_its_table(make, folder):
    path = run(make, folder)[-1]
    text = (path / folder / INDEX).read_text().replace("weight_map", "weight_oap")
    make.write(path / folder / INDEX, text.encode())
    answer = ask(make, path)
    assert answer.valid is False and "no weight_map" in answer.reason, answer


@both
def test_of_a_set_that_is_on_several_nodes(make, folder):
    path = save(make, 10, folder)
    table = json.loads((path / folder / INDEX).read_text())
    table["weight_map"]["3.weight"] = "pytorch_model.bin"
    make.json(path / folder / INDEX, table)
    assert ask(make, path).valid is False
    part = validate_part(path, "structural", tier="local", host="n1", root=make.root, now_s=make.now_s)
    assert part.valid is True, part


@both
def test_an_index_of_another_model(make, folder):
    """A base model's, copied in with its settings."""
    path = save(make, 10, folder, index=False)
    make.json(path / folder / INDEX, {"weight_map": {"a": "pytorch_model-00001-of-00005.bin"}})
    make.write(path / "base" / INDEX, b'{"weight_map": {"a": "pytor')
    assert ask(make, path, "checksum").valid is True, ask(make, path, "checksum")
