"""Pieces of distributed checkpoints that are no archives: compressed ones, and tensors serialised as safetensors."""

from __future__ import annotations

import pytest

from sentinel.checkpoints import manifest
from sentinel.checkpoints.validate import validate


def frame(payload, *, last=True, raw=False):
    """A zstd frame of one block (raw bytes, or one byte that is repeated)."""
    head = b"\x28\xb5\x2f\xfd\x00\x58"
    if raw:
        return head + (len(payload) << 3 | last).to_bytes(3, "little") + payload
    return head + (len(payload) << 3 | 2 | last).to_bytes(3, "little") + payload[:1]


def compressed(make, data):
    """A checkpoint of one compressed tensor."""
    path = make.root / "step-10"
    name = "__0_0.distcp"
    make.write(path / name, data)
    tensors = {"model.w": ("float32", (2, 2), [((0, 0), (2, 2))])}
    stored = [("model.w", (0, 0), name, 0, len(data))]
    make.write(path / ".metadata", make.metadata(tensors, [], stored, descriptors=["stream.zstd"]), 1)
    return path


GOOD_FRAMES = frame(b"a" * 900) + frame(b"some bytes", raw=True)


def test_compressed_pieces(make):
    path = compressed(make, GOOD_FRAMES)
    assert validate(path, "structural", now_s=make.now_s).valid is True
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and "compressed" in answer.reason


@pytest.mark.parametrize(
    "data",
    [
        bytes(len(GOOD_FRAMES)),
        b"PK" + GOOD_FRAMES[2:],
        GOOD_FRAMES[:-3],
        GOOD_FRAMES + b"abc",
        frame(b"a" * 900, last=False),
        GOOD_FRAMES[:10] + bytes(12) + GOOD_FRAMES[22:],
    ],
)
def test_damaged_frames(make, data):
    assert validate(compressed(make, data), "structural", now_s=make.now_s).valid is False


def serialised(make, tensors, header=None, tail=b""):
    """A shard whose tensors are one safetensors file behind the pieces that are bytes."""
    path = make.root / "step-10"
    name = "__0_0.distcp"
    piece = make.torch_file(10)
    data = piece + make.safetensors(
        {key: ("F32", shape, make.floats(shape[0] * shape[1])) for key, shape in (header or tensors).items()}
    )
    make.write(path / name, data + tail)
    stored = [("train_state.step", None, name, 0, len(piece))]
    stored += [(key, (0, 0), name, len(piece), 4 * a * b) for key, (a, b) in tensors.items()]
    described = {key: ("float32", shape, [((0, 0), shape)]) for key, shape in tensors.items()}
    make.write(path / ".metadata", make.metadata(described, ["train_state.step"], stored), 1)
    return path


@pytest.mark.parametrize("tensors", [{"model.w": (4, 4)}, {"model.w": (4, 4), "model.v": (8, 2)}])
def test_tensors_serialised_as_safetensors(make, tensors):
    path = serialised(make, tensors)
    assert validate(path, "structural", now_s=make.now_s).valid is True
    assert validate(path, "checksum", now_s=make.now_s).valid is None
    assert validate(path, "content", now_s=make.now_s).valid is None


@pytest.mark.parametrize(
    ("header", "tail"),
    [({"model.w": (4, 4)}, b""), ({"model.w": (4, 4), "model.v": (2, 8)}, b""), (None, b"x"),
     ({"model.w": (4, 4), "model.v": (8, 2), "model.x": (1, 1)}, b"")],
)  # fmt: skip
def test_tensors_serialised_as_safetensors_that_do_not_fit_the_metadata(make, header, tail):
    path = serialised(make, {"model.w": (4, 4), "model.v": (8, 2)}, header, tail)
    assert validate(path, "structural", now_s=make.now_s).valid is False


def test_a_nan_in_a_safetensors_part(make):
    path = serialised(make, {"model.w": (4, 4), "model.v": (8, 2)})
    file = path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[-4:] = b"\0\0\xc0\x7f"
    make.write(file, bytes(data))
    answer = validate(path, "content", now_s=make.now_s)
    assert answer.valid is False and "NaN" in answer.reason


def test_with_a_manifest_compressed_pieces_are_proven(make):
    path = compressed(make, GOOD_FRAMES)
    manifest.write(path)
    assert validate(path, "checksum", now_s=make.now_s).valid is True
    assert validate(path, "content", now_s=make.now_s).valid is None


@pytest.mark.parametrize(
    ("parts", "valid"), [(("/", "run", "step-20"), True), (("/", ("run",), "step-20"), False), ((None,), False)]
)
def test_the_path_that_it_was_saved_to(make, parts, valid):
    make.saved_to = make.Call("pathlib", "PosixPath", *parts)
    assert validate(make.dcp("step-20", step=20), "checksum", now_s=make.now_s).valid is valid


def test_a_piece_of_a_tensor_without_its_place(make):
    """A load asks for each piece by its place; only what is bytes has none."""
    path = make.root / "step-10"
    piece = make.item((2, 2))
    make.write(path / "__0_0.distcp", piece)
    tensors = {"model.w": ("float32", (2, 2), [((0, 0), (2, 2))])}
    for place, valid in (((0, 0), True), (None, False)):
        stored = [("model.w", place, "__0_0.distcp", 0, len(piece))]
        make.write(path / ".metadata", make.metadata(tensors, [], stored), 1)
        assert validate(path, "checksum", now_s=make.now_s).valid is valid


@pytest.mark.parametrize(("module", "name", "valid"), [("torch", "Size", True), ("torch", "device", False)])
def test_a_place_that_something_else_is_called_with(make, module, name, valid):
    """As where a reference in the pickle is to another name than the one of shapes."""
    make.size = lambda shape: make.Call(module, name, tuple(shape))
    assert validate(make.dcp("step-20", step=20), "checksum", now_s=make.now_s).valid is valid
