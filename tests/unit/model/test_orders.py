"""Every kind of order has one schema, which refuses all that it does not name."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.checkpoints.records import LEVELS, Tier
from sentinel.model.orders import (
    SCHEMAS,
    AskJob,
    Collected,
    Diagnose,
    ListCheckpoints,
    MoveAside,
    Order,
    OrderRefused,
    ReadMessagesFile,
    Record,
    Root,
    TaskStates,
    Watch,
    WriteToLog,
    decoded,
    read_order,
)
from sentinel.protocol import OrderKind

RECORDS: list[Record] = [
    ListCheckpoints(7, (Root("local", "/nvme/run"), Root("global", "/shared/run")), "checksum", 40),
    MoveAside(7, "/shared/run", ("/shared/run/step-1", "/shared/run/x"), (1, None), "incident i1", "/shared/run/y"),
    TaskStates(7),
    AskJob(7, ras=True, gap_s=2.5),
    Collected(7, 1),
    WriteToLog(7, 1, "sentinel: attempt 1: user_code; the job is held"),
    ReadMessagesFile(7),
    Diagnose(2, ("GPU-1", "MIG-GPU-1/0/0"), yields=True),
    Watch(7, 1, True, 100.5, (Root("local", "/nvme/run"),)),
    Root("local", "/nvme/run"),
]
# A value that no key of any record accepts, of each type that JSON has.
WRONG: list[Any] = [{}, [], [[]], "\n", -1.5, math.nan, math.inf, 10**400, "a\0b"]
FIELDS = [(record, item.name) for record in RECORDS for item in dataclasses.fields(record)]


def name(value: object) -> str:
    return type(value).__name__ if isinstance(value, Record) else str(value)


def test_every_kind_has_a_schema() -> None:
    assert set(SCHEMAS) == set(OrderKind)
    assert all(schema.kind is kind for kind, schema in SCHEMAS.items())
    assert set(SCHEMAS.values()) <= {type(record) for record in RECORDS}, "and a record here"


def test_no_schema_has_a_user_or_a_place_of_the_agents_own() -> None:
    forbidden = {
        "uid",
        "gid",
        "user",
        "dcgmi",
        "host",
        "socket",
        "state",
        "folder",
        "command",
        "node",
        "deadline_s",
        "order",
    }
    keys = {item.name for schema in (*SCHEMAS.values(), Watch, Root) for item in dataclasses.fields(schema)}
    assert not keys & forbidden


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_what_the_daemon_makes_the_agent_reads(record: Record) -> None:
    assert decoded(type(record), json.loads(json.dumps(record.arguments()))) == record


@pytest.mark.parametrize("record", RECORDS, ids=name)
@pytest.mark.parametrize("more", ["uid", "gid", "dcgmi", "state", "", "job ", "x" * 10_000, "\n"])
def test_unknown_keys_are_refused(record: Record, more: str) -> None:
    with pytest.raises(OrderRefused, match="unknown key") as refused:
        decoded(type(record), {**record.arguments(), more: 0})
    assert len(refused.value.message) < 300 and "\n" not in refused.value.message


@pytest.mark.parametrize(("record", "key"), FIELDS, ids=name)
def test_missing_keys_are_refused(record: Record, key: str) -> None:
    arguments = record.arguments()
    del arguments[key]
    with pytest.raises(OrderRefused, match=f"{key} is missing"):
        decoded(type(record), arguments)


@pytest.mark.parametrize(("record", "key"), FIELDS, ids=name)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: f"{type(value).__name__}-{str(value)[:6]!r}")
def test_wrong_values_are_refused(record: Record, key: str, wrong: Any) -> None:
    with pytest.raises(OrderRefused, match=key) as refused:
        decoded(type(record), {**record.arguments(), key: wrong})
    assert "must be" in refused.value.message


NUMBERS = [(record, key) for record, key in FIELDS if isinstance(record.arguments()[key], (bool, int, float))]


@pytest.mark.parametrize(("record", "key"), NUMBERS, ids=name)
def test_true_is_no_number_and_a_number_is_no_flag(record: Record, key: str) -> None:
    other = 1 if type(record.arguments()[key]) is bool else True
    with pytest.raises(OrderRefused, match=key):
        decoded(type(record), {**record.arguments(), key: other})


@pytest.mark.parametrize("value", [None, 3, "x", [], True])
@pytest.mark.parametrize("kind", list(OrderKind))
def test_what_is_no_object_is_refused(kind: OrderKind, value: Any) -> None:
    with pytest.raises(OrderRefused, match=str(kind)):
        read_order({"id": "o", "kind": kind, "arguments": value, "deadline_s": 1.0}, "o")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "reboot"}, "inventory, quarantine"),
        ({"kind": None}, "kind"),
        ({"kind": ["inventory"]}, "kind"),
        ({"deadline_s": "soon"}, "deadline_s"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": 1e9}, "deadline_s"),
        ({"deadline_s": math.nan}, "deadline_s"),
        ({"environment": {}}, "unknown key 'environment'"),
    ],
)
def test_what_an_order_comes_in_is_read_as_strictly(change: dict[str, Any], words: str) -> None:
    whole = {"id": "o", "kind": "task_states", "arguments": {"job": 7}, "deadline_s": 5}
    assert read_order(whole, "o") == Order("o", TaskStates(7), 5.0)
    for missing in ("kind", "arguments", "deadline_s"):
        with pytest.raises(OrderRefused, match=f"{missing} is missing"):
            read_order({key: value for key, value in whole.items() if key != missing}, "o")
    with pytest.raises(OrderRefused) as refused:
        read_order({**whole, **change}, "o")
    assert words in refused.value.message


@pytest.mark.parametrize(
    "path",
    ["", "relative", "~/x", "/a/../b", "/..", "/a\0", "/" + "a" * 5000, "/\ud800", "file:///a", 7, None, ["/a"]],
)
def test_paths_are_absolute_and_go_never_upwards(path: Any) -> None:
    with pytest.raises(OrderRefused, match="path"):
        decoded(Root, {"tier": "local", "path": path})


@pytest.mark.parametrize("path", ["/", "/a b/ü", "/a/..b/c..", "/odd\nname", "/no-utf8-\udcff"])
def test_paths_may_hold_what_linux_lets_them_hold(path: str) -> None:
    assert decoded(Root, {"tier": "local", "path": path}).path == path


def test_words_are_those_of_checkpoints() -> None:
    for level in LEVELS:
        assert (
            decoded(ListCheckpoints, ListCheckpoints(7, (Root("local", "/a"),), level, None).arguments()).level == level
        )
    for tier in get_args(Tier):
        assert decoded(Root, {"tier": tier, "path": "/a"}).tier == tier


def test_the_daemon_cannot_make_what_agents_refuse() -> None:
    for beyond in (TaskStates(0), AskJob(7, ras=False, gap_s=1e6), MoveAside(7, "/a", ("/a/b",), (), "", None)):
        with pytest.raises(OrderRefused):
            beyond.arguments()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["/a", "local", "GPU-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def nearly(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments that are right, but for some."""
    arguments = draw(st.sampled_from(RECORDS)).arguments()
    for key in draw(st.lists(st.sampled_from(sorted(arguments)), max_size=2)):
        arguments[key] = draw(JSON)
    if draw(st.booleans()):
        arguments |= draw(st.dictionaries(st.text(max_size=4) | st.sampled_from(["uid", "state"]), JSON, max_size=2))
    return arguments


@given(st.sampled_from(sorted(OrderKind)), nearly() | JSON, st.floats() | st.just(5.0))
def test_an_order_is_read_or_refused_and_nothing_else(kind: OrderKind, arguments: Any, deadline_s: float) -> None:
    try:
        found = read_order({"id": "o", "kind": kind, "arguments": arguments, "deadline_s": deadline_s}, "o")
    except OrderRefused as error:
        assert error.message.startswith("order") and len(error.message) < 1000
    else:
        request = found.request
        assert request.kind is kind
        assert decoded(SCHEMAS[kind], request.arguments()) == request
        assert set(request.arguments()) == {item.name for item in dataclasses.fields(request)}


@given(st.dictionaries(st.text(max_size=9) | st.sampled_from(["kind", "arguments", "deadline_s"]), JSON))
def test_what_it_comes_in_too(order: dict[str, Any]) -> None:
    with pytest.raises(OrderRefused):
        read_order({**order, "kind": "no kind"}, "o")


@pytest.mark.parametrize(
    "change", [{"kind": "later_kind"}, {"later": 1}, {"arguments": {"later": 1}}, {"deadline_s": None}, {"kind": []}]
)
def test_an_order_of_a_daemon_of_another_release_says_which_side_to_upgrade(change: dict[str, Any]) -> None:
    order = {"kind": "task_states", "arguments": {}, "deadline_s": 10.0, **change}
    if order["deadline_s"] is None:
        del order["deadline_s"]
    with pytest.raises(OrderRefused, match="upgrade the older one") as refused:
        read_order(order, "o1")
    assert "\n" not in refused.value.message
