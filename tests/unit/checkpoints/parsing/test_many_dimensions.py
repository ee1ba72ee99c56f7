"""A tensor of very many dimensions, in each kind of file: the time to look at it does not grow with their square."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.validate import validate


@pytest.mark.parametrize("last", [1, 0])
@pytest.mark.parametrize("form", ["safetensors", "torch", "dcp"])
def test_very_many_dimensions_are_not_multiplied(make, form, last):
    """Their product is a number whose length grows with each: the time would grow with the square of their number."""
    path, shape = make.root / "run" / "step_6.bin", (1 << 40,) * 64 + (last,)
    if form == "safetensors":
        path = path.with_suffix(".safetensors")
        make.write(path, make.safetensors({"w": ("F32", shape, b"")}))
    elif form == "torch":
        tensor = make.tensor((4, 4))
        tensor.args = (tensor.args[0], 0, shape, (0,) * 65, *tensor.args[4:])
        make.write(path, make.torch_file({"state_dict": {"w": tensor}}, [make.floats(16)], "step_6"))
    else:
        path = make.dcp("run/step-6", step=6)
        make.write(path / ".metadata", make.metadata({"w": ("float32", shape, [])}, [], []), 1)
    answer = validate(path, "structural")
    assert answer.valid is None and "65 dimensions" in answer.reason
