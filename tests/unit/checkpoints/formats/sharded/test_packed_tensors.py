"""Distributed checkpoints whose optimizer packs its states (torchao): float32 as described, codes and scales as stored."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.formats.dcp_parts import packed as packed_pieces
from sentinel.checkpoints.validate import validate

SHAPE, BLOCK = (64, 64), 256
CODES = SHAPE[0] * SHAPE[1]
FILE = "__0_0.distcp"
AVERAGE, SQUARES = "optim.state.w.exp_avg", "optim.state.w.exp_avg_sq"
LEVELS = ("structural", "checksum", "content")


def packed(make, *, appears=("float32", SHAPE), signed=True):
    """torchao's OptimState8bit, as torch pickles a class of tensors that wraps others."""
    names = ("torch._tensor", "torch._utils", "torchao.optim.subclass_8bit")
    layout = make.Call("torch.serialization", "_get_layout", "torch.strided")
    device = make.Call("torch", "device", "cpu")
    dtype, shape = appears
    kind = make.Name(names[2], "OptimState8bit")
    stated = (kind, make.Name("torch", dtype), shape, (shape[1], 1), 0, layout, device, False)
    held = {
        "codes": make.tensor(SHAPE, "uint8"),
        "scale": make.tensor((CODES // BLOCK,), key=1),
        "qmap": make.tensor((256,), key=2),
        "signed": signed,
        "block_size": BLOCK,
    }
    value = make.Call(
        names[0], "_rebuild_from_type_v2", make.Name(names[1], "_rebuild_wrapper_subclass"), kind, stated, held
    )
    payloads = [make.random.randbytes(CODES), make.floats(CODES // BLOCK, low=0), make.floats(256, low=0)]
    return make.torch_file(value, payloads)


def saved(make, step, moments=None, dtype="float32", folder="run", per_rank=False, rank=0):
    """What one rank saves: a weight, its two packed moments, the count of steps."""
    file = f"__{rank}_0.distcp"
    count = make.torch_file(make.tensor(()), [make.floats(1)])
    pieces = {"model.w": make.item(SHAPE), "optim.state.w.step": count}
    pieces |= moments or {AVERAGE: packed(make), SQUARES: packed(make, signed=False)}
    data, stored, described = b"", [], {}
    for name, piece in pieces.items():
        shape = () if name.endswith("step") else SHAPE
        kind = dtype if name in (AVERAGE, SQUARES) else "float32"
        described[name] = (kind, shape, [((0,) * len(shape), shape)])
        stored.append((name, (0,) * len(shape), file, len(data), len(piece)))
        data += piece
    path = make.root / folder / f"step-{step}"
    make.write(path / file, data, step)
    make.write(
        path / (f"__{rank}.metadata" if per_rank else ".metadata"), make.metadata(described, [], stored), step + 1
    )
    return path


@pytest.mark.parametrize("per_rank", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_states_of_eight_bits(make, level, per_rank):
    for path in [saved(make, step, per_rank=per_rank) for step in (10, 20, 30)]:
        answer = validate(path, level, now_s=make.now_s)
        assert answer.valid is True, answer.reason


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("per_rank", [False, True])
@pytest.mark.parametrize("wrong", ["float64", "shape", "plain", "no tensor"])
def test_what_is_too_short_and_states_no_such_tensor(make, wrong, per_rank, level):
    made = {
        "float64": lambda: packed(make),
        "shape": lambda: packed(make, appears=("float32", (64, 32))),
        "plain": lambda: make.item((64, 32)),
        "no tensor": lambda: make.torch_file({"codes": 1}),
    }[wrong]
    dtype = "float64" if wrong == "float64" else "float32"
    path = saved(make, 10, {AVERAGE: made(), SQUARES: made()}, dtype, per_rank=per_rank)
    answer = validate(path, level, now_s=make.now_s)
    assert answer.valid is False and AVERAGE in answer.reason, answer
    assert answer.level == "structural"


def test_shards_of_two_steps_are_known_by_their_codes(make):
    saved(make, 10)
    path = saved(make, 20)
    old, new = (make.root / "run/step-10" / FILE).read_bytes(), (path / FILE).read_bytes()
    moments = new.rindex(b"archive/data.pkl", 0, new.index(b"OptimState8bit")) - 30
    make.write(path / FILE, new[:moments] + old[moments:], 20)
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and "two saves mixed" in answer.reason, answer


def test_pieces_that_a_structural_check_reads(make, monkeypatch):
    """So many of the whole save, also where each rank describes its own."""
    asked, agree = [], packed_pieces.agree
    monkeypatch.setattr(packed_pieces, "_LOOKED_AT", 4)
    monkeypatch.setattr(packed_pieces, "agree", lambda item, *more: asked.append(item.file) or agree(item, *more))
    for rank in range(4):
        path = saved(make, 10, per_rank=True, rank=rank)
    assert validate(path, "structural", now_s=make.now_s).valid is True
    assert sorted(asked) == [f"__{rank}_0.distcp" for rank in range(4)]
