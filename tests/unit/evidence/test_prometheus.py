"""Answers of range queries: what held all the time holds, gaps and torn answers do not, and nodes are found in labels."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import AT

from sentinel.errors import ProtocolError
from sentinel.evidence.prometheus import MOST_NODES, Signal, evidence_of, holding
from sentinel.model.records import Cause, Scope, Source, Trust

DOWN = Signal("nas", "the NAS is down", "up", Cause.FILESYSTEM_STORAGE, below=1.0, for_s=60.0)
PORTS = Signal(
    "ports", "ports count errors", "x", Cause.NETWORK_FABRIC, above=10.0, for_s=0.0, scope=Scope.LINK,
    node_label="instance", node_pattern=r"^([^.:]+)",
)  # fmt: skip


def answer(*series: tuple[dict[str, str], list[tuple[float, float]]]) -> dict[str, Any]:
    result = [
        {"metric": labels, "values": [[AT.timestamp() + at, str(value)] for at, value in values]}
        for labels, values in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def every(step: int, value: float, *, start: int = -60, end: int = 0) -> list[tuple[float, float]]:
    return [(float(at), value) for at in range(start, end + 1, step)]


def test_what_held_all_the_time_holds() -> None:
    (held,) = holding(DOWN, answer(({"job": "nas"}, every(12, 0.0))), AT)
    assert held.value == 0.0 and held.labels == {"job": "nas"}


@pytest.mark.parametrize(
    "values",
    [
        every(12, 1.0),  # it is well
        [*every(12, 0.0, end=-12), (0.0, 1.0)],  # well again
        [(-60.0, 1.0), *every(12, 0.0, start=-48)],  # not for long enough
        every(12, 0.0, start=-24),  # not known before
        every(12, 0.0, end=-24),  # not known any more
        [(-60.0, 0.0), (-48.0, 0.0), (-12.0, 0.0), (0.0, 0.0)],  # not known in between
        [*every(12, 0.0, end=-12), (0.0, float("nan"))],
        [],
    ],
)
def test_what_did_not_hold_or_is_not_known_does_not(values: list[tuple[float, float]]) -> None:
    assert holding(DOWN, answer(({}, values)), AT) == []


def test_infinity_is_no_value() -> None:
    assert holding(PORTS, answer(({"instance": "n1"}, [(0.0, float("inf"))])), AT) == []


def test_cluster_is_one_evidence_and_nodes_are_one_each() -> None:
    series = [({"job": f"nas{n}"}, every(12, 0.0)) for n in range(9)]
    (one,) = evidence_of(DOWN, holding(DOWN, answer(*series), AT), {None: AT - timedelta(hours=1)}, AT)
    assert (one.source, one.trust, one.where.node) == (Source.PROMETHEUS, Trust.SYSTEM, None)
    assert one.data["series"] == 9 and one.text.startswith("the NAS is down: 0, below 1 counts (job=nas0; ")
    assert "and 6 more" in one.text and one.at == AT - timedelta(hours=1)
    many = [
        ({"instance": f"n{n}.example.org:9100", "port": str(p)}, [(0.0, 50.0 + n)]) for n in range(3) for p in (1, 2)
    ]
    found = evidence_of(PORTS, holding(PORTS, answer(*many, ({}, [(0.0, 99.0)])), AT), {}, AT)
    assert sorted(item.where.node or "" for item in found) == ["n0", "n1", "n2"]
    wide = [({"instance": f"n{n}"}, [(0.0, 50.0)]) for n in range(500)]
    assert len(evidence_of(PORTS, holding(PORTS, answer(*wide), AT), {}, AT)) == MOST_NODES


def test_same_episode_is_the_same_evidence() -> None:
    series = holding(DOWN, answer(({}, every(12, 0.0))), AT)
    (one,), (later) = (
        evidence_of(DOWN, series, {None: AT}, AT),
        evidence_of(DOWN, series, {None: AT}, AT + timedelta(minutes=1)),
    )
    assert one.id == later[0].id != evidence_of(DOWN, series, {}, AT + timedelta(seconds=1))[0].id
    assert evidence_of(DOWN, [], {}, AT) == []


@pytest.mark.parametrize(
    "torn",
    [
        {},
        {"status": "error"},
        {"status": "success", "data": []},
        {"status": "success", "data": {"result": {}}},
        {"status": "success", "data": {"result": [7]}},
        {"status": "success", "data": {"result": [{"metric": [], "values": []}]}},
        {"status": "success", "data": {"result": [{"metric": {}, "values": [["x", "y"]]}]}},
        {"status": "success", "data": {"result": [{"metric": {}, "values": [[1]]}]}},
    ],
)
def test_torn_answers_are_told(torn: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        holding(DOWN, torn, AT)


@given(st.lists(st.tuples(st.floats(-200, 100), st.floats()), max_size=20))
def test_no_series_is_held_by_a_value_within_its_limit(values: list[tuple[float, float]]) -> None:
    held = holding(DOWN, answer(({}, sorted(values))), AT)
    if held:
        assert all(value < 1.0 for at, value in values if at >= -DOWN.for_s)
