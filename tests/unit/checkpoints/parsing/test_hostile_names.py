"""Pickles that would run something when they are loaded, and files made to exhaust whoever reads them."""

from __future__ import annotations

import tracemalloc

import pytest

from sentinel.checkpoints.files import Handle
from sentinel.checkpoints.parsing.pickle_names import judge, runs_code
from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def hostile(make, module, name):
    return {"model": {"w.weight": make.tensor((4, 4))}, "x": make.Call(module, name, "true")}


NAMES = [("os", "system"), ("posix", "system"), ("builtins", "eval"), ("__builtin__", "exec"), ("subprocess", "Popen"),
         ("importlib", "import_module"), ("runpy", "run_path"), ("shutil", "rmtree"), ("torch.hub", "load"),
         ("builtins", "__import__"), ("torch", "load"), ("numpy", "load")]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), NAMES)
@pytest.mark.parametrize("level", ["structural", "content"])
def test_a_file_that_would_run_something_is_never_valid(make, module, name, level):
    path = make.root / "step_5.pt"
    make.write(path, make.torch_file(hostile(make, module, name), [make.floats(16)]))
    answer = ask(make, path, level)
    assert answer.valid is None and f"{module}.{name}" in answer.reason


@pytest.mark.parametrize("place", ["optimizer.pt", "extra.pt"])
def test_in_any_file_of_a_folder(make, place):
    path = make.hf("checkpoint-6")
    make.write(path / place, make.torch_file({"state": {}, "x": make.Call("os", "system", "true")}))
    answer = ask(make, path)
    assert answer.valid is None and "os.system" in answer.reason


def test_in_a_piece_of_bytes(make):
    path = make.dcp("step-5", step=5)
    piece = make.torch_file(make.Call("os", "system", "true"))
    make.write(path / "__0_0.distcp", piece)
    stored = [("train_state.step", None, "__0_0.distcp", 0, len(piece))]
    make.write(path / ".metadata", make.metadata({}, ["train_state.step"], stored), 1)
    for rank in range(1, 4):
        (path / f"__{rank}_0.distcp").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "os.system" in answer.reason


def test_what_weights_only_refuses_is_said_and_no_damage(make):
    path = make.root / "step_5.pt"
    value = {"model": {"w.weight": make.tensor((4, 4))}, "args": make.Made("argparse", "Namespace", {"lr": 0.1})}
    make.write(path, make.torch_file(value, [make.floats(16)]))
    answer = ask(make, path)
    assert answer.valid is True and "argparse.Namespace" in answer.reason


def test_what_training_states_name_is_harmless():
    for name in ("collections.OrderedDict", "torch.FloatStorage", "argparse.Namespace", "pathlib.PosixPath",
                 "signal.Signals",
                 "numpy._core.multiarray._reconstruct", "transformers.training_args.TrainingArguments", "builtins.getattr",
                 "datetime.datetime", "__main__.Config", "functools.partial", "torch.distributed.tensor.DTensor",
                 "builtins.ValueError", "testing_tools.X"):  # fmt: skip
        assert not runs_code(name), name
    assert judge(["torch.bfloat16", "torch.Size", "torch._utils._rebuild_tensor_v2"], "x") == ""


def deep(open_, close):
    return b"\x80\x02" + open_ * 2_000_000 + close


@pytest.mark.parametrize("data", [deep(b"]", b"a" * 1_999_999 + b"."), deep(b"(", b"t" * 2_000_000 + b".")])
def test_two_million_levels_are_bounded(make, data):
    """A value so deep is read, or refused for its size; nothing in the reader recurses."""
    path = make.root / "step_5.pt"
    make.write(path, make.torch_zip([("data.pkl", data), ("version", b"3\n")]))
    answer = ask(make, path, "content")
    assert answer.valid is True or "MB of objects" in answer.reason


@pytest.mark.parametrize("unit", [b"[],", b'{"a":{}},', b"1,", b'"abcdefgh",'])
def test_a_header_of_safetensors_is_bounded(make, unit):
    body = b'{"a":[' + unit * ((11 << 20) // len(unit)) + b"0]}"
    path = make.root / "step_5.safetensors"
    make.write(path, len(body).to_bytes(8, "little") + body)
    del body
    tracemalloc.start()
    answer = ask(make, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.valid is not True and peak < 150 << 20, (answer, peak)


def test_a_header_of_160_mb_is_not_read(make, monkeypatch):
    path = make.root / "step_5.safetensors"
    make.write(path, (160 << 20).to_bytes(8, "little") + b"{")
    with path.open("r+b") as file:
        file.truncate(161 << 20)
    read: list[int] = []
    real = Handle.read
    monkeypatch.setattr(
        Handle, "read", lambda self, offset, length: (read.append(length), real(self, offset, length))[1]
    )
    answer = ask(make, path)
    assert answer.valid is False and sum(read) < 1000
