"""Reading a stretch at a time, and taking over what there are very many of."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel import inert_pickle
from sentinel.inert_pickle import (
    Limits,
    Opaque,
    PickleError,
    PickleTooLarge,
    load,
    load_counted,
    load_from,
    stream,
    survey,
)


class Key:
    def __init__(self, number):
        self.number = number


class Row:
    def __init__(self, place):
        self.place = place
        self.length = 100


class Box:
    def __init__(self, cells):
        self.cells = cells


def reader(data):
    def read(offset, length):
        assert offset + length <= len(data)
        return data[offset : offset + length]

    return read


def streamed(data, folds=None, rows=lambda key, value: 0, **more):
    return stream(reader(data), len(data), makers={}, folds=folds or {}, rows=rows, **more)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=6),
    max_leaves=30,
)


@given(values, st.integers(0, 5), st.integers(1, 40))
def test_in_stretches_of_any_length_the_same(value, protocol, window):
    data = pickle.dumps(value, protocol)
    before = survey.WINDOW_BYTES
    survey.WINDOW_BYTES = window
    try:
        assert streamed(data)[0] == value
    finally:
        survey.WINDOW_BYTES = before


@settings(max_examples=300)
@given(values, st.integers(0, 5), st.data())
def test_damage_in_stretches_is_an_error_or_a_value(value, protocol, data):
    raw = bytearray(pickle.dumps(value, protocol))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    before = survey.WINDOW_BYTES
    survey.WINDOW_BYTES = 24
    try:
        for piece in (bytes(raw), bytes(raw[:at])):
            try:
                whole = load(piece)
            except PickleError:
                whole = PickleError
            try:
                part = streamed(piece)[0]
            except PickleError:
                part = PickleError
            assert repr(part) == repr(whole)  # NaN is not itself
    finally:
        survey.WINDOW_BYTES = before


def many(count):
    cells = {Key(i): Row((i, 0)) for i in range(count)}
    return pickle.dumps({"boxes": Box([Row((i, i)) for i in range(count)]), "cells": cells})


def test_rows_and_folds_are_taken_over_in_order():
    seen = []

    def row(key, value):
        seen.append((key.get("number"), value))
        return 8

    value, census = streamed(
        many(3000), folds={"Row": lambda entry: (entry.get("place"), 8), "Box": lambda entry: (len(entry.get("cells")), 8)},
        rows=row,
    )  # fmt: skip
    assert value == {"boxes": 3000, "cells": {}}
    assert seen == [(i, (i, 0)) for i in range(3000)]
    assert {name.name for name in census.names} == {"Key", "Row", "Box"}
    assert dict(census.fields) == {"Key": ("number",), "Row": ("place", "length"), "Box": ("cells",)}


def test_what_is_taken_over_does_not_count():
    """What would be refused as objects is read in a fraction of the memory when its rows are taken over."""
    data = many(5_000)
    small = Limits(memory_bytes=4 << 20)
    with pytest.raises(PickleTooLarge):
        load(data, limits=small)
    folds = {"Row": lambda entry: (None, 0), "Box": lambda entry: (None, 0)}
    tracemalloc.start()
    try:
        streamed(data, folds=folds, limits=small)
        assert tracemalloc.get_traced_memory()[1] < small.memory_bytes
    finally:
        tracemalloc.stop()


def test_a_folded_object_that_is_met_again_is_the_folded_one():
    row = Row((1, 2))
    value, _ = streamed(pickle.dumps([row, row, row]), folds={"Row": lambda entry: (entry.get("place"), 8)})
    assert value == [(1, 2)] * 3


# (what it does, the program for each repetition: a fold is made of Row, and something stays behind every time)
_ROW = b"\x8c\x01m\x8c\x03Row\x93\x94)\x81"
HOSTILE = [
    b"h\x00)\x81" + b"2}(\x8c\x01ax" + b"}" * 40 + b"0" * 40 + b"ub",
    b"h\x00)\x81" + b"2" + b"}(\x8c\x01a]" + b"ub" + b"]]]]]]]]",
    b"]\x94" + b"h\x00)\x81}(\x8c\x01a" + b"h\x01" + b"(" + b"]" * 30 + b"eub0",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_memory_is_won_by_folding(piece):
    limits = Limits(memory_bytes=4 << 20)
    data = b"\x80\x04" + _ROW + b"0" + piece * 60_000 + b"."
    tracemalloc.start()
    try:
        with pytest.raises(PickleError):
            streamed(data, folds={"Row": lambda entry: (None, 0)}, limits=limits)
        assert tracemalloc.get_traced_memory()[1] < 4 * limits.memory_bytes
    finally:
        tracemalloc.stop()


def test_a_list_in_the_memo_is_no_place_to_hide():
    """Lists that the memo keeps grow inside of rows that are given back."""
    limits = Limits(memory_bytes=4 << 20)
    row = b"h\x00)\x81}(\x8c\x01a" + b"h\x01(" + b"\x8c\x40" + b"x" * 64 + b"]" * 20 + b"eub0"
    data = b"\x80\x04" + b"\x8c\x01m\x8c\x03Row\x93\x94]\x94" + row * 20_000 + b"."
    tracemalloc.start()
    try:
        with pytest.raises(PickleTooLarge):
            streamed(data, folds={"Row": lambda entry: (None, 0)}, limits=limits)
        assert tracemalloc.get_traced_memory()[1] < 4 * limits.memory_bytes
    finally:
        tracemalloc.stop()


def test_bytes_after_the_end_are_refused_unless_asked_for():
    data = pickle.dumps([1, 2])
    for read in (load, streamed, lambda raw: load_counted(raw)):
        with pytest.raises(PickleError, match="after its end"):
            read(data + b"N.")
    assert load_from(data + pickle.dumps("x"), len(data)) == ("x", len(data) + len(pickle.dumps("x")))


def test_an_outside_reference_needs_a_reader():
    data = b"\x80\x02X\x01\x00\x00\x00aQ."
    with pytest.raises(PickleError, match="outside"):
        load(data)
    assert load(data, persistent=lambda what: (what,)) == ("a",)


def test_tables_of_their_own_kind_keep_their_entries():
    value = load(pickle.dumps(OrderedDict(a=1, b=2)))
    assert isinstance(value, Opaque)
    assert value.items == [("a", 1), ("b", 2)]


def test_a_memo_index_that_no_pickle_has():
    with pytest.raises(PickleError, match="memo"):
        load(b"\x80\x02K\x01r\xff\xff\xff\xffj\xff\xff\xff\xff0.")
    assert inert_pickle.loads(b"\x80\x02K\x07r\xff\xff\xff\xff.") == 7
