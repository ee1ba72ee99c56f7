"""The inert pickle reader: the same plain data as the ordinary one, and no harm from any bytes."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.inert_pickle import Limits, Name, Opaque, PickleError, PickleTooLarge, PickleTorn, loads, salvage

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=5) | st.integers(-(2**40), 2**40)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(KEYS, inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
        ),
        max_leaves=20,
    )


@given(nested(SCALARS), st.integers(0, 5))
def test_plain_data_of_every_protocol_reads_back_the_same(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


@given(nested(SCALARS | st.binary()), st.integers(3, 5))
def test_bytes_are_plain_where_the_protocol_has_them(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


@given(st.frozensets(KEYS), st.sets(KEYS), st.binary())
def test_sets_and_bytearrays(frozen, plain, raw):
    value = {"f": frozen, "s": plain, "b": bytearray(raw)}
    read = loads(pickle.dumps(value, 5))
    assert read == value
    assert [type(part) for part in read.values()] == [frozenset, set, bytearray]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=300))
def test_shared_values_stay_shared(texts):
    shared = {"texts": texts}
    read = loads(pickle.dumps([shared, shared], 4))
    assert read[0] is read[1]
    assert read[0] == shared


class Runs:
    """Pickles as a call of ``os.system``."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_call_is_kept_as_data_and_not_made(protocol, tmp_path):
    trace = tmp_path / "ran"
    value = loads(pickle.dumps({"x": Runs(f"touch {trace}")}, protocol))
    made = value["x"]
    assert isinstance(made, Opaque)
    assert (made.qualified, made.args) == (f"{os.system.__module__}.system", (f"touch {trace}",))
    assert not trace.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'false'\ntR.",
        b"(S'false'\nios\nsystem\n.",
        b"(cos\nsystem\nS'false'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05false\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05false\x85\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05false\x85}\x92.",
    ],
)
def test_every_way_to_call_gives_the_same_inert_object(program):
    made = loads(program)
    assert (made.module, made.name, made.args) == ("os", "system", ("false",))


def test_only_the_callers_makers_are_called():
    program = b"ctorch.jit._pickle\nbuild_intlist\n(]q\x00(K\x01K\x02etR."
    assert isinstance(loads(program), Opaque)
    assert loads(program, makers={("torch.jit._pickle", "build_intlist"): tuple}) == (1, 2)
    with pytest.raises(PickleError):  # the result of a call cannot be called again
        loads(b"cos\nsystem\n)R)R.")


def test_state_and_items_of_an_object_are_kept():
    made = loads(b"\x80\x02cm\nThing\n)R}X\x01\x00\x00\x00aK\x01sb(K\x02K\x03e.")
    assert (made.state, made.items) == ({"a": 1}, [2, 3])


def test_values_shared_to_explode_are_refused():
    laughs = b"\x80\x04" + b"]\x94" + b"".join(b"(" + b"h" + bytes([i]) + b"2" * 9 + b"l\x94" for i in range(30)) + b"."
    with pytest.raises(PickleTooLarge, match="values"):
        loads(laughs)


def test_a_tower_of_shared_tuples_as_key_costs_no_time():
    tower = b"\x80\x04}K\x01" + b"2\x86" * 60 + b"K\x01s."
    with pytest.raises(PickleError, match="key"):
        loads(tower)


def test_integer_keys_made_to_collide_are_refused():
    modulus = (1 << 61) - 1
    with pytest.raises(PickleError, match="60 bits"):
        loads(pickle.dumps({modulus * n: n for n in range(1, 4)}))


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\xff.",
        b"\x80\x04B\xff\xff\xff\xff.",
        b"\x80\x04\x8e" + b"\xff" * 8 + b".",
        b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.",
        b"\x80\x04X\xff\xff\xff\xffab.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    ],
)
def test_lengths_past_the_end_allocate_nothing(program):
    tracemalloc.start()
    try:
        with pytest.raises(PickleTorn):
            loads(program)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_memo_index_beyond_everything_takes_no_memory():
    tracemalloc.start()
    try:
        assert loads(b"\x80\x02K\x01r\xff\xff\xff\xff.") == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_huge_integers_are_refused():
    with pytest.raises(PickleTooLarge):
        loads(pickle.dumps(1 << 100_000))
    with pytest.raises(PickleTooLarge):
        loads(b"L" + b"9" * 100_000 + b"L\n.")


@pytest.mark.parametrize("program", [b"]" * 5000 + b"a" * 4999 + b".", b")" + b"\x85" * 5000 + b"."])
def test_deep_nesting_is_refused(program):
    with pytest.raises(PickleTooLarge, match="deep"):
        loads(program)
    assert loads(b"]" * 100 + b"a" * 99 + b".")


def test_a_list_in_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(PickleError, match="itself"):
        loads(pickle.dumps(value))


@pytest.mark.parametrize("op", [b"]", b"}", b"\x8f", b"(", b"]\x94", b")"])
def test_objects_beyond_the_budget_are_refused_within_it(op):
    limits, times = Limits(memory_bytes=1 << 20), 750_000
    tracemalloc.start()
    try:
        with pytest.raises(PickleTooLarge):
            loads(b"\x80\x04" + op * times + b".", limits=limits)
        assert tracemalloc.get_traced_memory()[1] < (times * 2 + 1024) + 2 * limits.memory_bytes
    finally:
        tracemalloc.stop()


def test_more_bytes_than_allowed_are_refused():
    with pytest.raises(PickleTooLarge, match="bytes"):
        loads(pickle.dumps(b"x" * 100), limits=Limits(data_bytes=50))


@pytest.mark.parametrize("protocol", range(6))
def test_cut_at_every_byte_is_a_clean_error_and_salvage_keeps_the_front(protocol):
    value = {"version": "1", "status": {"a": 1, "b": [1, 2, 3]}, "entries": [{"n": i, "t": (i, "x")} for i in range(5)]}
    whole = pickle.dumps(value, protocol)
    assert salvage(whole) == (value, True)
    kept = []
    for cut in range(len(whole)):
        with pytest.raises(PickleError):
            loads(whole[:cut])
        try:
            part, complete = salvage(whole[:cut])
        except PickleError:
            continue
        assert not complete
        if isinstance(part, dict) and "entries" in part:
            assert part["status"] == value["status"]
            kept.append(len(part["entries"]))
    assert kept == sorted(kept)
    assert kept[-1] >= 4


def is_tree(value: object, depth: int = 0) -> bool:
    """Whether whoever walks it comes to plain data, names and what was not called, and to an end."""
    if depth > 2 * Limits().depth:
        return False
    if isinstance(value, Opaque):
        return all(is_tree(part, depth + 1) for part in (value.maker, value.args, value.state, value.items))
    if type(value) is dict:
        return all(is_tree(part, depth + 1) for pair in value.items() for part in pair)
    if type(value) in (list, tuple, set, frozenset):
        return all(is_tree(part, depth + 1) for part in value)
    return type(value) in (type(None), bool, int, float, str, bytes, bytearray, Name)


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_pickle_error(raw):
    for read in (loads, salvage):
        try:
            found = read(b"\x80\x04" + raw)
        except PickleError:
            continue
        assert is_tree(found)


@settings(max_examples=500)
@given(
    st.lists(st.sampled_from([bytes([op]) for op in b"(.012NR}el]ostu)abQ\x81\x85\x86\x87\x90\x91\x92\x93\x94\x8f"]))
)
def test_any_order_of_opcodes_gives_a_value_or_a_pickle_error(ops):
    for read in (loads, salvage):
        try:
            found = read(b"\x8c\x01m\x8c\x01n" + b"".join(ops) + b".")
        except PickleError:
            continue
        assert is_tree(found)


@given(nested(SCALARS), st.data())
def test_damage_gives_a_value_or_a_pickle_error(value, data):
    raw = bytearray(pickle.dumps(value, 4))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    try:
        found = loads(bytes(raw))
    except PickleError:
        return
    assert is_tree(found)


@pytest.mark.parametrize("op", [b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00", b"\x97", b"\x98", b"\xff"])
def test_what_plain_data_does_not_need_is_refused(op):
    with pytest.raises(PickleError, match="opcode"):
        loads(b"\x80\x05" + op + b".")
