"""What must hold of the records themselves, and of what callers sign."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model import records as records_module
from sentinel.model.records import (
    MAX_TEXT,
    USER_SOURCES,
    Evidence,
    Fleet,
    Incident,
    JobView,
    NodeView,
    Notice,
    Outcome,
    Plan,
    Result,
    Source,
    Step,
    StepKind,
    Trust,
    stable_id,
    utc,
)
from sentinel.model.vocabulary import result_words, step_words, words_of
from sentinel.protocol import digest_of

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAIVE = datetime(2026, 3, 1, 12, 0)


def evidence(**change: Any) -> Evidence:
    return dataclasses.replace(Evidence(id="e", at=AT, seen_at=AT, source=Source.KERNEL, kind="xid"), **change)


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence(at=NAIVE),
        lambda: evidence(seen_at=NAIVE),
        lambda: Incident(id="i", opened_at=NAIVE, updated_at=AT),
        lambda: Incident(id="i", opened_at=AT, updated_at=NAIVE),
        lambda: Incident(id="i", opened_at=AT, updated_at=AT, closed_at=NAIVE),
        lambda: Plan(id="p", incident="i", at=NAIVE),
        lambda: Outcome(step=Step(StepKind.DRAIN), result=Result.DONE, at=NAIVE),
        lambda: Notice(id="n", incident="i", at=NAIVE, title="", body=""),
        lambda: Fleet(at=NAIVE, nodes={}, jobs={}),
        lambda: JobView(id=1, state="running", submitted_at=NAIVE),
        lambda: JobView(id=1, state="running", started_at=NAIVE),
        lambda: JobView(id=1, state="running", ended_at=NAIVE),
        lambda: JobView(id=1, state="running", eligible_at=NAIVE),
    ],
)
def test_naive_times_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="naive"):
        make()


def test_records_are_frozen_and_have_no_loose_attributes() -> None:
    records = [
        item for item in vars(records_module).values() if isinstance(item, type) and dataclasses.is_dataclass(item)
    ]
    assert len(records) > 10
    for record in records:
        assert record.__dataclass_params__.frozen, record  # type: ignore[attr-defined]
        assert hasattr(record, "__slots__"), record


@pytest.mark.parametrize("source", sorted(USER_SOURCES))
def test_what_users_can_write_is_never_trusted_as_the_system(source: Source) -> None:
    assert evidence(source=source, trust=Trust.SYSTEM).trust is Trust.USER


@pytest.mark.parametrize("source", sorted(set(Source) - USER_SOURCES))
def test_other_sources_keep_the_trust_they_are_given(source: Source) -> None:
    assert evidence(source=source, trust=Trust.SYSTEM).trust is Trust.SYSTEM
    assert evidence(source=source, trust=Trust.USER).trust is Trust.USER


@given(st.text(max_size=3 * MAX_TEXT))
def test_text_is_cut_and_says_so(text: str) -> None:
    kept = evidence(text=text).text
    assert len(kept) <= MAX_TEXT
    assert kept == text if len(text) <= MAX_TEXT else kept == text[: MAX_TEXT - 1] + "…"


@given(st.lists(st.text(max_size=10), max_size=5), st.lists(st.text(max_size=10), max_size=5))
def test_ids_are_equal_exactly_when_their_parts_are(one: list[str], other: list[str]) -> None:
    separated = all("\x1f" not in part for part in [*one, *other])
    if separated:
        assert (stable_id(*one) == stable_id(*other)) == (one == other)


def test_ids_take_undecodable_file_names() -> None:
    assert stable_id(b"a\xff".decode("utf-8", "surrogateescape")) != stable_id("a")


def test_a_step_is_done_once_per_attempt_and_incident() -> None:
    step = Step(StepKind.RELEASE, job=7, attempt=1)
    assert step.key("i1") == dataclasses.replace(step, data={"path": "/x"}).key("i1")
    others = [
        step.key("i2"),
        dataclasses.replace(step, attempt=2).key("i1"),
        dataclasses.replace(step, job=8).key("i1"),
        dataclasses.replace(step, kind=StepKind.HOLD).key("i1"),
        Step(StepKind.DRAIN, node="7").key("i1"),
    ]
    assert len({step.key("i1"), *others}) == 6


@pytest.mark.parametrize(
    ("state", "flags", "usable"),
    [
        ("idle", (), True), ("mixed", (), True), ("allocated", ("completing",), True), ("idle", ("reserved",), True),
        ("idle", ("drain",), False), ("allocated", ("drain",), False), ("idle", ("not_responding",), False),
        ("idle", ("fail",), False), ("idle", ("maintenance",), False), ("idle", ("power_down",), False),
        ("down", (), False), ("unknown", (), False), ("", (), False), ("future", (), False), ("error", (), False),
    ],
)  # fmt: skip
def test_only_a_positive_reading_makes_a_node_usable(state: str, flags: tuple[str, ...], usable: bool) -> None:
    node = NodeView(name="n1", state=state, flags=frozenset(flags))
    assert node.usable is usable
    assert node.drained is ("drain" in flags)


def test_unknown_is_the_default_of_what_slurm_may_not_tell() -> None:
    node, job = NodeView(name="n1", state="idle"), JobView(id=1, state="running")
    assert (node.gpus, node.port) == (None, None)
    assert (job.exit_code, job.exit_signal, job.requeue, job.node_count, job.ended_at) == (None, None, None, None, None)


@given(st.floats(0, 4e9))
def test_utc_is_aware_and_exact_to_the_microsecond(seconds: float) -> None:
    time = utc(seconds)
    assert time.utcoffset() is not None
    assert time.timestamp() == pytest.approx(seconds, abs=1e-6)


@given(st.text(max_size=20), st.binary(max_size=40), st.text(max_size=20), st.binary(max_size=40))
def test_what_is_signed_names_its_place_and_its_body(path: str, body: bytes, other: str, changed: bytes) -> None:
    if "\n" not in path + other:
        assert (digest_of(path, body) == digest_of(other, changed)) == ((path, body) == (other, changed))
    assert len(digest_of(path, body)) == 64


def test_each_step_is_read_in_words_and_one_of_another_release_by_its_id() -> None:
    job_words = {kind: step_words(kind, None, 8801) for kind in StepKind}
    assert all("_" not in words and words.count("job 8801") == 1 for words in job_words.values())
    assert len(set(job_words.values())) == len(StepKind)
    assert step_words("drain", "n2", None) == words_of({"step": "drain", "node": "n2", "job": None}) == "drain n2"
    assert step_words("power_cycle", "n2", None) == "power_cycle n2"
    assert [result_words(result) for result in (None, "done", "not_known")] == ["under way", "done", "not known"]
