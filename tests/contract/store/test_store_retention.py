"""What a store forgets, and what it never does, over SQLite and over PostgreSQL."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, evidence, incident, job, later, plan, step, verdict

from sentinel.adapters.store import retention
from sentinel.errors import Unavailable
from sentinel.model.changes import CountersRead
from sentinel.model.records import IncidentState, Notice, Outcome, Result, StepKind

FEDERATED = 2**32 - 5  # a job id with the cluster's number in its high bits
DAY = 86_400.0


def lived(store: DirectStore, name: str, state: IncidentState, at_s: float) -> None:
    """An incident with all that belongs to it, last changed then."""
    ground = evidence(at_s=at_s, node="n1", text=name)
    store.append([ground])
    at = later(at_s)
    closed = at if state is IncidentState.CLOSED else None
    changes = {"id": name, "opened_at": at, "updated_at": at, "state": state, "closed_at": closed}
    store.save_incident(dataclasses.replace(incident(ground), **changes))  # type: ignore[arg-type]
    store.save_verdict(name, verdict(), at)
    made = dataclasses.replace(plan(step(StepKind.DRAIN, node="n1"), incident=name), id=f"plan-{name}")
    store.save_plan(made)
    store.intend(made, made.steps[0], at)
    store.record(made, Outcome(made.steps[0], Result.DONE, at))
    store.record_notice(Notice(f"notice-{name}", name, at, "title", "body"), "pager", delivered=True)


def left(store: DirectStore, name: str) -> list[bool]:
    return [
        store.incident(name) is not None,
        store.last_verdict(name) is not None,
        store.plan_of(name) is not None,
        bool(store.steps_of(name)),
        store.knows_notice(f"notice-{name}", "pager"),
    ]


@pytest.mark.parametrize(
    ("state", "stays"),
    [
        (IncidentState.CLOSED, False),
        (IncidentState.HELD, False),
        (IncidentState.OPEN, True),
        (IncidentState.WAITING, True),  # for what Sentinel's own limits allow later
        (IncidentState.WATCHING, True),
    ],
)
def test_an_old_incident_goes_with_all_of_it_unless_it_is_open(
    store: DirectStore, state: IncidentState, stays: bool
) -> None:
    lived(store, "old", state, -10 * DAY)
    lived(store, "young", state, 0.0)
    store.forget(later(-DAY))
    assert left(store, "old") == [stays] * 5 and left(store, "young") == [True] * 5
    assert len(store.evidence_since(later(-20 * DAY))) == 1 + stays


@pytest.mark.parametrize("delivered", [True, False])
def test_an_old_message_about_no_incident_goes_whether_or_not_it_was_taken(store: DirectStore, delivered: bool) -> None:
    for name, at_s in (("old", 0.0), ("new", 2 * DAY)):
        store.record_notice(Notice(name, "", later(at_s), "title", "body"), "pager", delivered=delivered)
    store.forget(later(DAY))
    assert [store.knows_notice(name, "pager") for name in ("old", "new")] == [False, True]


def test_an_attempt_that_ended_long_ago_goes_and_one_that_runs_stays(store: DirectStore) -> None:
    for number, (state, ended_s) in enumerate([("failed", -9 * DAY), ("running", None), ("failed", -60.0)]):
        ended_at = later(ended_s) if ended_s is not None else None
        seen = dataclasses.replace(job(), id=number, state=state, started_at=later(-10 * DAY), ended_at=ended_at)
        store.save_attempt(seen, first_step=1, last_step=2, step_time_s=1.0)
    store.forget(later(-DAY))
    assert [row["job"] for row in store.attempts()] == [1, 2]


def test_beyond_its_size_the_store_forgets_the_oldest_first(store: DirectStore) -> None:
    noise = random.Random(7)  # what a database cannot compress
    for day in range(40):
        texts = [f"x{noise.randbytes(1500).hex()}" for _ in range(20)]
        store.append([evidence(at_s=-day * DAY - item, node="n1", text=text) for item, text in enumerate(texts)])
    lived(store, "open", IncidentState.OPEN, -39.5 * DAY)
    assert store.forget_beyond(1 << 30, AT, later(-100 * DAY)) == later(-100 * DAY)
    assert len(store.evidence_since(later(-100 * DAY))) == 801
    since = store.forget_beyond(1 << 20, AT, later(-100 * DAY))
    assert later(-30 * DAY) < since < later(-2 * DAY)
    kept = [item for item in store.evidence_since(later(-100 * DAY)) if item.text.startswith("x")]
    assert kept and min(item.at for item in kept) >= since
    assert left(store, "open") == [True] * 5


def flooded(store: DirectStore, noise: random.Random, user: str, number: int, days: int, each: int) -> None:
    """So much evidence of one user's job on each day, half of it in closed incidents."""
    ran = dataclasses.replace(job(), id=number, user=user, started_at=later(-days * DAY), ended_at=None)
    store.save_attempt(ran, first_step=1, last_step=2, step_time_s=1.0)
    for day in range(days):
        texts = [noise.randbytes(1500).hex() for _ in range(each)]
        items = [evidence(at_s=-day * DAY - n, job=number, attempt=0, text=text) for n, text in enumerate(texts)]
        store.append(items)
        at = later(-day * DAY)
        changes = {"id": f"{user}{day}", "opened_at": at, "state": IncidentState.CLOSED, "closed_at": at, "job": number}
        store.save_incident(dataclasses.replace(incident(*items[: each // 2]), **changes), user=user)  # type: ignore[arg-type]


def test_one_user_s_flood_costs_nobody_else_s_history(store: DirectStore) -> None:
    noise = random.Random(7)
    flooded(store, noise, "ada", 101, 40, 2)
    flooded(store, noise, "eve", 102, 40, 40)
    assert store.forget_beyond(1 << 20, AT, later(-100 * DAY)) == later(-100 * DAY)
    assert len(store.evidence_since(later(-100 * DAY), job=101)) == 80
    assert len([row for row in store.incident_rows() if row["user"] == "ada"]) == 40
    kept = store.evidence_since(later(-100 * DAY), job=102)
    assert 0 < len(kept) < 400 and min(item.at for item in kept) > later(-20 * DAY)
    assert store.attempts(job=102)


def test_evidence_of_a_time_that_has_not_come_ages_from_when_it_was_seen(store: DirectStore) -> None:
    """A node's clock is a year ahead, or a user set the time of a file."""
    year = 365 * DAY
    given = {"early": -50 * DAY, "late": -60.0, "ahead": year, "now": -60.0}  # when it was seen
    for name, seen_s in given.items():
        item = evidence(at_s=-60.0 if name == "now" else year, node="n1", text=name, id=name)
        store.append([dataclasses.replace(item, seen_at=later(seen_s))])

    def kept() -> set[str]:
        return {item.id for item in store.evidence_since(later(-100 * DAY))}

    store.forget_beyond(1 << 30, AT, later(-10 * DAY))
    assert kept() == {"late", "ahead", "now"}
    store.forget_beyond(1 << 30, later(20 * DAY), later(10 * DAY))
    assert kept() == set(), "of the one ahead it was first known now that it was there"


def test_one_user_s_flood_of_times_to_come_costs_nobody_else_s_history(store: DirectStore) -> None:
    noise = random.Random(7)
    flooded(store, noise, "ada", 101, 40, 2)
    flooded(store, noise, "eve", 102, 40, 1)
    texts = [noise.randbytes(1500).hex() for _ in range(1600)]
    flood = [evidence(at_s=400 * DAY + n, job=102, attempt=0, text=text) for n, text in enumerate(texts)]
    store.append([dataclasses.replace(item, seen_at=later(-n / 40 * DAY)) for n, item in enumerate(flood)])
    assert store.forget_beyond(1 << 20, AT, later(-100 * DAY)) == later(-100 * DAY)
    assert len(store.evidence_since(later(-100 * DAY), job=101)) == 80
    kept = store.evidence_since(later(-100 * DAY), job=102)
    assert 0 < len(kept) < 400 and min(item.seen_at for item in kept) > later(-20 * DAY)


@pytest.mark.parametrize("former", ["ada", "zoe"])
def test_one_user_s_flood_costs_nobody_else_s_history_where_their_jobs_had_one_id(
    store: DirectStore, former: str
) -> None:
    began, ended = later(-60 * DAY), later(-45 * DAY)
    before = dataclasses.replace(job(), id=102, user=former, started_at=began, ended_at=ended)
    store.save_attempt(before, first_step=1, last_step=2, step_time_s=1.0)
    store.append([evidence(at_s=-50 * DAY - n, job=102, attempt=0, text=f"of {former} {n}") for n in range(30)])
    flooded(store, random.Random(7), "eve", 102, 40, 40)
    sizes = retention.users_bytes(store._pruned)
    assert sizes["eve"] > 100 * sizes[former]
    assert sizes == {user: retention.user_bytes(store._pruned, user) for user in ("eve", former)}
    assert store.forget_beyond(1 << 20, AT, later(-100 * DAY)) == later(-100 * DAY)
    kept = store.evidence_since(later(-100 * DAY), job=102)
    assert len([item for item in kept if item.text.startswith(f"of {former}")]) == 30
    assert 30 < len(kept) < 430


@pytest.mark.parametrize("after", [1, 2])
def test_a_user_s_bytes_count_once_where_another_s_job_gets_the_id_meanwhile(store: DirectStore, after: int) -> None:
    ran = dataclasses.replace(job(), id=102, user="eve", started_at=later(-DAY), ended_at=later(-60.0))
    store.save_attempt(ran, first_step=1, last_step=2, step_time_s=1.0)
    store.append([evidence(at_s=-DAY / 2 - n, job=102, attempt=0, text=f"of eve {n}") for n in range(5)])
    whole = retention.user_bytes(store._pruned, "eve")
    begun = 0

    @contextlib.contextmanager
    def read() -> Iterator[sa.Connection]:
        nonlocal begun
        if begun == after:
            other = dataclasses.replace(job(), id=102, user="bob", started_at=AT)
            store.save_attempt(other, first_step=None, last_step=None, step_time_s=None)
        begun += 1
        with store._pruned.read() as connection:
            yield connection

    assert retention.users_bytes(retention.Access(read, store._pruned.delete)) == {"eve": whole}


def test_pruning_holds_up_a_commit_for_no_more_than_a_thousand_rows(store: DirectStore) -> None:
    noise = random.Random(7)
    store.append([evidence(at_s=-90 * DAY - n, node="n1", text=f"old {n}") for n in range(2500)])
    store.save_closed(150, later(-90 * DAY))
    flooded(store, noise, "eve", 102, 40, 80)
    transactions: list[list[tuple[str, int]]] = [[]]  # of those that write: statements with the rows that they changed

    def begun(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("reads"):
            transactions.append([])

    def executed(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
        if not connection.get_execution_options().get("reads"):
            transactions[-1].append((statement, cursor.rowcount))

    sa.event.listen(store.engine, "begin", begun)
    sa.event.listen(store.engine, "after_cursor_execute", executed)
    store.forget_beyond(1 << 20, AT, later(-60 * DAY))
    deleted = [sum(count for words, count in one if words.startswith("DELETE FROM evidence")) for one in transactions]
    assert max(deleted) <= 1000 and sum(deleted) > 2500 + 1600
    assert not [words for one in transactions for words, _ in one if "sum(" in words]
    incidents = [
        sum(count for words, count in one if words.startswith("DELETE FROM incident ")) for one in transactions
    ]
    assert 0 < max(incidents) <= 100


def test_nothing_is_pruned_once_the_lease_is_given_back(store: DirectStore) -> None:
    store.append([evidence(at_s=-90 * DAY, node="n1")])
    store.leave_lease("here:1")
    with pytest.raises(Unavailable):
        store.forget(later(-60 * DAY))
    assert len(store.evidence_since(later(-100 * DAY))) == 1


def test_counters_of_many_days_go_with_the_rest(store: DirectStore) -> None:
    names = ("node", "unit", "name", "at", "value")
    rows = [dict(zip(names, ("n1", "gpu0", f"c{n}", later(-n * DAY / 30), 1.0), strict=True)) for n in range(3000)]
    store.commit([CountersRead(rows)])
    store.forget(later(-60 * DAY))
    assert len(store.counters(later(-200 * DAY))) == 1801


def test_of_a_greedy_user_what_is_open_or_held_stays(store: DirectStore) -> None:
    noise = random.Random(7)
    flooded(store, noise, "eve", 102, 20, 40)
    lived(store, "held", IncidentState.HELD, -15 * DAY)
    store.save_incident(dataclasses.replace(store.incident("held"), job=102), user="eve")  # type: ignore[type-var]
    store.forget_beyond(1 << 20, AT, later(-100 * DAY))
    assert left(store, "held") == [True] * 5


def test_of_a_greedy_user_each_failure_stays_beside_the_work_without_its_texts(store: DirectStore) -> None:
    noise = random.Random(7)
    flooded(store, noise, "eve", 102, 20, 40)
    lived(store, "old", IncidentState.CLOSED, -15 * DAY)
    lived(store, "drained", IncidentState.CLOSED, -15 * DAY)
    for name in ("old", "drained"):
        store.save_incident(dataclasses.replace(store.incident(name), job=102), user="eve")  # type: ignore[type-var]
    before = {(row["id"], row["cause"]) for row in store.incident_rows()}
    store.forget_beyond(1 << 20, AT, later(-100 * DAY), {"drained"})
    assert {(row["id"], row["cause"]) for row in store.incident_rows()} == before
    assert left(store, "old") == [True, False, False, True, False]  # itself and its steps
    assert left(store, "drained") == [True] * 5


def test_an_incident_that_is_spared_stays_whole_however_old(store: DirectStore) -> None:
    for name in ("drained", "other"):
        lived(store, name, IncidentState.CLOSED, -50 * DAY)
    store.forget(later(-DAY), {"drained"})
    assert left(store, "drained") == [True] * 5 and left(store, "other") == [False] * 5
    assert store.incident("drained").evidence  # type: ignore[union-attr]


def test_the_last_day_stays_however_small_the_store_may_be(store: DirectStore) -> None:
    store.append([evidence(at_s=-60.0, node="n1"), evidence(at_s=-50 * DAY, node="n1")])
    store.forget_beyond(1, AT, later(-400 * DAY))
    assert [item.at for item in store.evidence_since(later(-100 * DAY))] == [later(-60.0)]


def test_job_ids_of_a_federation_are_kept_whole(store: DirectStore) -> None:
    ground = evidence(job=FEDERATED, attempt=0)
    store.append([ground])
    store.save_incident(dataclasses.replace(incident(ground), job=FEDERATED, attempt=0))
    release = step(StepKind.RELEASE, job=FEDERATED, attempt=0)
    store.intend(plan(release), release, AT)
    store.record(plan(release), Outcome(release, Result.DONE, AT))
    store.save_attempt(
        dataclasses.replace(job(), id=FEDERATED, started_at=AT), first_step=1, last_step=2, step_time_s=1
    )
    assert [row["job"] for row in store.incident_rows(job=FEDERATED)] == [FEDERATED]
    assert [row["job"] for row in store.steps_done([StepKind.RELEASE], job=FEDERATED)] == [FEDERATED]
    assert [row["job"] for row in store.attempts(job=FEDERATED)] == [FEDERATED]
    assert store.evidence_since(AT, job=FEDERATED) == [ground]
