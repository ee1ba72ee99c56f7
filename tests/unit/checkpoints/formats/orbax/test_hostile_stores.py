"""Stores of OCDBT whose few bytes stand for more than a reader can hold, or look at."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from sentinel.checkpoints.files import Broken, NotKnown, scan
from sentinel.checkpoints.formats.jax import chunks, ocdbt, zarr

zstandard = pytest.importorskip("zstandard")
FILE = b"\x01\x03\x02d/0"  # a table of one data file


def number(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def framed(magic, body):
    data = b"\0\x01" + zstandard.compress(body)
    data = magic.to_bytes(4, "big") + (len(data) + 16).to_bytes(8, "little") + data
    return data + ocdbt.crc32c(data).to_bytes(4, "little")


def leaf(*columns):
    return framed(0x0CDB20DE, b"\0" + FILE + b"".join(columns))


@pytest.fixture
def store(tmp_path):
    def make(node):
        (tmp_path / "d").mkdir()
        (tmp_path / "d/0").write_bytes(node)
        version = b"\x01\x01\0" + bytes(2) + number(len(node)) + bytes(30)
        head = bytes(16) + b"\0\x01\x01\0\0"
        (tmp_path / "manifest.ocdbt").write_bytes(framed(0x0CDB3A2A, head + FILE + version))
        return scan(tmp_path)

    return make


def test_each_key_nearly_as_long_as_all_of_them(store, monkeypatch):
    long, count = 60_000, 20_000
    keys = number(count) + number(long) * (count - 1) + number(long) + b"\x01" * (count - 1) + b"k" * (long + count - 1)
    tree = store(leaf(keys, bytes(2 * count)))
    assert tree.files["d/0"].size < 1000
    monkeypatch.setattr(ocdbt, "_MOST_HELD_BYTES", 16 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(NotKnown, match="more keys than this reader takes"):
            list(ocdbt.spans(tree, inline={}))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_values_in_nodes_are_kept_up_to_the_same_bound(store, monkeypatch):
    count, each = 20, 1 << 20
    keys = number(count) + b"\0" * (count - 1) + b"\x01" * count + bytes(range(count))
    tree = store(leaf(keys, number(each) * count, bytes(count), bytes(count * each)))
    inline: dict[bytes, bytes] = {}
    assert list(ocdbt.spans(tree, inline=inline)) and len(inline) == count
    monkeypatch.setattr(ocdbt, "_MOST_HELD_BYTES", 16 << 20)
    with pytest.raises(NotKnown, match="more keys than this reader takes"):
        list(ocdbt.spans(tree, inline={}))


def test_arrays_with_more_chunks_than_are_looked_at(store, monkeypatch):
    told = json.dumps({"shape": [1000], "chunks": [1], "dtype": "<f4"}).encode()
    inline = {f"a{index}/.zarray".encode(): told for index in range(12)}
    tree, names = store(leaf(b"\0")), [f"a{index}" for index in range(12)]
    assert chunks.stored(tree, [], inline, names)["a3"].need == 1000
    monkeypatch.setattr(chunks, "_MOST_CHUNKS", 10_000, raising=False)
    with pytest.raises(NotKnown, match="more than 10000 chunks"):
        chunks.stored(tree, [], inline, names)


@pytest.mark.parametrize("version", [2, 3])
def test_names_of_chunks_are_short(version):
    """Of each dimension one separator: a long one, in each of many names, would be more than any reader can hold."""
    shape, cut = [100] * 2 + [1] * 20, [1] * 22
    two = {"shape": shape, "chunks": cut, "dtype": "<f4", "dimension_separator": "-" * 10_000}
    encoding = {"name": "default", "configuration": {"separator": "-" * 10_000}}
    three = {"shape": shape, "chunk_grid": {"configuration": {"chunk_shape": cut}}, "chunk_key_encoding": encoding}
    with pytest.raises(ValueError, match="separator"):
        zarr.chunk_names(two if version == 2 else three, version=version)


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (b"", r"does not start as it should \(zeros\)"),
        (b"\x0c\xdb\x3a\x2a" + (1 << 20).to_bytes(8, "little"), "it says 1048576 of itself"),
        (b"\x0c\xdb\x3a\x2a" + (1 << 30).to_bytes(8, "little"), "1073741824 bytes, more than this reader takes"),
    ],
)
def test_a_manifest_that_takes_no_disk_is_not_read_whole(tmp_path, monkeypatch, begins, words):
    """One of 3 GiB took twice as much memory, and one that begins as it should a core for as long as it was long."""
    monkeypatch.setattr(ocdbt, "crc32c", lambda _: pytest.fail("it is not summed"))
    with (tmp_path / "manifest.ocdbt").open("wb") as file:
        file.write(begins)
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises((NotKnown, Broken), match=words):
            list(ocdbt.spans(scan(tmp_path)))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_nodes_are_summed_up_to_a_bound_however_often_one_is_named(store, monkeypatch):
    count = 20
    keys = number(count) + b"\0" * (count - 1) + b"\x01" * count + bytes(range(count))
    tree = store(leaf(keys, b"\x01" * count, bytes(count), bytes(count)))
    summed = []
    right = ocdbt.crc32c
    monkeypatch.setattr(ocdbt, "crc32c", lambda data: summed.append(len(data)) or right(data))
    assert list(ocdbt.spans(tree))
    monkeypatch.setattr(ocdbt, "_MOST_SUMMED_BYTES", sum(summed) + 4)  # the last four of each are its sum
    summed.clear()
    with pytest.raises(NotKnown, match="more than this reader takes"):
        list(ocdbt.spans(tree))
    assert len(summed) == 1, "of the manifest"
    monkeypatch.setattr(ocdbt, "_MOST_SUMMED_BYTES", 1 << 20)
    monkeypatch.setattr(ocdbt, "_MOST_NODE_BYTES", tree.files["d/0"].size - 1)
    with pytest.raises(NotKnown, match=r"d/0: .* more than this reader takes"):
        list(ocdbt.spans(tree))


def zstd(content, stated):
    machine = zstandard.ZstdCompressor().compressobj(size=len(content) if stated else -1)
    return machine.compress(content) + machine.flush()


@pytest.mark.parametrize("stated", [True, False])
def test_a_frame_of_few_bytes_that_stands_for_very_many_is_not_known(stated):
    most = 1 << 20
    bomb = zstd(bytes(64 << 20), stated)
    tracemalloc.start()
    try:
        with pytest.raises(NotKnown, match="more than this reader takes"):
            ocdbt.inflate(bomb, most, "a node")
        assert len(bomb) < most / 16 and tracemalloc.get_traced_memory()[1] < 8 * most
    finally:
        tracemalloc.stop()
    short = zstd(bytes(most), stated)
    assert ocdbt.inflate(short, most, "a node") == bytes(most)
    with pytest.raises(Broken, match="damaged"):
        ocdbt.inflate(short[:-4], most, "a node")
