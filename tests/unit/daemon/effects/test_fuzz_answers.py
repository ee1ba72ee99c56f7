"""Bounded, seeded fuzzing of what agents answer to orders: it is read, or is no answer; never an error of our own."""

from __future__ import annotations

import dataclasses
from math import isfinite
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.checkpoints.records import Part
from sentinel.detect.activity import read_look
from sentinel.errors import ProtocolError
from sentinel.evidence.nccl.flight_recorder_wire import RankTrace, Unreadable, from_wire

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([2**63, -(2**70), 10**400, 1e308, "\ud800", "\0", "global", "n1"]),
)
KEYS = (
    "tasks", "at_s", "has_gpus", "gpus", "rank", "pid", "state", "cpu_s", "read_bytes", "written_bytes", "leaf", "index",
    "utilisation", "power_w", "usual_w", "traffic", "still_s", "stood", "entries", "collective", "sequence", "groups",
    "records", "name", *(item.name for item in dataclasses.fields(Part)),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=8),
    max_leaves=25,
)


def of(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keys, SCALARS | VALUES))


TASKS = st.lists(of("pid", "state", "rank", "cpu_s", "read_bytes", "written_bytes", "leaf"), max_size=3)
GPUS = st.lists(of("index", "utilisation", "power_w", "usual_w", "traffic", "still_s", "stood"), max_size=3)
LOOKS = st.fixed_dictionaries(
    {"tasks": TASKS | VALUES}, optional={"at_s": SCALARS, "has_gpus": SCALARS, "gpus": GPUS | VALUES}
)
SOUND: dict[str, Any] = {
    "host": "n1", "root": "/a", "path": "/a/s", "key": "s", "tier": "global", "format": "dcp", "bytes": 1,
    "level": "structural", "reason": "", "has": {}, "needs": {}, "coverage": {},
}  # fmt: skip
bounded = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@bounded
@given(answer=LOOKS | VALUES)
def test_what_processes_do(answer: object) -> None:
    look = read_look(answer, 1.0)
    assert look is None or isfinite(look.at_s)


def test_numbers_that_no_float_holds() -> None:
    look = read_look({"tasks": [{"pid": 1, "state": "R", "cpu_s": 10**400}], "at_s": 10**400}, 1.0)
    assert look is not None and look.at_s == 1.0 and look.processes[0].cpu_s == 0.0
    with pytest.raises(ValueError, match="no float"):
        Part.from_json({**SOUND, "newest_mtime_s": 10**400})


@bounded
@given(changed=of(*(item.name for item in dataclasses.fields(Part))))
def test_a_listing(changed: dict[str, Any]) -> None:
    try:
        part = Part.from_json({**SOUND, **changed})
    except (ValueError, TypeError, AttributeError):
        return  # the listing is not known
    assert isinstance(part.bytes, int) and isinstance(part.path, str)


@bounded
@given(answer=VALUES)
def test_a_dump(answer: object) -> None:
    try:
        dump = from_wire(answer)
    except ProtocolError:
        return
    assert isinstance(dump, RankTrace | Unreadable)
