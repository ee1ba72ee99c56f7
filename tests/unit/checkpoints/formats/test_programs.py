"""Models that a hook saves as a program (TorchScript, ONNX) beside the files of the Trainer and of Accelerate.

``recorded/torchscript-2.13.0.pt``: ``torch.jit.save`` of two parameters of 16 x 8, by torch 2.13.0;
``recorded/lite-2.13.0.ptl``: ``_save_for_lite_interpreter`` of two such, with what maps its instructions to source lines.
"""

from __future__ import annotations

import io
import math
import random
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest

from sentinel.checkpoints import reading
from sentinel.checkpoints.files import scan
from sentinel.checkpoints.formats import torch_file
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.tensors import Pickled
from sentinel.checkpoints.validate import validate

TORCHSCRIPT = (Path(__file__).parent / "recorded/torchscript-2.13.0.pt").read_bytes()
LITE = (Path(__file__).parent / "recorded/lite-2.13.0.ptl").read_bytes()
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


def loop_of(make, model):
    """A save of a loop of somebody's: this model, and an optimizer."""
    path = make.root / "run/step_6"
    value, payloads = make.state(6)
    make.write(path / "optimizer.pt", make.torch_file({"state": value, "param_groups": []}, payloads, "optimizer"))
    make.write(path / "model.pt", model)
    return path


def test_torchscript_beside_an_optimizer_of_a_loop(make):
    """It is the model: its bytes are looked at."""
    changed = bytearray(TORCHSCRIPT)
    changed[100] ^= 0x55  # a weight
    for model, valid in ((TORCHSCRIPT, True), (bytes(changed), False)):
        path = loop_of(make, model)
        assert ask(make, path).valid is True, ask(make, path)
        assert ask(make, path, "checksum").valid is valid, ask(make, path, "checksum")


def test_a_program_for_phones_has_more_compressed_than_code(make):
    """Torch compresses its debug information as well, which lies beside the code: the save was not known."""
    compressed = [info.filename for info in zipfile.ZipFile(io.BytesIO(LITE)).infolist() if info.compress_type]
    assert any(name.endswith("/callstack_debug_map.pkl") for name in compressed)
    for path in (saved(make, "accelerate", "model.ptl", LITE), loop_of(make, LITE)):
        assert ask(make, path).valid is True, ask(make, path)
    assert ask(make, path, "checksum").valid is True, ask(make, path, "checksum")


@pytest.mark.parametrize("name", ["callstack_debug_map.pkl", "delegated_backends.debug_pkl"])
def test_debug_information_that_is_damaged_or_too_much(make, name):
    more = renamed([(f"prog/{name}", random.Random(6).randbytes(999) + bytes(9999))])
    data = rewritten((name,), more=more)
    assert ask(make, loop_of(make, data), "content").valid is True, ask(make, make.root / "run/step_6", "content")
    changed = bytearray(data)
    changed[data.index(name.encode()) + len(name) + 400] ^= 0x55
    assert ask(make, loop_of(make, bytes(changed)), "checksum").valid is False
    answer = ask(make, loop_of(make, rewritten((name,), more=renamed([(f"prog/{name}", bytes(65 << 20))]))))
    assert answer.valid is None and "more than is inflated here" in answer.reason, answer


@pytest.mark.parametrize("name", ["x/callstack_debug_map.pkl", "bytecode.pkl", "mobile_debug_handles.pkl"])
def test_what_torch_does_not_compress_beside_code(make, name):
    answer = ask(make, loop_of(make, rewritten((name,), more=renamed([(f"prog/{name}", bytes(999))]))))
    assert answer.valid is None and f"{name} is compressed" in answer.reason, answer


def rewritten(deflate, change=lambda name, data: data, more=()):
    """The same program with other records compressed; ``more``: (name, bytes) of code besides."""
    source = zipfile.ZipFile(io.BytesIO(TORCHSCRIPT))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        records = [(info.filename, source.read(info)) for info in source.infolist()]
        for name, data in (*records, *more):
            method = zipfile.ZIP_DEFLATED if "/code/" in name or name.endswith(deflate) else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), change(name, data), compress_type=method)
    return written.getvalue()


def with_nan(name, data):
    return struct.pack("<f", math.nan) * (len(data) // 4) if "/data/" in name and "/.data/" not in name else data


@pytest.mark.parametrize("deflate", ["/data/0", "data.pkl", "version", "/constants.pkl"])
def test_a_program_of_which_more_than_the_code_is_compressed(make, deflate):
    """NaN in compressed weights was none; a compressed data.pkl was read as it lies there, and called damaged."""
    loop_of(make, rewritten(deflate, with_nan))
    for level in ("structural", "content"):
        answer = ask(make, make.root / "run/step_6", level)
        assert answer.valid is None and f"{deflate} is compressed" in answer.reason, answer


def test_nan_in_a_programs_weights(make):
    assert ask(make, loop_of(make, rewritten(("none",), with_nan)), "content").valid is False
    assert ask(make, loop_of(make, rewritten(("none",))), "content").valid is True


@pytest.mark.parametrize(("records", "size"), [(3, 31 << 20), (1, 65 << 20)])
def test_code_that_inflates_to_more_than_code_is(make, records, size):
    """Each record was limited, their sum was not: 5 MB took 11 s."""
    more = [(f"prog/code/x{index}.py", bytes(size)) for index in range(records)]
    answer = ask(make, loop_of(make, rewritten(("none",), more=renamed(more))), "checksum")
    assert answer.valid is None and "more than is inflated here" in answer.reason, answer


def renamed(more):
    prefix = zipfile.ZipFile(io.BytesIO(TORCHSCRIPT)).namelist()[0].partition("/")[0]
    return [(f"{prefix}/{name.partition('/')[2]}", data) for name, data in more]


def test_much_code_is_inflated_in_little_memory(make):
    more = renamed([("prog/code/x.py", bytes(48 << 20)), ("prog/code/y.py", random.Random(6).randbytes(3 << 20))])
    path = loop_of(make, rewritten(("none",), more=more))
    tracemalloc.start()
    answer = ask(make, path, "checksum")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.valid is True, answer
    assert peak < 32 << 20, peak


def check_inflated(packed, size, crc):
    record = zips.Record("a/code/x.py", 0, 0, size, crc, len(packed), deflated=True)
    opened = reading.Opened(zips.Archive({record.name: record}, "a"), Pickled(None, {}, []))
    reading.check_records(Bytes(packed), opened, records=[record], buffer=bytearray(1 << 20), what="x")


@pytest.mark.parametrize("change", ["cut", "longer", "shorter", "behind", "flipped"])
def test_compressed_code_that_is_damaged(change):
    """Inflated a piece at a time: what is cut, longer or shorter than it says, or followed by something, is seen."""
    plain = random.Random(6).randbytes(1 << 20) + bytes(5 << 20)
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = stream.compress(plain) + stream.flush()
    check_inflated(packed, len(plain), zlib.crc32(plain))
    size = len(plain) + {"longer": -1, "shorter": 1}.get(change, 0)
    damaged = {"cut": packed[:-3], "behind": packed + b"x", "flipped": packed[:9] + b"\xff" + packed[10:]}
    with pytest.raises(torch_file.Broken):
        check_inflated(damaged.get(change, packed), size, zlib.crc32(plain))


class Bytes:
    def __init__(self, data):
        self.data = data

    def read(self, offset, length):
        return self.data[offset : offset + length]

    def into(self, view, offset):
        view[:] = self.read(offset, len(view))
