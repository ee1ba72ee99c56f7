"""Whether a file whose name may be that of an optimizer, or of a model, holds moments or weights."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from sentinel.checkpoints.validate import validate_part

NAMES = ("opt.pt", "resnet50_sgd-0.1.pt", "adamw-run.pt")


def listed(make, path):
    """As it is found under a root, where weights alone are no checkpoint."""
    return validate_part(path, "structural", tier="global", host="h", root=path.parent, now_s=make.now_s, loose=True)


class Keys:
    """Tensors of one shape, each with a storage of its own."""

    def __init__(self, make):
        self.make = make
        self.payloads = []

    def __call__(self, shape=(4, 4)):
        self.payloads.append(self.make.floats(shape[0] * (shape[1] if len(shape) > 1 else 1)))
        return self.make.tensor(shape, key=len(self.payloads) - 1)


def save(make, name, build, folder="run/step_6"):
    t = Keys(make)
    value = build(t)
    path = make.root / folder
    make.write(path / name, make.torch_file(value, t.payloads, name.rpartition(".")[0]))
    return path


WEIGHTS = {
    "a setting beside the model": lambda t: {"model": {"a.weight": t()}, "momentum": 0.9},
    "a setting of a layer": lambda t: {"bn": {"weight": t((4,)), "momentum": 0.1}},
    "settings under the names of a pair": lambda t: {"net": {"a.weight": t(), "m": 3, "v": 2}},
    "parameters m and v": lambda t: {"layer": {"m": t(), "v": t()}},
    "parameters mu and nu": lambda t: {"net": {"head": {"mu": t(), "nu": t()}}},
    "a parameter momentum": lambda t: {"layer": {"momentum": t()}},
    "parameters at the top": lambda t: {"m": t(), "v": t()},
    "modules m and v": lambda t: {"layer": {"m": {"weight": t()}, "v": {"weight": t()}}},
    "modules at the top": lambda t: {"mu": {"weight": t()}, "nu": {"weight": t()}},
    "a model as torch gives it": lambda t: {"model": OrderedDict({"a.weight": t()}), "momentum": 0.9},
    "a mark of Adam's as a setting": lambda t: {"model": {"a.weight": t()}, "exp_avg": True},
}


@pytest.mark.parametrize("what", WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_weights_alone_are_nothing_to_resume_from(make, name, what):
    """Any entry under the name of a moment made them an optimizer's: a setting, or a parameter of the model."""
    path = save(make, name, WEIGHTS[what])
    assert listed(make, path).valid is None, listed(make, path)


@pytest.mark.parametrize("what", WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_of_two_models(make, name, what):
    """The other file has the names of the first one's parameters: they are no names of what moments are kept of."""
    path = save(make, name, WEIGHTS[what])
    save(make, "ema.pt", WEIGHTS[what])
    assert listed(make, path).valid is None, listed(make, path)


MOMENTS = {
    "of each parameter, by the model's name": lambda t: {"layer": {"m": t(), "v": t()}},
    "in tables as deep as the model's": lambda t: {"net": {"head": {"mu": t(), "nu": t()}}},
    "by the model's name below another": lambda t: {"state": {"layer": {"m": t(), "v": t()}}},
    "each moment of all parameters": lambda t: {"m": {"layer": t()}, "v": {"layer": t()}},
    "of one name": lambda t: {"layer": {"momentum": t()}},
    "of torch's names, of any parameter": lambda t: {"x": {"exp_avg": t(), "exp_avg_sq": t()}},
    "of a weight": lambda t: {"other": {"weight": {"m": t(), "v": t()}}},
    "of parameters by number": lambda t: {0: {"m": t(), "v": t()}, 1: {"m": t(), "v": t()}},
}


@pytest.mark.parametrize("what", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_moments_of_the_parameters_that_the_model_has(make, name, what):
    path = save(make, name, MOMENTS[what])
    save(make, "model.pt", lambda t: {"layer": t(), "net": {"head": t()}})
    assert listed(make, path).valid is True, listed(make, path)


@pytest.mark.parametrize("name", NAMES)
def test_moments_of_the_parameters_of_a_model_in_safetensors(make, name):
    path = save(make, name, lambda t: {"layer": {"m": t(), "v": t()}}, "run/checkpoint-6")
    assert listed(make, path).valid is None
    make.write(path / "model.safetensors", make.safetensors({"layer": ("F32", (4, 4), make.floats(16))}))
    assert listed(make, path).valid is True, listed(make, path)


@pytest.mark.parametrize(
    ("key", "valid"), [("layer.m", None), ("head.mu", None), ("m", None), ("layer.weight.m", True)]
)
def test_parameters_in_safetensors_under_the_names_of_moments(make, key, valid):
    path = make.root / "run/checkpoint-6"
    make.write(path / "opt.safetensors", make.safetensors({key: ("F32", (4, 4), make.floats(16))}))
    assert listed(make, path / "opt.safetensors").valid is valid, listed(make, path / "opt.safetensors")
    make.write(path / "ema.pt", make.torch_file({"other": make.tensor((4, 4))}, [make.floats(16)], "ema"))
    assert listed(make, path).valid is valid, listed(make, path)
    make.write(path / "model.pt", make.torch_file({"layer": make.tensor((4, 4))}, [make.floats(16)], "model"))
    assert listed(make, path).valid is (True if key == "layer.m" else valid), listed(make, path)
