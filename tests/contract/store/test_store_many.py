"""A store with more incidents than one reading takes: what is open is loaded, and a whole history comes in parts."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, evidence, incident, later

from sentinel.adapters.store import step_query, tables
from sentinel.model.records import IncidentState, Kind, Result, StepKind

DAY = timedelta(days=1)


def test_what_is_open_is_loaded_behind_any_number_of_newer_incidents(store: DirectStore) -> None:
    item = evidence(Kind.XID, node="n1", id="e1")
    store.append([item])
    for state in IncidentState:
        store.save_incident(incident(item, id=f"old-{state}", state=state), user="ada")
    store.save_closed(5001, later(60.0))
    stored = store.load(month=AT - DAY, lately=AT + DAY, evidence_ids=10)
    there = {IncidentState.OPEN, IncidentState.WATCHING, IncidentState.WAITING, IncidentState.HELD}
    assert {one.id for one in stored.incidents} == {f"old-{state}" for state in there}
    assert all(one.evidence == (item,) for one in stored.incidents)
    assert len(stored.judged) == 5001  # what a daemon that had never stopped would know


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_the_server_ends_no_reading_that_is_decoded_for_longer_than_a_client_may_be_frozen(
    store: DirectStore, url: str
) -> None:
    """A daemon that the limit for its own locks ends while it decodes a long ledger never starts again."""
    save_steps(store, 3000)
    store.save_closed(3000, AT)
    reader = DirectStore(url, read_only=True, frozen_s=0.001)  # each row takes a hundredth of that
    try:
        stored = reader.load(month=AT - DAY, lately=AT + DAY, evidence_ids=10)
        assert len(stored.steps) == 3000 and len(stored.judged) == 3000
        assert len(reader.steps_done([StepKind.DRAIN])) == 3000
        assert len(reader.incident_rows(limit=3000)) == 3000
    finally:
        reader.close()


def test_a_ledger_is_read_in_parts_each_with_a_deadline_of_its_own(
    store: DirectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of one moment lie on both sides of a part's end: none is left out or comes twice."""
    save_steps(store, 25)
    expected = [f"n{number:05}" for number in range(25)]
    whole = store.steps_done([StepKind.DRAIN, StepKind.DOWN], since=AT, job=7)
    assert sorted(row["node"] for row in whole) == expected
    monkeypatch.setattr(step_query, "PART_ROWS", 4)
    begun: list[object] = []
    sa.event.listen(store._readers, "begin", begun.append)
    found = store.steps_done([StepKind.DRAIN, StepKind.DOWN], since=AT, job=7)
    assert sorted(row["node"] for row in found) == expected and len(begun) == 7
    assert [row["intended_at"] for row in found] == sorted(row["intended_at"] for row in found)
    del begun[:]
    steps = store.load(month=AT, lately=AT, evidence_ids=10).steps
    assert sorted(str(row.step.node) for row in steps) == expected and len(begun) == 7 + 1
    assert [row.intended_at for row in steps] == sorted(row.intended_at for row in steps)


def save_steps(store: DirectStore, count: int) -> None:
    """So many drains that were done, ten of each moment."""
    rows = [
        {"key": f"{number * 7919 % count:040}", "incident": f"many{90_000 + number:06}", "plan": "p", "kind": StepKind.DRAIN,
         "node": f"n{number:05}", "job": 7, "attempt": 0, "intended_at": at, "finished_at": at, "result": Result.DONE,
         "reason": "", "data": {}, "record": {"data": {}, "tries": 0}}
        for number in range(count)
        for at in (later(float(number // 10)),)
    ]  # fmt: skip
    with store.engine.begin() as connection:
        connection.execute(sa.insert(tables.step), rows)
