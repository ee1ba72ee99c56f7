"""Records survive the wire; what is torn, naive or of the wrong type is a ProtocolError and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.errors import ProtocolError
from sentinel.model.records import (
    Alternative,
    Cause,
    Culprits,
    Evidence,
    Ground,
    Incident,
    IncidentState,
    JobView,
    NodeView,
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
from sentinel.text import json_with_bytes, plain
from sentinel.wire import evidence_from, large_json, record_from, time_from, to_json, to_text

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))
times = st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=zones)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
numbers = st.none() | st.integers(0, 10**9)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
)
wheres = st.builds(
    Where, node=st.none() | words, gpu=numbers, gpu_uuid=st.none() | words, nic=st.none() | words, rank=numbers, job=numbers,
    attempt=st.none() | st.integers(0, 2**16 - 1), path=st.none() | words,
)  # fmt: skip
evidences = st.builds(
    Evidence, id=words, at=times, seen_at=times, source=st.sampled_from(Source), kind=words, where=wheres,
    text=words | st.text("x☃", max_size=3000), rule=st.none() | words, line=numbers,
    data=st.dictionaries(words, scalars, max_size=4), trust=st.sampled_from(Trust),
)  # fmt: skip
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)


def there_and_back(record: object) -> Any:
    return json.loads(json.dumps(to_json(record)))


def evidence(**change: Any) -> Evidence:
    return replace(Evidence(id="e1", at=AT, seen_at=AT, source=Source.KERNEL, kind="xid"), **change)


@given(evidences)
def test_evidence_survives(sent: Evidence) -> None:
    assert evidence_from(there_and_back(sent)) == sent


@pytest.mark.parametrize("hostile", ["\0", "\ud800", "\udcff", "a\0b \udfff"])
def test_text_that_no_outlet_can_carry_is_shown_by_its_escape(hostile: str) -> None:
    where = Where(node=hostile, gpu_uuid=hostile, nic=hostile, path=hostile)
    sent = evidence(id=hostile, kind=hostile, text=hostile, rule=hostile, where=where, data={hostile: hostile})
    seen = evidence_from(there_and_back(sent))
    shown = Where(node=plain(hostile), gpu_uuid=plain(hostile), nic=plain(hostile), path=plain(hostile))
    assert (seen.id, seen.kind, seen.text, seen.rule, seen.where) == (*[plain(hostile)] * 4, shown)
    assert seen.data == {plain(hostile): plain(hostile)}


@pytest.mark.parametrize(
    "change",
    [{"id": "x" * 41}, {"id": "\0" * 11}, {"kind": "x" * 49}, {"where": Where(node="n" * 256)},
     {"where": Where(job=-(2**63))},
     {"where": Where(job=2**63)}, {"where": Where(attempt=2**16)}, {"where": Where(attempt=-(2**40))}],
)  # fmt: skip
def test_what_no_store_has_room_for_is_refused_alone(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        evidence_from(there_and_back(evidence(**change)))


@given(times)
def test_a_time_survives_to_the_microsecond_whatever_its_zone(time: datetime) -> None:
    back = time_from(there_and_back(time))
    assert back == time
    assert back.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "time",
    ["2026-03-01T12:00:00", "2026-03-01", "", "now", "12:00Z", 1772366400, None, True, "0001-01-01T00:00:00+05:00"],
)
def test_what_is_no_aware_time_is_refused(time: object) -> None:
    with pytest.raises(ProtocolError):
        time_from(time)


RECORDS = [
    evidence(where=Where(node="n1", gpu=3, job=7), data={"xid": 79}),
    Incident(id="i1", opened_at=AT, updated_at=AT, state=IncidentState.HELD, nodes=("n1", "n2"), evidence=(evidence(),)),
    Verdict(
        cause=Cause.GPU_FALLEN_OFF_BUS, scope=Scope.GPU, confidence=1, culprits=Culprits(nodes=("n1",), ranks=(3,)),
        drain=("n1",), restart=Restart.RESUME_EXCLUDING, alternatives=(Alternative(Cause.PCIE, 0.1),),
        grounds=(Ground(evidence(), 2.5, "n"),), would_change=("a",),
    ),
    Plan(id="p", incident="i1", at=AT, steps=(Step(StepKind.DRAIN, node="n1", data={"reason": "r"}),)),
    Plan(id="p", incident="i1", at=AT, refusal="breaker", explanation="many nodes at once"),
    Outcome(step=Step(StepKind.RELEASE, job=7, attempt=1), result=Result.NOT_KNOWN, at=AT, data={"step": 900}),
    Notice(id="m", incident="i1", at=AT, title="t", body="b", data={"nodes": ["n1"]}),
    NodeView(name="n1", state="idle", flags=frozenset({"drain", "fail"}), partitions=("a", "b"), gpus=8),
    JobView(id=7, state="running", nodes=("n1",), submitted_at=AT, exit_code=None),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_survives(record: Any) -> None:
    assert record_from(type(record), there_and_back(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_text_is_that_of_the_plain_form(record: Any) -> None:
    answer = {
        "at": AT,
        "record": record,
        "some": (record, None),
        "names": frozenset("ab"),
        "states": {IncidentState.OPEN},
    }
    assert json.loads(to_text(answer)) == there_and_back(answer)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_unknown_keys_of_a_newer_sender_are_passed_over(record: Any) -> None:
    sent = there_and_back(record) | {"from_the_future": {"x": [1]}}
    assert record_from(type(record), sent) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_missing_keys_are_a_protocol_error(record: Any) -> None:
    with pytest.raises(ProtocolError):
        record_from(type(record), {})
    with pytest.raises(ProtocolError):
        record_from(type(record), [there_and_back(record)])


@given(st.sampled_from(RECORDS), st.data(), anything)
def test_any_value_under_any_key_is_taken_or_is_a_protocol_error(
    record: Any, data: st.DataObject, value: object
) -> None:
    sent = there_and_back(record)
    sent[data.draw(st.sampled_from(sorted(sent)))] = value
    for kind in (type(record), Evidence):
        try:
            taken = record_from(kind, sent)
        except ProtocolError:
            continue
        assert isinstance(taken, kind)


@given(anything)
def test_any_json_is_evidence_or_a_protocol_error(value: object) -> None:
    with pytest.raises(ProtocolError):
        evidence_from(value)


@given(evidences, st.data())
def test_one_wrong_value_makes_evidence_a_protocol_error_or_evidence(sent: Evidence, data: st.DataObject) -> None:
    told = there_and_back(sent)
    told[data.draw(st.sampled_from(sorted(told)))] = data.draw(anything)
    try:
        taken = evidence_from(told)
    except ProtocolError:
        return
    assert evidence_from(there_and_back(taken)) == taken


@pytest.mark.parametrize("key", ["id", "at", "seen_at", "source", "kind"])
def test_evidence_without_a_needed_key_is_refused(key: str) -> None:
    told = there_and_back(evidence())
    del told[key]
    with pytest.raises(ProtocolError):
        evidence_from(told)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("at", "2026-03-01T12:00:00"), ("source", "rumour"), ("kind", 3), ("line", "7"), ("line", True), ("text", None),
        ("data", {"nested": {}}), ("data", {"list": []}), ("data", [1]), ("where", [1]), ("where", {"gpu": "3"}),
        ("where", {"gpu": True}), ("trust", "very"), ("rule", 3),
    ],
)  # fmt: skip
def test_evidence_of_the_wrong_type_is_refused(key: str, value: object) -> None:
    with pytest.raises(ProtocolError):
        evidence_from(there_and_back(evidence()) | {key: value})


def test_a_sender_cannot_raise_the_trust_of_what_users_write() -> None:
    told = there_and_back(evidence(source=Source.JOB_LOG)) | {"trust": "system"}
    assert evidence_from(told).trust is Trust.USER


def test_silence_about_trust_is_no_trust() -> None:
    told = there_and_back(evidence())
    del told["trust"]
    assert evidence_from(told).trust is Trust.USER


def test_nowhere_is_a_place() -> None:
    told = there_and_back(evidence())
    told["where"] = {}
    assert evidence_from(told).where == Where()


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63])
def test_a_number_that_no_float_and_no_store_holds_is_refused(number: int) -> None:
    with pytest.raises(ProtocolError):
        evidence_from({**there_and_back(evidence()), "data": {"loss": number}})


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("key", ["at", "seen_at"])
def test_a_time_at_the_edge_of_the_calendar_is_refused(key: str, time: str) -> None:
    with pytest.raises(ProtocolError):
        evidence_from({**there_and_back(evidence()), key: time})


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [1, 2.5, null, "x"]}',
        b'{"a": "\xff"}',
        b'{"a": "x\ny"}',
        b'{"a": "\\ud800"}',
        b"[18446744073709551615]",
        b"[-1e3]",
    ],
)
def test_large_json_is_read_as_other_json_is(raw: bytes) -> None:
    assert large_json(raw) == json_with_bytes(raw)


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 200_000, b'{"a": \xff}'])
def test_large_json_that_is_none_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        large_json(raw)
