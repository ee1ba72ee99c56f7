"""What the store and ``--json`` keep comes back as it was: incidents, verdicts, plans, outcomes, notices."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import AT, ended, evidence, incident, plan, verdict

from sentinel.errors import ProtocolError
from sentinel.model.records import (
    Alternative,
    Cause,
    Culprits,
    Evidence,
    Ground,
    Incident,
    IncidentState,
    Notice,
    Outcome,
    Plan,
    Restart,
    Result,
    Scope,
    Source,
    Step,
    StepKind,
    Trust,
    Verdict,
    Where,
)
from sentinel.wire import record_from, to_json

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)  # what cannot be kept: test_wire
times = st.integers(0, 10**7).map(lambda s: AT + timedelta(milliseconds=s))
numbers = st.integers(-(2**40), 2**40)
attempts = st.integers(0, 2**16 - 1)
maybe = st.none() | texts
flat = st.dictionaries(texts, st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | texts, max_size=3)
wheres = st.builds(Where, maybe, st.none() | numbers, maybe, maybe, st.none() | numbers, st.none() | attempts)
evidences = st.builds(
    Evidence, texts, times, times, st.sampled_from(Source), texts, wheres, texts, maybe, st.none() | numbers, flat,
    st.sampled_from(Trust),
)  # fmt: skip
names = st.lists(texts, max_size=3).map(tuple)
incidents = st.builds(
    Incident, texts, times, times, st.sampled_from(IncidentState), st.none() | numbers, st.none() | numbers, names,
    st.lists(evidences, max_size=3).map(tuple), st.none() | times, texts,
)  # fmt: skip
grounds = st.lists(st.builds(Ground, evidences, st.floats(-9, 9), texts), max_size=2).map(tuple)
verdicts = st.builds(
    Verdict, st.sampled_from(Cause), st.sampled_from(Scope), st.floats(0, 1),
    st.builds(Culprits, names, names, st.lists(numbers, max_size=3).map(tuple)), names, names, names, st.booleans(),
    st.sampled_from(Restart), st.none() | numbers,
    st.lists(st.builds(Alternative, st.sampled_from(Cause), st.floats(0, 1)), max_size=2).map(tuple),
    grounds, grounds, names, texts, drain_confidence=st.floats(0, 1),
)  # fmt: skip
steps = st.builds(Step, st.sampled_from(StepKind), maybe, st.none() | numbers, st.none() | numbers, flat)
plans = st.builds(
    Plan, texts, texts, times, st.lists(steps, max_size=3).map(tuple), texts, texts, st.booleans()
)  # fmt: skip
outcomes = st.builds(Outcome, steps, st.sampled_from(Result), times, texts, flat)
notices = st.builds(Notice, texts, texts, times, texts, texts, flat)


@given(incidents | verdicts | plans | outcomes | notices | evidences)
def test_round_trip(record: Any) -> None:
    text = json.dumps(to_json(record))
    found = record_from(type(record), json.loads(text))
    assert found == record
    assert to_json(found) == to_json(record)  # equality leaves data out


@pytest.mark.parametrize("record", [incident(ended()), verdict(), plan(), evidence()])
def test_key_of_a_newer_release_is_passed_over(record: Any) -> None:
    assert record_from(type(record), {**to_json(record), "later": {"x": 1}}) == record


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Incident, {"opened_at": "2026-03-01T12:00:00"}),  # without a zone
        (Incident, {"opened_at": 7}),
        (Incident, {"state": "ajar"}),
        (Incident, {"id": None}),
        (Incident, {"job": "101"}),
        (Incident, {"evidence": [{"id": "torn"}]}),
        (Verdict, {"cause": "gremlins"}),
        (Verdict, {"confidence": "high"}),
        (Verdict, {"culprits": ["n1"]}),
        (Plan, {"steps": [{"kind": "explode"}]}),
        (Plan, {"observe_only": "no"}),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[Any], change: dict[str, object]) -> None:
    records: dict[type[Any], Any] = {Incident: incident(ended()), Verdict: verdict(), Plan: plan()}
    with pytest.raises(ProtocolError):
        record_from(kind, {**to_json(records[kind]), **change})


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError, match="not an object"):
        record_from(Verdict, value)


def test_missing_key_is_refused() -> None:
    values = to_json(plan())
    del values["incident"]
    with pytest.raises(ProtocolError):
        record_from(Plan, values)
