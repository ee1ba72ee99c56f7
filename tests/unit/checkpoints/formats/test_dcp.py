"""PyTorch distributed checkpoints: what is whole is accepted, what is damaged is not."""

from __future__ import annotations

import os
import shutil
import struct

import pytest

from sentinel.checkpoints.validate import Settings, validate, validate_part

LEVELS = ("structural", "checksum", "content")


def ask(make, path, level="structural", **more):
    return validate(path, level, now_s=make.now_s, **more)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("per_rank", [False, True])
def test_accepts_whole(make, level, per_rank):
    answer = ask(make, make.dcp("run/step-10", per_rank=per_rank), level)
    assert (answer.valid, answer.step, answer.format, answer.level) == (True, 10, "dcp", level)


@pytest.mark.parametrize(("kind", "valid"), [("MCoreMetadata", True), ("SavePlan", False)])
def test_metadata_as_megatron_core_0_15_writes_it(make, kind, valid):
    make.metadata_type = ("megatron.core.dist_checkpointing.strategies.torch", kind)
    answer = ask(make, make.dcp("run/step-10"), "content")
    assert (answer.valid is True) == valid, answer.reason


@pytest.mark.parametrize(
    ("member", "valid"), [("TORCH_CONTIGUOUS_FORMAT", True), ("TORCH_CHANNELS_LAST", True), ("__class__", False)]
)
def test_enums_as_python_3_11_0_to_3_11_3_pickles_them(make, member, valid):
    make.memory_format = lambda: make.Call("builtins", "getattr", make.Name(make.META, "_MEM_FORMAT_ENCODING"), member)
    answer = ask(make, make.dcp("step-10"), "content")
    assert (answer.valid is True) == valid, answer.reason


def test_missing_shard_is_named(make):
    path = make.dcp("step-10")
    (path / "__2_0.distcp").unlink()
    answer = ask(make, path)
    assert answer.valid is False and "__2_0.distcp" in answer.reason


def test_truncated_shard(make):
    path = make.dcp("step-10")
    shard = path / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    make.age(shard, 3600)
    assert ask(make, path).valid is False


def test_zero_filled_tail_is_seen_by_structure(make):
    path = make.dcp("step-10")
    shard = path / "__1_0.distcp"
    data = shard.read_bytes()
    shard.write_bytes(data[:-64] + bytes(64))
    make.age(shard, 3600)
    assert ask(make, path).valid is False


def test_flipped_payload_is_seen_by_checksum_only(make):
    path = make.dcp("step-10")
    shard = path / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    at = data.index(b"archive/data/0") + 100
    data[at] ^= 0x10
    shard.write_bytes(data)
    make.age(shard, 3600)
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is False and "CRC-32" in answer.reason and answer.level == "checksum"


@pytest.mark.parametrize("per_rank", [False, True])
def test_overwritten_in_place_is_seen_by_time(make, per_rank):
    path = make.dcp("step-10", per_rank=per_rank)
    make.age(path / f"__{int(per_rank)}_0.distcp", 3000)  # of a rank that wrote the marker, too
    answer = ask(make, path)
    assert answer.valid is False and "overwritten" in answer.reason


def test_no_marker_is_being_written_while_fresh_and_invalid_later(make):
    path = make.dcp("step-10")
    (path / ".metadata").unlink()
    assert ask(make, path).valid is False
    make.age(path / "__3_0.distcp", 10)
    answer = ask(make, path)
    assert answer.valid is None and "being written" in answer.reason
    assert ask(make, path, settings=Settings(fresh_s=5)).valid is False


def test_missing_rank_without_collectives(make):
    path = make.dcp("step-10", per_rank=True)
    (path / "__3_0.distcp").unlink()
    (path / "__3.metadata").unlink()
    answer = ask(make, path)
    assert answer.valid is False and "cover" in answer.reason


def test_ranks_of_two_steps(make):
    path, other = make.dcp("step-10", per_rank=True), make.dcp("step-11", step=11, per_rank=True)
    for name in ("__2.metadata", "__2_0.distcp"):
        shutil.copy2(other / name, path / name)
    answer = ask(make, path)
    assert answer.valid is False and "different steps" in answer.reason


def test_step_inside_contradicts_the_name(make):
    answer = ask(make, make.dcp("step-50", step=10))
    assert answer.valid is None and "says 10" in answer.reason


def test_nan_is_seen_by_content_only(make):
    path = make.dcp("step-10", ranks=1, names=("model.w",), rows=1, width=4)
    data = struct.pack("<4f", 1.0, float("nan"), 0.0, 2.0)
    piece = make.torch_file(make.tensor((1, 4)), [data])
    step = make.torch_file(10)
    make.write(path / "__0_0.distcp", piece + step)
    stored = [
        ("model.w", (0, 0), "__0_0.distcp", 0, len(piece)),
        ("train_state.step", None, "__0_0.distcp", len(piece), len(step)),
    ]
    table = {"model.w": ("float32", (1, 4), [((0, 0), (1, 4))])}
    make.write(path / ".metadata", make.metadata(table, ["train_state.step"], stored), 1)
    assert ask(make, path, "checksum").valid is True
    answer = ask(make, path, "content")
    assert answer.valid is False and "NaN" in answer.reason


def test_no_checksum_recorded_is_not_known(make):
    path = make.dcp("step-10", ranks=1, names=("model.w",), rows=1, width=4)
    piece = make.torch_file(make.tensor((1, 4)), [make.floats(4)], crc=False)
    make.write(path / "__0_0.distcp", piece)
    table = {"model.w": ("float32", (1, 4), [((0, 0), (1, 4))])}
    stored = [("model.w", (0, 0), "__0_0.distcp", 0, len(piece))]
    make.write(path / ".metadata", make.metadata(table, [], stored), 1)
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "no checksum recorded" in answer.reason


def test_a_link_inside_is_not_followed(make):
    path = make.dcp("step-10")
    (path / "__1_0.distcp").rename(make.root / "elsewhere")
    (path / "__1_0.distcp").symlink_to(make.root / "elsewhere")
    answer = ask(make, path)
    assert answer.valid is None and "symbolic link" in answer.reason


def test_a_pipe_does_not_block(make):
    path = make.dcp("step-10")
    (path / "__1_0.distcp").unlink()
    os.mkfifo(path / "__1_0.distcp")
    assert ask(make, path).valid is None


def test_a_part_knows_its_ranks(make):
    path = make.dcp("run/step-10", per_rank=True)
    for rank in (0, 1, 2):
        (path / f"__{rank}_0.distcp").unlink()
        (path / f"__{rank}.metadata").unlink()
    part = validate_part(path, "checksum", tier="local", host="n4", root=make.root, now_s=make.now_s)
    assert (part.valid, part.owners, part.key, part.whole) == (True, {3}, "run/step-10", False)


@pytest.mark.parametrize("name", [".metadata", "__2.metadata"])
def test_a_save_over_it_that_broke_off(make, name):
    path = make.dcp("step-10", per_rank=name != ".metadata")
    make.write(path / f"{name}.tmp", b"x")
    answer = ask(make, path)
    assert answer.valid is False and "did not finish" in answer.reason


def test_a_shard_of_the_step_beside_it(make):
    """Whole, with right checksums, and of another save."""
    path, other = make.dcp("run/step-20", step=20), make.dcp("run/step-10", step=10)
    shutil.copy2(other / "__3_0.distcp", path / "__3_0.distcp")
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "two saves mixed" in answer.reason


@pytest.mark.parametrize("per_rank", [False, True])
def test_a_shard_copied_over_another_ranks(make, per_rank):
    """Whole, of the same length and shapes, with right checksums, and the numbers of another rank."""
    path = make.dcp("step-20", step=20, per_rank=per_rank)
    status = (path / "__2_0.distcp").stat()
    shutil.copy2(path / "__3_0.distcp", path / "__2_0.distcp")
    os.utime(path / "__2_0.distcp", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "a shard is there twice" in answer.reason


@pytest.mark.parametrize("state", ["just made", "without checksums"])
def test_ranks_that_may_well_be_the_same(make, monkeypatch, state):
    """A state that was just made is zeros on every rank; without checksums nothing is known of the numbers."""
    if state == "just made":
        monkeypatch.setattr(make, "floats", lambda count, dtype="float32", low=-1: bytes(4 * count))
    else:
        plain = make.torch_file
        monkeypatch.setattr(make, "torch_file", lambda *given, **named: plain(*given, **named | {"crc": False}))
    answer = ask(make, make.dcp("step-20", step=20), "checksum")
    assert answer.valid is (True if state == "just made" else None)
    assert "twice" not in answer.reason and "mixed" not in answer.reason


def test_replicas_of_one_shard_are_no_damage(make):
    """Without collectives every replica of a shard writes it: what is the same part has the same numbers."""
    path = make.dcp("step-20", step=20, per_rank=True, ranks=2)
    for name in ("0_0.distcp", "0.metadata"):
        data = (path / f"__{name}").read_bytes()
        make.write(path / f"__2{name[1:]}", data.replace(b"__0_0.distcp", b"__2_0.distcp"), name.endswith("metadata"))
    assert ask(make, path, "checksum").valid is True


ADAM = [
    name
    for layer in ("w", "v")
    for name in (f"model.{layer}", f"optim.state.{layer}.exp_avg", f"optim.state.{layer}.exp_avg_sq")
]


def with_pieces_of_another_save(make, names):
    """The pieces of those names of rank 3 are those of the save before, and the times are as they were."""
    path, other = (make.dcp(f"run/step-{step}", step=step, names=ADAM) for step in (20, 10))
    mine, theirs = path / "__3_0.distcp", (other / "__3_0.distcp").read_bytes()
    status, data = mine.stat(), bytearray(mine.read_bytes())
    length = len(data) // len(ADAM)
    for at in (ADAM.index(name) * length for name in names):
        data[at : at + length] = theirs[at : at + length]
    mine.write_bytes(data)
    os.utime(mine, ns=(status.st_atime_ns, status.st_mtime_ns))
    return path


@pytest.mark.parametrize("names", [ADAM[4:], ADAM[1:2], ADAM[4:5]])
def test_a_shard_of_which_a_part_is_of_another_save(make, names):
    path = with_pieces_of_another_save(make, names)
    assert ask(make, path).valid is True
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "exp_avg" in answer.reason and "two saves mixed" in answer.reason


@pytest.mark.parametrize("names", [ADAM[:3], ADAM[:1]])
def test_parameters_that_were_skipped_or_frozen_are_no_mix(make, names):
    """No gradient came, or the learning rate is 0: then the weights stay, and the moments with them or not."""
    assert ask(make, with_pieces_of_another_save(make, names), "checksum").valid is True


def trained(make, step, path):
    """As `ADAM`, with the learning rate and the count of steps of each parameter, saved into one shard."""
    rate = make.torch_file(1e-4)
    items, tensors, blobs, stored, data = {"optim.param_groups.0.lr": rate}, {}, ["optim.param_groups.0.lr"], [], b""
    for name in (*[f"model.{layer}" for layer in "wv"], *[n for n in ADAM if n.startswith("optim")]):
        items[name] = make.item((8, 16), low=0 if name.endswith("_sq") else -1)
        tensors[name] = ("float32", (8, 16), [((0, 0), (8, 16))])
    for layer in "wv":
        name = f"optim.state.{layer}.step"
        items[name] = make.torch_file(make.tensor(()), [struct.pack("<f", step)])
        tensors[name] = ("float32", (), [((), ())])
    for name, item in items.items():
        place = None if name in blobs else (0,) * len(tensors[name][1])
        stored.append((name, place, "__0_0.distcp", len(data), len(item)))
        data += item
    make.write(make.root / path / "__0_0.distcp", data)
    make.write(make.root / path / ".metadata", make.metadata(tensors, blobs, stored), 1)
    return make.root / path, {name: (at, length) for name, _, _, at, length in stored}


def with_tensors_of_another_save(make, names):
    (path, places), (other, _) = (trained(make, step, f"run/step-{step}") for step in (20, 10))
    data, theirs = bytearray((path / "__0_0.distcp").read_bytes()), (other / "__0_0.distcp").read_bytes()
    for at, length in (places[name] for name in names):
        data[at : at + length] = theirs[at : at + length]
    put(path / "__0_0.distcp", data)
    return path


def put(file, data):
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "names",
    [
        ["model.w"],
        ["model.w", "model.v", "optim.state.w.exp_avg"],
        ["optim.state.v.exp_avg_sq"],
        ["optim.state.w.step"],
        ["optim.state.w.step", "optim.state.v.step"],
    ],
)
def test_a_shard_that_begins_or_ends_as_another_saves(make, names):
    assert ask(make, trained(make, 30, "other/step-30")[0], "content").valid is True
    answer = ask(make, with_tensors_of_another_save(make, names), "checksum")
    assert answer.valid is None and "two saves mixed" in answer.reason


def test_a_parameter_that_did_not_learn_between_two_saves(make):
    names = ["model.w", *[f"optim.state.w.{name}" for name in ("step", "exp_avg", "exp_avg_sq")]]
    assert ask(make, with_tensors_of_another_save(make, names), "checksum").valid is True


@pytest.mark.parametrize(("dtype", "layout"), [("int32", "<i"), ("int64", "<q"), ("float32", "<f")])
def test_a_step_that_is_kept_in_a_tensor(make, dtype, layout):
    """As torchtitan did: the only shard is that of another step, and nothing else says so."""
    path = make.root / "run/step-20"
    for inside in (20, 10):
        item = make.torch_file(make.tensor((), dtype), [struct.pack(layout, inside)])
        weight = make.item((4, 4))
        make.write(path / "__0_0.distcp", weight + item)
        tensors = {"w": ("float32", (4, 4), [((0, 0), (4, 4))]), "train_state.step": (dtype, (), [((), ())])}
        places = [
            ("w", (0, 0), "__0_0.distcp", 0, len(weight)),
            ("train_state.step", (), "__0_0.distcp", len(weight), len(item)),
        ]
        make.write(path / ".metadata", make.metadata(tensors, [], places), 1)
        assert ask(make, path).valid is (True if inside == 20 or dtype == "float32" else None)


@pytest.mark.parametrize("other", ["model.w", "optim.state.w.exp_avg"])
def test_tensors_that_changed_places_with_a_second_moment(make, other):
    """Both are whole and of one shape; only the metadata, which has no checksum, says which is which."""
    path, places = trained(make, 20, "run/step-20")
    squares = places["optim.state.w.exp_avg_sq"]
    data = bytearray((path / "__0_0.distcp").read_bytes())
    for (at, length), (source, _) in ((squares, places[other]), (places[other], squares)):
        data[at : at + length] = (path / "__0_0.distcp").read_bytes()[source : source + length]
    put(path / "__0_0.distcp", data)
    for level in ("checksum", "content"):
        answer = ask(make, path, level)
        assert (
            answer.valid is False
            and "exp_avg_sq: " in answer.reason
            and "a negative average of squares" in answer.reason
        )


@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
def test_a_tensor_copied_over_one_of_another_name(make, kind):
    path, places = trained(make, 20, "run/step-20")
    data = bytearray((path / "__0_0.distcp").read_bytes())
    (mine, length), (theirs, _) = places[f"optim.state.w.{kind}"], places[f"optim.state.v.{kind}"]
    data[mine : mine + length] = data[theirs : theirs + length]
    put(path / "__0_0.distcp", data)
    answer = ask(make, path, "checksum")
    assert answer.valid is None and "there twice" in answer.reason


def test_without_checksums_the_step_beside_it_says_nothing(make, monkeypatch):
    plain = make.torch_file
    monkeypatch.setattr(make, "torch_file", lambda *given, **named: plain(*given, **named | {"crc": False}))
    path, _ = make.dcp("run/step-20", step=20), make.dcp("run/step-10", step=10_000)
    assert ask(make, path, "content", settings=Settings(unsummed=True)).valid is True


def test_a_copy_of_another_step_is_no_mix(make):
    """The same bytes in all shards: someone copied the folder. Nothing is mixed."""
    path = make.dcp("run/step-20", step=20)
    shutil.copytree(path, path.with_name("step-21"))
    assert ask(make, path.with_name("step-21"), "checksum").valid is True
