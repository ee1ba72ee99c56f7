"""Names in headers and keys in JSON that are others than in the saves beside, as a flipped bit leaves them."""

from __future__ import annotations

import json
import shutil

import pytest

from sentinel.checkpoints.validate import Settings, validate


def saves(make, steps=(4, 6, 8), **more):
    return [make.hf(f"run/checkpoint-{step}", step=step, **more) for step in steps]


def ask(make, path):
    return validate(path, "checksum", now_s=make.now_s, settings=Settings(unsummed=True))


def replace(make, path, old, new):
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    make.write(path, data.replace(old, new, 1), 0 if path.name != "trainer_state.json" else 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"model.layers.2.weight", b"model.layers.2.weighu"),
        (b"model.layers.2.weight", b"model.layers.6.weight"),
    ],
)
def test_a_name_in_the_header_that_no_save_beside_has(make, old, new):
    before, *_, path = saves(make)
    assert ask(make, path).valid is True
    replace(make, path / "model.safetensors", old, new)
    answer = ask(make, path)
    assert answer.valid is None and "model.safetensors names " in answer.reason
    shutil.rmtree(before)
    assert ask(make, path).valid is True, "of two that differ either may be the damaged one"


def test_a_format_that_no_library_has(make):
    before, *_, path = saves(make)
    replace(make, path / "model.safetensors", b'"format":"pt"', b'"format":"pu"')
    assert ask(make, path).valid is None
    shutil.rmtree(before)
    assert ask(make, path).valid is None, "it needs no save beside"


def test_saves_beside_that_differ_from_each_other_decide_nothing(make):
    first, second, path = saves(make)
    replace(make, first / "model.safetensors", b"model.layers.2.weight", b"model.layers.2.weighu")
    replace(make, second / "model.safetensors", b"model.layers.2.weight", b"model.layers.2.weighv")
    assert ask(make, path).valid is True


def test_the_save_beside_the_damaged_one_is_good(make):
    before, damaged, path = saves(make)
    replace(make, damaged / "model.safetensors", b"model.layers.2.weight", b"model.layers.2.weighu")
    assert [ask(make, save).valid for save in (before, damaged, path)] == [True, None, True]


def test_another_version_of_the_library_names_them_otherwise(make):
    path = saves(make)[-1]
    data = (path / "model.safetensors").read_bytes()
    make.write(path / "model.safetensors", data.replace(b"model.layers", b"trunk.layers"))
    assert ask(make, path).valid is True


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("trainer_state.json", {"save_steps": 2, "max_steps": 9}, b"save_steps", b"save_stePs"),
        ("trainer_state.json", {"more": {"control": {"args": {}}}}, b"args", b"argc"),
        ("config.json", {"hidden_size": 16, "layers": 2}, b"hidden_size", b"hidden_sixe"),
    ],
)
def test_a_key_that_no_save_beside_has(make, name, value, old, new):
    for path in (run := saves(make)):
        state = json.loads((path / name).read_text()) if name == "trainer_state.json" else {}
        make.json(path / name, state | value, name == "trainer_state.json")
    assert ask(make, run[-1]).valid is True
    replace(make, run[-1] / name, old, new)
    answer = ask(make, run[-1])
    assert answer.valid is None and f"{name} has a key {new.decode()}" in answer.reason
    assert [ask(make, path).valid for path in run[:2]] == [True, True]
    shutil.rmtree(run[0])
    assert ask(make, run[-1]).valid is True, "of two that differ either may be the damaged one"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("config.json", {"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),  # transformers 4.56
        ("config.json", {"rope_scaling": {"factor": 2}}, {"rope_parameters": {"factor": 2}}),
        ("generation_config.json", {"temperature": 0.6}, {"top_p": 0.9}),
        ("config.json", {"abc": 1}, {"abd": 1}),  # one letter, three bits
        ("added_tokens.json", {"<a>": 1}, {"<c>": 1}),
        ("vocab.json", {"cat": 1}, {"bat": 1}),
        ("config.json", {"label2id": {"cat": 1}}, {"label2id": {"bat": 1}}),
        (
            "trainer_state.json",
            {"stateful_callbacks": {"Ac": {"args": 1}}},
            {"stateful_callbacks": {"Aa": {"args": 1}}},
        ),
        ("trainer_state.json", {"stateful_callbacks": {"A": {"b": 1}}}, {"stateful_callbacks": {"A": {"c": 1}}}),
        ("trainer_state.json", {"trial_params": {"lr1x": 1}}, {"trial_params": {"lr1y": 1}}),
    ],
)
@pytest.mark.parametrize(("count", "changed"), [(2, 1), (3, 1), (4, 1), (4, 2)])
def test_a_key_that_a_library_or_the_user_renamed(make, name, before, after, count, changed):
    run = saves(make, (2, 4, 6, 8)[:count])
    for number, path in enumerate(run, 1):
        state = json.loads((path / name).read_text()) if name == "trainer_state.json" else {"size": 16}
        make.json(path / name, state | (after if number > count - changed else before), name == "trainer_state.json")
    assert [ask(make, path).reason for path in run if ask(make, path).valid is not True] == []


def test_keys_that_are_added_or_that_count(make):
    for number, path in enumerate(run := saves(make)):
        make.json(path / "config.json", {"size": 16, "ids": {f"at_{number}": 1}} | ({"more": 1} if number == 2 else {}))
    assert [ask(make, path).valid for path in run] == [True, True, True]
