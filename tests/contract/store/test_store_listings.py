"""What listings ask of a store, over SQLite and over PostgreSQL: by state, owner, id, node and job, whatever is newer."""

from __future__ import annotations

import dataclasses

import pytest
from in_memory.direct_store import DirectStore
from made_records import AT, evidence, incident, job, later, verdict

from sentinel.model.changes import VerdictCorrected
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, IncidentState, Kind, Scope

NAMES = ("n1", "n10", "n_1", "n%", 'n"x', "nö", "n\\y")


@pytest.fixture
def filled(store: DirectStore) -> DirectStore:
    for number, name in enumerate(NAMES):
        item = evidence(Kind.XID, node=name, id=f"e{number}")
        state = IncidentState.HELD if number % 2 else IncidentState.CLOSED
        store.append([item])
        opened = incident(
            item, id=f"a{number}", job=100 + number, nodes=(name,), state=state, opened_s=float(number // 2)
        )
        store.save_incident(opened, user="ada" if number < 4 else "bob")
        store.save_verdict(f"a{number}", verdict(drain=(name,)), AT)
    return store


def ids(rows: list[dict[str, object]]) -> list[object]:
    return [row["id"] for row in rows]


def test_incidents_by_state_owner_job_and_beginning_of_the_id(filled: DirectStore) -> None:
    assert ids(filled.incident_rows(still_open=True)) == ["a5", "a3", "a1"]
    assert ids(filled.incident_rows(still_open=True, user="ada", limit=1)) == ["a3"]
    assert ids(filled.incident_rows(jobs=[100, 106])) == ["a6", "a0"] and filled.incident_rows(jobs=[]) == []
    assert ids(filled.incident_rows(beginning="a1")) == ["a1"] and filled.incident_rows(beginning="a%") == []


def test_a_listing_read_in_parts_has_each_row_once(filled: DirectStore) -> None:
    """Two were opened at each moment."""
    found, after = list[object](), None
    while part := filled.incident_rows(after=after, limit=3):
        found += ids(part)
        after = part[-1]["opened_at"], part[-1]["id"]
    assert found == ids(filled.incident_rows()) == ["a6", "a5", "a4", "a3", "a2", "a1", "a0"]


def test_a_whole_history_comes_in_parts_with_what_sums_are_made_of(filled: DirectStore) -> None:
    rows = list(filled.each_incident(limit=2, summed=True))
    assert ids(rows) == ["a6", "a5", "a4", "a3", "a2", "a1", "a0"]
    whole = {row["id"]: row for row in filled.incident_rows()}
    assert all(row.items() <= whole[row["id"]].items() and "nodes" not in row for row in rows)
    assert ids(list(filled.each_incident(limit=2, user="bob"))) == ["a6", "a5", "a4"]
    assert list(filled.each_incident(since=later(60.0))) == []


def test_incidents_by_the_cause_that_was_judged_or_may_have_been_corrected(filled: DirectStore) -> None:
    told = Correction(at=AT, by="root", cause=Cause.USER_CODE, scope=Scope.APPLICATION)
    filled.commit([VerdictCorrected("a3", told)])
    assert ids(filled.incident_rows(corrected=True)) == ["a3"]
    assert ids(filled.incident_rows(cause="user_code")) == ["a3"]
    assert len(filled.incident_rows(cause="gpu_memory_ecc")) == len(NAMES)


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_rows_that_name_a_node_are_among_those_asked_for(filled: DirectStore, number: int, name: str) -> None:
    assert ids(filled.incident_rows(naming=[name])) == [f"a{number}"]
    filled.save_attempt(job(7, nodes=("other", name)), first_step=None, last_step=None, step_time_s=None)
    assert filled.jobs_on([name], since=None) == {7} and filled.jobs_on(["othe", "n"], since=None) == set()


def test_of_too_many_nodes_the_database_is_not_asked(filled: DirectStore) -> None:
    many = [f"m{number}" for number in range(60)]
    filled.save_attempt(job(7, nodes=("m59",)), first_step=None, last_step=None, step_time_s=None)
    filled.save_attempt(job(8, nodes=("n1",)), first_step=None, last_step=None, step_time_s=None)
    assert len(filled.incident_rows(naming=many)) == len(NAMES)
    assert filled.jobs_on(many, since=None) == {7}


def test_jobs_with_their_attempts_and_each_attempt_once(store: DirectStore) -> None:
    def save(number: int, attempt: int, start_s: float, end_s: float | None, name: str = "train") -> None:
        state = "running" if end_s is None else "failed"
        view = job(number, restarts=attempt, started_s=start_s, state=state, name=name)
        ended_at = later(end_s) if end_s is not None else None
        store.save_attempt(
            dataclasses.replace(view, ended_at=ended_at), first_step=None, last_step=None, step_time_s=None
        )

    save(1, 0, -900.0, -800.0)
    save(1, 1, -900.0, -790.0)  # Slurm still showed the start before
    save(1, 1, -700.0, None)
    save(2, 0, -600.0, -500.0)
    save(3, 0, -2000.0, -1900.0)
    save(3, 0, -100.0, -90.0, name="another job of that id")
    assert [(row["attempt"], row["started_at"]) for row in store.attempts(job=1)] == [
        (0, later(-900)),
        (1, later(-700)),
    ]
    assert len(store.attempts(job=3)) == 2 and [row["job"] for row in store.attempts(jobs=[2, 3])] == [3, 2, 3]
    assert [(number, endless) for number, _, endless, *_ in store.jobs_that_ran(since=None)] == [
        (3, False), (2, False), (1, True),
    ]  # fmt: skip
    assert [number for number, *_ in store.jobs_that_ran(since=later(-550.0), only=[1, 2])] == [2, 1]
    assert store.jobs_that_ran(since=None, user="bob") == []
