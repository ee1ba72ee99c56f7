"""The short way for pickles of plain data: the same values, and nothing that names, calls or fills the memory."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.inert_pickle import plain

SCALARS = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=300)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=30,
)


def rows(count, size=1000):
    stack = [{"name": f"step_{line}", "filename": "/srv/train.py", "line": line} for line in range(8)]
    return [
        {"number": n, "group": ("0", "default_pg"), "sizes": [[size, n % 7]], "frames": copy.deepcopy(stack)}
        for n in range(count)
    ]


@given(VALUES, st.integers(2, 5))
def test_plain_data_reads_back_the_same(value, protocol):
    found = plain.parts(pickle.dumps(value, protocol), "entries")
    assert found is not None
    assert list(found) == [value]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_large_table_comes_in_parts_that_hold_all_of_it(protocol):
    value = {"version": "2.10", "entries": rows(18_000), "after": {"0": 1}}
    data = pickle.dumps(value, protocol)
    assert len(data) > 3 * plain.PART_BYTES
    parts = list(plain.parts(data, "entries"))
    assert len(parts) >= 3
    assert [row for part in parts for row in part["entries"]] == value["entries"]
    assert [sorted(part) for part in parts] == [
        ["entries", "version"],
        *[["entries"]] * (len(parts) - 2),
        ["after", "entries"],
    ]


def test_parts_that_share_more_than_texts_and_frames_are_left_to_the_machine():
    value = {"version": "2.10", "entries": rows(11_000)}
    shared = ["one", "list", "for", "all"]
    for row in value["entries"]:
        row["shared"] = shared
    with pytest.raises(ValueError, match="sound"):
        list(plain.parts(pickle.dumps(value, 2), "entries"))


def test_parts_share_the_frames_of_stacks():
    value = {"version": "2.10", "entries": rows(40_000)}
    frame = {"name": "step", "filename": "/srv/train.py", "line": 1}
    for row in value["entries"]:
        row["frames"] = [frame, frame]
    parts = list(plain.parts(pickle.dumps(value, 2), "entries"))
    assert len(parts) >= 2
    assert [row for part in parts for row in part["entries"]] == value["entries"]


class Runs:
    def __reduce__(self):
        return os.getpid, ()


class Built:
    def __init__(self):
        self.field = 1


BIG = struct.pack("<I", 0x7FFFFFFF)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([Runs()], 2),
        pickle.dumps([Runs()], 4),
        pickle.dumps(Built(), 2),
        pickle.dumps([os.getpid], 4),
        pickle.dumps({1, 2}, 4),
        pickle.dumps(b"bytes", 4),
        b"\x80\x02(cos\ngetpid\no.",
        b"\x80\x02(ios\ngetpid\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02P1\n.",
        b"\x80\x02}}b.",
        b"\x80\x02]r" + BIG + b".",
        b"\x80\x02X" + BIG + b"short.",
        b"\x80\x05\x8d" + b"\xff" * 8 + b"short.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 33) + b"}.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"}.",
        b"\x80\x02\x8b" + BIG + b"1.",
        b"\x80\x02\x8a\x40" + b"\x01" * 64 + b".",
        b"\x80\x02I1\n.",
        b"\x80\x02" + b"(" * 100 + b"N" + b"t" * 100 + b".",
        b"\x80\x02" + b")\x85" * 20_000 + b"K\x01.",
        b"\x80\x02]" + b"2" * 50 + b".",
        pickle.dumps({"entries": rows(50)}, 2)[:-20],
        pickle.dumps([1], 2) + b"more",
        pickle.dumps([1], 0),
        b"",
        b"\x80",
        b"\x80\x02",
    ],
)
def test_all_else_is_left_to_the_machine(data):
    assert plain.parts(data, "entries") is None


@settings(max_examples=400)
@given(st.lists(st.sampled_from([b"(", b"]", b"}", b"a", b"s", b"e", b"u", b"t", b"\x86", b"K\x01", b"N", b"X\x01\0\0\0k",
                                 b"q\x01", b"h\x01", b"q\x02", b"h\x02", b")", b"\x88"]), max_size=40))  # fmt: skip
def test_any_order_of_these_opcodes_gives_plain_data_or_an_error(opcodes):
    data = b"\x80\x02" + b"".join(opcodes) + b"."
    parts = plain.parts(data, "entries")
    try:
        values = list(parts or ())
    except ValueError:
        return
    assert all(type(value) in (int, str, bool, type(None), list, dict, tuple) for value in values)


@pytest.mark.parametrize("filling", [b"}", b"]", b"}K\x01Ns", b"(N", b"K\x05"])
def test_memory_stays_bounded_whatever_fills_it(filling):
    data = b"\x80\x02(" + filling * ((plain.PART_BYTES + (plain.PART_BYTES >> 1)) // len(filling) - 10) + b"l."
    data = data.replace(b"l.", b"t.") if b"(" not in filling else data
    tracemalloc.start()
    try:
        list(plain.parts(data, "entries") or ())
    except ValueError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 150 << 20


def test_a_part_that_cannot_be_cut_is_left_to_the_machine():
    assert plain.parts(pickle.dumps(["x" * 9] * 10 + list(range(1 << 20)), 2), "entries") is None


def test_a_pickle_of_nothing_but_different_texts_is_left_to_the_machine():
    value = {"version": "2.10", "entries": [{"a": f"text {n}", "b": [f"other {n}", n]} for n in range(90_000)]}
    parts = plain.parts(pickle.dumps(value, 2), "entries")
    with pytest.raises(ValueError, match="texts"):
        list(parts)
