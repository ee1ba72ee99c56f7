"""A name of a tensor that is one bit away from what the other layers of the model call it, in a save alone."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.parsing import flipped_names
from sentinel.checkpoints.parsing.flipped_names import flipped
from sentinel.checkpoints.validate import Settings, validate

KINDS = {"attn.weight": (8, 8), "attn.bias": (8,), "norm.weight": (8,)}


def model(layers=4, prefix="model.layers.", more=()):
    made = {f"{prefix}{layer}.{kind}": ("F32", shape) for layer in range(layers) for kind, shape in KINDS.items()}
    return made | {"head.weight": ("F32", (8, 4)), **dict(more)}


def renamed(tensors, old, new):
    return {new if name == old else name: kept for name, kept in tensors.items()}


@pytest.mark.parametrize("bit", range(8))
def test_each_bit_of_a_name_in_a_layer(bit):
    whole = model(layers=12)
    assert flipped(whole) is None
    name = "model.layers.7.attn.bias"
    for at in range(len(name)):
        other = name[:at] + chr(ord(name[at]) ^ 1 << bit) + name[at + 1 :]
        if other not in whole and other.isascii():
            assert flipped(renamed(whole, name, other)) == (other, name), other


@pytest.mark.parametrize(
    "tensors",
    [
        renamed(model(layers=3), "model.layers.2.attn.bias", "model.layers.2.attn.bhas"),  # too few to say
        renamed(model(), "model.layers.2.attn.bias", "model.layers.2.attn.scale"),  # a layer of its own
        {name: kept for name, kept in model().items() if name != "model.layers.2.attn.bias"},  # without one
        model(more={"model.layers.4.attn.weight": ("F32", (8, 8))}.items()),
        model(more={f"model.layers.{i}.attn.bhas": ("F32", (8,)) for i in range(4)}.items()),
        # One bit apart and of another shape: both were meant.
        renamed(model(), "model.layers.2.attn.bias", "-") | {"model.layers.2.attn.bhas": ("F32", (16,))},
        renamed(model(), "head.weight", "head.weighu"),
        # As VITS counts its flows: one kind in 0 to 3, the others in 1 to 4.
        {
            f"f.{i}.{kind}": ("F32", (8,))
            for kind, first in (("a", 0), ("b", 1), ("c", 1))
            for i in range(first, first + 4)
        },
        # An encoder that has layers which the decoder lacks.
        model(prefix="enc.")
        | {f"dec.{i}.attn.bias": ("F32", (8,)) for i in (0, 1, 3)}
        | {"dec.2.attn.bhas": ("F32", (8,))},
        {f"{i}.weight": ("F32", (8, 8)) for i in (0, 2, 4, 6)} | {f"{i}.bias": ("F32", (8,)) for i in (0, 2, 4, 7)},
        {},
    ],
)
def test_what_a_model_may_be_called(tensors):
    assert flipped(tensors) is None


def test_of_very_many_names_few_are_looked_for(monkeypatch):
    looked, named = [], flipped_names._named
    monkeypatch.setattr(flipped_names, "_named", lambda *kind: looked.append(kind) or named(*kind))
    many = {
        f"x.{layer}.{'abcdefghij'[i % 10] * (1 + i // 10)}": ("F32", (1,))
        for i in range(2_000)
        for layer in "0123"
        if (i % 2, layer) != (1, "2")
    }
    assert flipped(many) is None and 0 < len(looked) <= 64


def test_of_a_long_name_no_other_names_are_made(monkeypatch):
    """It is held against the names that are there: as many comparisons as these, whatever its length."""
    compared, apart = [], flipped_names.one_bit_apart
    monkeypatch.setattr(flipped_names, "one_bit_apart", lambda *names: compared.append(names) or apart(*names))
    long = "x" * 20_000
    whole = model(layers=6, more=[(f"model.layers.{layer}.{long}", ("F32", (1,))) for layer in range(6)])
    for new, found in ((f"model.layers.3.{long[:-1]}y", True), (f"model.layers.3.{long[:-2]}yy", False)):
        other = renamed(whole, f"model.layers.3.{long}", new)
        assert (flipped(other) is not None) is found
    assert len(compared) <= 4


def saved(make, old=b"", new=b"", form="pt"):
    tensors = {
        name: (kind, shape, make.floats(shape[0] * (shape[1:] or (1,))[0])) for name, (kind, shape) in model().items()
    }
    path = make.root / "run/model_step_6.safetensors"
    data = make.safetensors(tensors, metadata={"format": form})
    make.write(path, data.replace(old, new, 1) if old else data)
    return path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"form": "tf"}, ""),
        ({"old": b"layers.2.norm", "new": b"layers.2.nosm"}, "model.layers.2.norm.weight by its other layers"),
        ({"form": "pu"}, "format pu"),
    ],
)
def test_one_save_alone(make, given, words):
    path = saved(make, **given)
    answer = validate(path, "checksum", now_s=make.now_s, settings=Settings(unsummed=True))
    assert answer.valid is (None if words else True) and words in answer.reason, answer
    assert validate(path, "structural", now_s=make.now_s).valid is True
