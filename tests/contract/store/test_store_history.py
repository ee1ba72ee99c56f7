"""What reports and searches ask a store for: verdicts, attempts, counters, corrections, recordings, ids."""

from __future__ import annotations

import dataclasses

from in_memory.direct_store import DirectStore
from made_records import AT, ended, evidence, incident, job, later, plan, step, verdict

from sentinel.model import changes
from sentinel.model.corrections import Correction
from sentinel.model.records import (
    Cause,
    Ground,
    Kind,
    Scope,
    StepKind,
)

DRAIN = step(StepKind.DRAIN, node="n1")


PLAN = plan(DRAIN, step(StepKind.RELEASE, job=101, attempt=0))


def test_verdict_leaves_where_it_was_seen_and_when_numbers_went_bad(store: DirectStore) -> None:
    grounds = tuple(
        Ground(evidence("nan", node=node, at_s=float(n)), 1.0) for n, node in enumerate(["n2", "n1", "n2", None])
    )
    judged = dataclasses.replace(verdict(Cause.NUMERICAL_NAN, gpus=("n2:3",), onset_step=120), grounds=grounds)
    store.save_incident(incident(ended()), user="ada")
    store.save_verdict("inc1", judged, AT)
    (row,) = store.incident_rows()
    assert (row["seen_on"], row["onset_step"], row["culprit_gpus"]) == (["n2", "n1"], 120, ["n2:3"])
    store.save_verdict("inc1", dataclasses.replace(judged, onset_step=2**40), AT)  # a job may print any number
    assert store.incident_rows()[0]["onset_step"] is None


def test_incidents_by_their_ids(store: DirectStore) -> None:
    for name in ("a1", "a2", "a3"):
        store.save_incident(incident(id=name))
    assert {row["id"] for row in store.incident_rows(ids=["a1", "a3", "zz"])} == {"a1", "a3"}
    assert store.incident_rows(ids=[]) == []


def test_attempts_that_ran_at_some_time(store: DirectStore) -> None:
    for number, (start, end) in enumerate([(-900.0, -500.0), (-900.0, -100.0), (-900.0, None), (-50.0, None)]):
        view = dataclasses.replace(job(201 + number, started_s=start), state="running" if end is None else "failed")
        view = dataclasses.replace(view, ended_at=None if end is None else later(end))
        store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    assert [row["job"] for row in store.attempts(ran_since=later(-300.0))] == [202, 203, 204]


def test_counters_keep_the_last_value_of_each_day(store: DirectStore) -> None:
    def row(at_s: float, value: float, unit: str = "gpu0") -> dict[str, object]:
        return {"node": "n1", "unit": unit, "name": "remapped_rows", "at": later(at_s), "value": value}

    store.save_counters([row(0.0, 1.0), row(60.0, 3.0), row(30.0, 2.0), row(0.0, 9.0, "gpu1")])
    store.save_counters([row(86400.0, 4.0)])
    store.save_counters([])
    assert [(r["unit"], r["value"]) for r in store.counters(AT)] == [("gpu1", 9.0), ("gpu0", 3.0), ("gpu0", 4.0)]
    assert len(store.counters(later(86400.0))) == 1
    assert [(r["unit"], r["value"]) for r in store.counters(AT, least=100.0)] == [
        ("gpu0", 3.0),
        ("gpu0", 4.0),
    ]  # changed
    assert {r["unit"] for r in store.counters(AT, least=9.0)} == {"gpu0", "gpu1"}
    assert store.counters_told(AT, "remapped") == {"n1": later(0.0)} and store.counters_told(AT, "re%") == {}
    store.forget(later(86000.0))
    assert [r["value"] for r in store.counters(AT)] == [4.0]


def test_corrections_are_appended_and_a_later_verdict_keeps_them(store: DirectStore) -> None:
    store.save_incident(incident(id="inc1"))
    first, second = (
        Correction(later(s), "root", cause, Scope.APPLICATION)
        for s, cause in ((1, Cause.USER_CODE), (2, Cause.DATALOADER))
    )
    store.commit([changes.VerdictCorrected("inc1", first)])
    store.save_verdict("inc1", verdict(), AT)
    store.commit([changes.VerdictCorrected("inc1", second)])
    (row,) = store.incident_rows(ids=["inc1"])
    assert [told["cause"] for told in row["corrections"]] == ["user_code", "dataloader"]
    (recorded,) = store.recording(since=AT, until=AT, incident="inc1").incidents
    assert recorded.corrections == (first, second)
    for number in range(30):
        store.commit([changes.VerdictCorrected("inc1", dataclasses.replace(first, note=str(number)))])
    assert len(store.incident_rows(ids=["inc1"])[0]["corrections"]) == 20


def test_a_recording_names_the_incidents_whose_evidence_comes_with_it(store: DirectStore) -> None:
    """Without what was decided of them, which was not asked for. One that has nothing of it is left out."""
    items = [evidence(Kind.XID, node=node, job=number, at_s=at) for node, number, at in (("n1", 7, 0), ("n1", 8, 60))]
    items += [evidence(Kind.XID, node="n2", job=9, at_s=30.0), evidence(Kind.XID, node="n1", job=7, at_s=1.0)]
    store.append(items)
    for name, item in zip(("inc1", "inc2", "inc3"), items, strict=False):
        at_s = (item.at - AT).total_seconds()
        store.save_incident(
            incident(item, id=name, job=item.where.job, nodes=(item.where.node,), opened_s=at_s, updated_s=at_s)
        )
        store.save_verdict(name, verdict(), item.at)
        store.save_plan(dataclasses.replace(PLAN, id=f"plan-{name}", incident=name))
    found = store.recording(since=AT, until=AT, incident="inc1")
    assert [(one.incident.id, one.decided, one.evidence) for one in found.incidents] == [
        ("inc1", True, (items[0].id,)), ("inc2", False, (items[1].id,)),
    ]  # fmt: skip
    assert {item.id for item in found.evidence} == {items[0].id, items[1].id, items[3].id}
    everything = store.recording(since=AT, until=later(100.0))
    assert [one.decided for one in everything.incidents] == [True, True, True]
    late = store.recording(since=later(50.0), until=later(100.0))
    assert [(one.incident.id, one.decided) for one in late.incidents] == [
        ("inc2", True), ("inc1", False), ("inc3", False),
    ]  # fmt: skip
    assert not store.recording(since=later(7200.0), until=later(7300.0)).incidents


def test_incidents_by_the_beginning_of_their_ids_and_nodes_by_name(store: DirectStore) -> None:
    for name in ("ab%1", "ab%2", "abc3"):
        store.save_incident(incident(id=name))
    store.append([evidence(Kind.XID, node="n1")])
    assert store.ids_that_begin("ab%") == ["ab%1", "ab%2"] and store.ids_that_begin("abc") == ["abc3"]
    assert store.ids_that_begin("ab", limit=3) == ["ab%1", "ab%2", "abc3"] and store.ids_that_begin("b") == []
    assert (store.knows_node("n1"), store.knows_node("n")) == (True, False)
