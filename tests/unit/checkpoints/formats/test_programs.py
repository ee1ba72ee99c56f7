"""Models that a hook saves as a program (TorchScript, ONNX) beside the files of the Trainer and of Accelerate.

``recorded/torchscript-2.13.0.pt``: ``torch.jit.save`` of two parameters of 16 x 8, by torch 2.13.0.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.checkpoints.files import scan
from sentinel.checkpoints.formats import torch_file
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.validate import validate

TORCHSCRIPT = (Path(__file__).parent / "recorded/torchscript-2.13.0.pt").read_bytes()
ONNX = b"\x08\x0a\x12\x07pytorch:\x80\x20" + b"\x0a\x02ab" * 1024
SAVES = ("hf", "accelerate")


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def saved(make, save, name, data):
    """A save whose only model is this file."""
    path = make.accelerate("run/checkpoint-6", 6, ranks=1) if save == "accelerate" else make.hf("run/checkpoint-6", 6)
    (path / "model.safetensors").unlink()
    make.write(path / name, data)
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, 3600)
    return path


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["model.pt", "nets/model.pt", "model.ts", "model.torchscript", "model.bin"])
def test_torchscript_is_a_model(make, save, name):
    """``model.ts`` was "no model in it": invalid, and moved aside."""
    path = saved(make, save, name, TORCHSCRIPT)
    for level in ("structural", "checksum") if save == "accelerate" else ("structural",):
        answer = ask(make, path, level)
        assert answer.valid is (None if level == "checksum" and "safetensors" in answer.reason else True), answer


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["model.pt", "model.ts"])
@pytest.mark.parametrize("left", [len(TORCHSCRIPT) - 1, len(TORCHSCRIPT) - 30, 3000, 700, 40])
def test_torchscript_that_was_cut(make, save, name, left):
    assert ask(make, saved(make, save, name, TORCHSCRIPT[:left])).valid is not True


@pytest.mark.parametrize("place", [100, 900, 1300, 1700, 2300, 2900, 3500])
def test_torchscript_with_another_byte(make, place):
    changed = bytearray(TORCHSCRIPT)
    changed[place] ^= 0x55
    answer = ask(make, saved(make, "accelerate", "model.ts", bytes(changed)), "content")
    assert answer.valid is not True, answer


def test_every_byte_of_a_program_is_accounted_for(tmp_path):
    path = tmp_path / "model.ts"
    for place in range(0, len(TORCHSCRIPT), 7):
        changed = bytearray(TORCHSCRIPT)
        changed[place] ^= 0xFF
        path.write_bytes(bytes(changed))
        tree = scan(path)
        with pytest.raises((torch_file.Broken, torch_file.NotKnown)):
            for work in torch_file.check_program(tree, path.name, Ask("content", 0.0)).works:
                work.run(bytearray(1 << 20))


def test_a_program_of_other_shapes_than_the_optimizers(make):
    path = saved(make, "hf", "model.pt", TORCHSCRIPT)
    value, payloads = make.state(6, shape=(4, 4))
    data = make.torch_file({"state": value, "param_groups": []}, payloads, "optimizer")
    make.write(path / "optimizer.pt", data)
    answer = ask(make, path)
    assert answer.valid is None and "the model is missing?" in answer.reason, answer


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["model.onnx", "onnx/model.onnx", "model.ort", "model.pt2"])
@pytest.mark.parametrize("data", [ONNX, ONNX[:99]])
def test_another_kind_of_program_may_be_the_model(make, save, name, data):
    answer = ask(make, saved(make, save, name, data))
    assert answer.valid is None and name in answer.reason, answer


@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
def test_onnx_under_the_name_of_torchs(make, name):
    assert ask(make, saved(make, "hf", name, ONNX)).valid is None


@pytest.mark.parametrize("save", SAVES)
def test_torchscript_beside_a_model_is_an_export(make, save):
    """A real one has compressed code: it was taken for a damaged program, and the save was not known."""
    path = make.accelerate("run/checkpoint-6", 6, ranks=1) if save == "accelerate" else make.hf("run/checkpoint-6", 6)
    make.write(path / "export.pt", TORCHSCRIPT)
    assert ask(make, path).valid is True, ask(make, path)


def test_torchscript_beside_an_optimizer_of_a_loop(make):
    """It is the model: its bytes are looked at."""
    path = make.root / "run/step_6"
    value, payloads = make.state(6)
    data = make.torch_file({"state": value, "param_groups": []}, payloads, "optimizer")
    changed = bytearray(TORCHSCRIPT)
    changed[100] ^= 0x55  # a weight
    for model, valid in ((TORCHSCRIPT, True), (bytes(changed), False)):
        make.write(path / "optimizer.pt", data)
        make.write(path / "model.pt", model)
        assert ask(make, path).valid is True, ask(make, path)
        assert ask(make, path, "checksum").valid is valid, ask(make, path, "checksum")
