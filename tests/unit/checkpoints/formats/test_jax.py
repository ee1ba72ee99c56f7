"""Checkpoints that Orbax (0.12.8 and 0.6.4, which leaves no commit_success.txt) and flax themselves wrote (recorded), whole
and damaged."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from sentinel.checkpoints import manifest
from sentinel.checkpoints.files import Broken, NotKnown, scan
from sentinel.checkpoints.formats.jax import zarr
from sentinel.checkpoints.formats.jax.ocdbt import Span, check_tails, crc32c, spans
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, record, validate

NOW_S = 2_000_000_000.0
LAYOUTS = ("manager/20", "zarr/checkpoint_20", "zarr3/checkpoint_20")


@pytest.fixture(params=["0.12.8", "0.6.4"])
def run(request, tmp_path):
    with tarfile.open(Path(__file__).parent / f"recorded/orbax-{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path / "run", filter="data")
    return tmp_path / "run"


def ask(path, level="structural", **more):
    return validate(path, level, now_s=NOW_S, settings=Settings(**more))


@pytest.mark.parametrize("layout", [*LAYOUTS, "manager/10"])
def test_what_orbax_wrote(run, layout):
    answer = ask(run / layout)
    assert (answer.valid, answer.format, answer.step) == (True, "orbax", int(layout[-2:])), answer
    assert ask(run / layout, "checksum").valid is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_left_behind_later_is_no_overwrite(run, layout):
    for name in ("core.4711", ".nfs000000000001a2b3", "notes.txt~"):
        (run / layout / name).write_bytes(b"left behind")
        os.utime(run / layout / name, (NOW_S - 1, NOW_S - 1))
    assert ask(run / layout).valid is True


@pytest.mark.parametrize("layout", [*LAYOUTS, "manager/10"])
def test_what_somebody_put_beside_it_later_is_no_overwrite(run, layout):
    for name in ("model.pth", "notes.txt", "eval.json"):
        (run / layout / name).write_bytes(b"{}")
        os.utime(run / layout / name, (NOW_S - 1, NOW_S - 1))
    assert ask(run / layout).valid is True


def test_steps_are_found_in_their_order(run):
    for folder in ("manager", "zarr"):
        parts = listing(run / folder, "global", None, now_s=NOW_S)
        assert [(part.step, part.valid) for part in parts] == [(20, True), (10, True)], parts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_a_manifest_its_bytes_are_proven_and_its_numbers_are_not(run, layout, tmp_path):
    kept = record(run / layout, tmp_path / "kept", lambda count: None, now_s=NOW_S)
    assert kept.level == "checksum"
    assert ask(run / layout, "checksum", manifests=tmp_path / "kept").valid is True
    assert ask(run / layout, "content", manifests=tmp_path / "kept").valid is None
    manifest.write(run / layout)
    assert ask(run / layout, "checksum").valid is True
    assert ask(run / layout, "content").valid is None


def needed(path):
    """The files that a restore reads."""
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and "ocdbt.process" not in str(file.parent) and file.name not in ("_sharding", "process_0")
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_file(run, layout, tmp_path):
    for file in needed(run / layout):
        if file.name == "metadata" and not (run / layout).with_name("10").exists():
            continue  # of an item of plain JSON: only the step beside has it
        broken = tmp_path / "broken" / Path(layout).name
        shutil.rmtree(tmp_path / "broken", ignore_errors=True)
        shutil.copytree((run / layout).parent, tmp_path / "broken")
        (broken / file.relative_to(run / layout)).unlink()
        answer = ask(broken)
        optional = file.name == "commit_success.txt" and file.parent != run / layout
        assert answer.valid is not True or optional, (file, answer)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_cut_short_or_empty(run, layout):
    for file in needed(run / layout):
        if file.name == "commit_success.txt":
            continue  # what is in it says nothing
        good, status = file.read_bytes(), file.stat()
        for cut in (0, len(good) // 2):
            file.write_bytes(good[:cut])
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert ask(run / layout).valid is not True, (file, cut)
        file.write_bytes(good)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(run / layout).valid is True


def test_data_that_the_store_refers_to(run):
    tree = scan(run / "manager/20/state")
    referred = {span.file for span in spans(tree)}
    assert any(name.startswith("ocdbt.process_0/d/") for name in referred)
    for name in referred:
        good = (run / "manager/20/state" / name).read_bytes()
        (run / "manager/20/state" / name).unlink()
        answer = ask(run / "manager/20")
        assert answer.valid is False and "referred to" in answer.reason
        (run / "manager/20/state" / name).write_bytes(good[:-1])
        assert ask(run / "manager/20").valid is False
        (run / "manager/20/state" / name).write_bytes(good)
        os.utime(run / "manager/20/state" / name, (1e9, 1e9))


@pytest.mark.parametrize("at", range(0, 110, 7))
def test_a_flipped_bit_in_the_manifest_of_a_store(run, at):
    file = run / "manager/20/state/manifest.ocdbt"
    data, status = bytearray(file.read_bytes()), file.stat()
    data[at] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(run / "manager/20").valid is False


def test_values_that_became_zeros(run):
    """Their file has no node of the tree in it, so no checksum tells."""
    item = run / "manager/20/state"
    found = {span for span in spans(scan(item)) if span.value}
    for name in {span.file for span in found}:
        data = bytearray((item / name).read_bytes())
        for span in found:
            if span.file == name:
                data[span.offset : span.offset + span.length] = bytes(span.length)
        (item / name).write_bytes(data)
    answer = ask(run / "manager/20")
    assert answer.valid is None and "zeros" in answer.reason, answer


def test_a_save_that_was_not_committed(run):
    folder = (run / "manager/20").rename(run / "manager/20.orbax-checkpoint-tmp-17")
    answer = ask(folder)
    assert answer.valid is False and "committed" in answer.reason
    file = run / "manager/10/_CHECKPOINT_METADATA"
    told = json.loads(file.read_text()) | {"commit_timestamp_nsecs": None}
    file.write_text(json.dumps(told))
    assert ask(run / "manager/10").valid is False


def test_without_zstandard_a_store_is_not_known(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    answer = ask(run / "manager/20")
    assert answer.valid is None and "zstandard" in answer.reason
    assert ask(run / "zarr/checkpoint_20").valid is True


def test_the_checksum_of_the_store():
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("run", ["0.12.8"], indirect=True)
def test_flax(run):
    path = run / "checkpoint_70.msgpack"
    assert (ask(path).valid, ask(path).step, ask(path, "checksum").valid) == (True, 70, None)
    assert ask(path, "content").valid is None
    good = path.read_bytes()
    for cut in (0, 1, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        assert ask(path).valid is False, cut
    for bad in (good + b"\0", bytes(len(good)), b"\xc1" + good[1:]):
        path.write_bytes(bad)
        assert ask(path).valid is False


@pytest.mark.parametrize("run", ["0.12.8"], indirect=True)
def test_the_names_that_flax_gives_are_found(run):
    """``flax.training.checkpoints`` writes files named like folders."""
    (run / "flax").mkdir()
    for step in (9, 10):
        shutil.copy(run / "checkpoint_70.msgpack", run / f"flax/checkpoint_{step}")
    parts = listing(run / "flax", "global", None, now_s=NOW_S)
    assert [(part.format, part.step, part.valid) for part in parts] == [
        ("flax_msgpack", 10, True),
        ("flax_msgpack", 9, True),
    ]


def test_a_value_whose_end_was_lost(run):
    item = run / "manager/20/state"
    last = max((span for span in spans(scan(item)) if span.value), key=lambda span: span.offset)
    file = item / last.file
    data, times = bytearray(file.read_bytes()), file.stat()
    data[last.offset + last.length - 100 : last.offset + last.length] = bytes(100)
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    answer = ask(run / "manager/20")
    assert answer.valid is None and "ends with zeros" in answer.reason, answer


def compressed(path):
    """Of the largest value in each data file: the file, and where its middle is."""
    values: dict[Path, Span] = {}
    for folder in {file.parent for file in path.rglob("manifest.ocdbt") if "process_" not in str(file.parent)}:
        for span in spans(scan(folder)):
            if span.value and span.length > values.get(folder / span.file, Span("", 0, 0)).length:
                values[folder / span.file] = span
    places = {file: span.offset + span.length // 2 for file, span in values.items() if span.length > 200}
    chunks = [file for file in path.rglob("*") if file.is_file() and file.parent.name not in ("d", "array_metadatas")]
    return places or {
        file: file.stat().st_size // 2
        for file in chunks
        if file.stat().st_size > 200 and b"{" not in file.read_bytes()[:1]
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_of_a_value_that_was_lost(run, layout, tmp_path):
    """Its ends are whole. No level but structural is proven without checksums, and none may be recorded of it."""
    places = compressed(run / layout)
    assert places
    for file, middle in places.items():
        good, status = file.read_bytes(), file.stat()
        file.write_bytes(good[: middle - 40] + bytes(80) + good[middle + 40 :])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        answer = ask(run / layout, "checksum")
        assert answer.valid is False and "damaged" in answer.reason, (file, answer)
        with pytest.raises(Broken):
            record(run / layout, tmp_path / "kept", lambda count: None, now_s=NOW_S)
        file.write_bytes(good)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert record(run / layout, tmp_path / "kept", lambda count: None, now_s=NOW_S).level == "checksum"


def test_strings_lie_in_a_file_of_their_own(run):
    """The description names them; no array is missing without them, and no load succeeds."""
    item = run / "manager/20/state"
    file, strings = item / "_METADATA", item / "_strings.json"
    times = file.stat()
    told = json.loads(file.read_text())
    entry = {"key_metadata": [{"key": "name", "key_type": 2}], "value_metadata": {"value_type": "string"}}
    told["tree_metadata"]["('name',)"] = entry
    for text, valid in (('{"name": "a run"}', True), ('{"name": "a r', False), ("", False), (None, False)):
        strings.unlink() if text is None else strings.write_text(text)
        file.write_text(json.dumps(told))
        for changed in (file, strings):
            if changed.exists():
                os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
        answer = ask(run / "manager/20")
        assert answer.valid is valid and (valid or "_strings.json" in answer.reason), answer


def test_how_arrays_are_sharded_is_missing(run):
    (run / "manager/20/state/_sharding").unlink()
    answer = ask(run / "manager/20")
    assert answer.valid is False and "_sharding is missing" in answer.reason, answer


def frame(*blocks):
    """A frame of zstd of one segment: (kind, what is in it) of each block."""
    data = b"\x28\xb5\x2f\xfd\xa0" + (4096).to_bytes(4, "little")
    for index, (kind, inside) in enumerate(blocks):
        size = 4096 if kind == 1 else len(inside)
        data += (size << 3 | kind << 1 | (index == len(blocks) - 1)).to_bytes(3, "little") + inside
    return data


ENDS = bytes(range(1, 200)) + bytes(100)


def test_a_chunk_of_zarr_whose_end_was_lost(tmp_path):
    """Numbers that do not compress are stored as they are: nothing but the zeros themselves shows it."""
    make = Path(tmp_path / "w")
    make.mkdir()
    told = {"shape": [64, 64], "chunks": [64, 64], "dtype": "<f4", "compressor": {"id": "zstd"}, "fill_value": None}
    (make / ".zarray").write_text(json.dumps(told))
    for stored, doubted in ((b"stored" * 1000, False), (b"stored" * 500 + bytes(3000), True)):
        (make / "0.0").write_bytes(frame((0, stored)))
        if doubted:
            with pytest.raises(NotKnown, match="ends with zeros"):
                zarr.check(scan(tmp_path), "w", all_stored=True)
        else:
            zarr.check(scan(tmp_path), "w", all_stored=True)


def test_a_value_in_a_store_without_what_the_others_have(tmp_path):
    def shard(numbers):
        index = (0).to_bytes(8, "little") + len(numbers).to_bytes(8, "little")
        return numbers + index + crc32c(index).to_bytes(4, "little")

    whole, packed = shard(b"numbers" * 40), frame((0, b"stored" * 48))
    lost, nothing = whole[:-90] + bytes(90), bytes(len(whole))
    assert len(packed) == len(whole)
    for first, second, doubted in (
        (whole, whole, False),
        (whole, lost, True),
        (packed, packed, False),
        (packed, nothing, True),
        (b"plain" * 60, nothing, False),
    ):
        (tmp_path / "d").write_bytes(first + second)
        values = [Span("d", at, len(whole), value=True) for at in (0, len(whole))]
        if doubted:
            with pytest.raises(NotKnown, match="ends with zeros"):
                check_tails(scan(tmp_path), values)
        else:
            check_tails(scan(tmp_path), values)


@pytest.mark.parametrize(
    ("data", "doubted"),
    [
        (frame((0, ENDS)), False),
        (frame((2, b"compressed" * 9), (0, ENDS)), False),
        (frame((2, b"compressed" * 9), (1, b"\0"), (0, ENDS)), False),
        (frame((2, ENDS)), True),
        (frame((0, b"stored" * 30), (2, ENDS)), True),
        (frame((0, b"stored" * 30), (2, b"compressed" * 9))[:-93] + bytes(93), True),
        (frame((3, ENDS)), False),
        (frame((0, b"stored" * 500 + bytes(1000))), False),
        (frame((2, b"compressed" * 9), (0, b"stored" * 500 + bytes(3000))), True),
    ],
)
def test_a_block_that_is_stored_may_end_with_zeros(tmp_path, data, doubted):
    """zstd keeps small numbers of whole types as they are where that is shorter. A short value may lie behind."""
    (tmp_path / "d").write_bytes(b"before" + data + bytes(20))
    values = [Span("d", 6, len(data), value=True), Span("d", 6 + len(data), 20, value=True)]
    if doubted:
        with pytest.raises(NotKnown, match="ends with zeros"):
            check_tails(scan(tmp_path), values)
    else:
        check_tails(scan(tmp_path), values)
