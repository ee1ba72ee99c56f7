"""States that NumPy and pickle wrote, in a step of a trainer of one's own."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import pytest

from sentinel.checkpoints.parsing import plain_states
from sentinel.checkpoints.validate import validate


def npy(count, kind="<f4", item=4, shape=None):
    head = str({"descr": kind, "fortran_order": False, "shape": shape or (count,)}).encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(range(1, 1 + item)) * count


def npz(method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("w", "b"):
            archive.writestr(f"{name}.npy", npy(64))
    return file.getvalue()


FILES = {
    "rng.npy": npy(624, "<u4"),
    "days.npy": npy(3, "<M8[s]", 8),
    "names.npy": npy(2, "<U2", 8),
    "grid.npy": npy(6, shape=(2, 3)),
    "params.npz": npz(),
    "loop.pkl": pickle.dumps({"step": 10, "seen": list(range(50))}, 4),
    "old.pickle": pickle.dumps({"step": 10}, 2),
    "scaler.pkl": b"\x80\x04\x8c\x13joblib.numpy_pickle\x8c\x12NumpyArrayWrapper\x93" + bytes(range(1, 90)) + b".",
    "two.pkl": pickle.dumps([1], 4) + pickle.dumps([2], 4),
}


def step(make, files):
    path = make.root / "run/step_10"
    for name, data in files.items():
        make.write(path / name, data)
        make.age(path / name, 3600)
    return path


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def test_whole_ones_beside_a_model(make):
    path = step(make, {**FILES, "model.pt": make.torch_file({"w": 1}, prefix="model")})
    for level in ("structural", "checksum", "content"):
        answer = ask(make, path, level)
        assert (answer.format, answer.valid, answer.step) == ("torch_folder", True, 10), answer


def test_where_they_are_the_model(make):
    """Then what has no checksum is doubtful, and nobody has looked for a NaN."""
    path = step(make, {"params.npz": FILES["params.npz"]})
    assert [ask(make, path, level).valid for level in ("structural", "checksum", "content")] == [True, True, None]
    path = step(make, {"loop.pkl": FILES["loop.pkl"]})
    answer = ask(make, path, "checksum")
    assert ask(make, path).valid is True and answer.valid is None and "loop.pkl" in answer.reason, answer


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: bytes(len(data))])
def test_damaged_ones(make, name, damage):
    path = step(make, {**FILES, name: damage(FILES[name])})
    answer = ask(make, path)
    assert answer.valid is None and name in answer.reason, answer  # it may be no part of the state


def test_a_flipped_bit_in_an_archive_of_numpy(make):
    data = bytearray(FILES["params.npz"])
    data[len(data) // 2 - 100] ^= 1
    path = step(make, {**FILES, "params.npz": bytes(data)})
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is False and "CRC-32" in answer.reason, answer


LARGE = 300_000  # numbers
BESIDE = {
    "seen.npy": npy(LARGE),
    "seen.pkl": pickle.dumps(bytes(4 * LARGE), 4),
    "stats.npz": npz(zipfile.ZIP_DEFLATED),
    "scaler.pkl": pickle.dumps({"mean": 1}, 4)[:-1] + b"joblib's arrays",
    "packed.pkl": b"\x78\x9c compressed",
    "two.npy": npy(5) + npy(7),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("model", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("level", ["structural", "checksum"])
def test_beside_a_model_they_are_no_state(make, name, model, level):
    tensors = {"w": ("F32", (4,), make.floats(4))}
    data = make.torch_file({"w": 1}, prefix="model") if model.endswith("pt") else make.safetensors(tensors)
    path = step(make, {model: data})
    without = ask(make, path, level)
    step(make, {name: BESIDE[name]})
    answer = ask(make, path, level)
    assert (answer.valid, answer.reason) == (without.valid, without.reason), answer


def test_several_arrays_in_one_file(make):
    two = npy(5) + npy(7)
    for data, valid in ((two, True), (two[:-1], None), (two + b"x", None)):
        assert ask(make, step(make, {"state.npy": data})).valid is valid


@pytest.mark.parametrize(
    "data", [npz(zipfile.ZIP_DEFLATED), b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 9000]
)
def test_what_is_not_read(make, data):
    name = "a.npy" if data[:1] == b"\x93" else "a.npz"
    assert ask(make, step(make, {name: data})).valid is not True


def test_folders_of_roles_and_ranks_in_a_step(make):
    """fairseq2's: one file per rank, four folders deep."""
    paths = []
    for at in (10, 20, 30):
        for role in ("model", "optimizer"):
            file = make.root / f"run/step_{at}/{role}/pp_00/tp_00/sdp_00.pt"
            make.write(file, make.torch_file({"at": at}, prefix="sdp_00"))
            make.age(file, 7200 - at * 60)
        paths.append(make.root / f"run/step_{at}")
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    (paths[2] / "model/pp_00/tp_00/sdp_00.pt").unlink()
    answer = ask(make, paths[2])
    assert answer.valid is None and "is missing" in answer.reason, answer


def test_a_folder_of_data_is_no_checkpoint(make):
    path = step(make, FILES)
    path.rename(path.with_name("features"))
    answer = ask(make, path.with_name("features"))
    assert answer.valid is None and "no known checkpoint format" in answer.reason, answer


def test_of_many_pickles_a_bounded_part_is_read(make, monkeypatch):
    """Of the others the two ends are looked at."""
    data = pickle.dumps({"step": 10, "seen": list(range(50))}, 4)
    path = step(make, {"a.pkl": data, "b.pkl": data[:40] + b"\xff" * 9 + data[49:]})
    assert ask(make, path).valid is None, ask(make, path)
    monkeypatch.setattr(plain_states, "PICKLE_BYTES", len(data) + 9)
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("large", ["a_params.pkl", "z_params.pkl"])
def test_what_is_too_large_to_be_read_costs_the_others_nothing(make, monkeypatch, large):
    """Before a damaged pickle it used up what may be read of all, and the save was valid."""
    data = pickle.dumps({"step": 10, "seen": list(range(50))}, 4)
    monkeypatch.setattr(plain_states, "PICKLE_BYTES", 2 * len(data))
    path = step(make, {large: pickle.dumps(bytes(9 * len(data)), 4), "opt.pkl": data})
    assert ask(make, path).valid is True, ask(make, path)
    make.write(path / "opt.pkl", data[:40] + b"\xff" * 9 + data[49:])
    assert ask(make, path).valid is None, ask(make, path)
