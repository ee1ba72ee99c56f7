"""What a store must hold of evidence and incidents, over SQLite and over PostgreSQL; its schema."""

from __future__ import annotations

import dataclasses
import threading
from datetime import datetime, timedelta, timezone

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from in_memory.direct_store import DirectStore
from made_records import AT, ended, evidence, incident, job, later, plan, step, verdict

from sentinel.adapters.store import loading, tables
from sentinel.adapters.store.database import migrate
from sentinel.adapters.store.lease import DaemonRow
from sentinel.errors import Unavailable
from sentinel.model import changes
from sentinel.model.records import (
    Cause,
    Evidence,
    IncidentState,
    Kind,
    Outcome,
    Result,
    Scalar,
    Source,
    StepKind,
)
from sentinel.model.stored import UnreadableRecord

DRAIN = step(StepKind.DRAIN, node="n1")


PLAN = plan(DRAIN, step(StepKind.RELEASE, job=101, attempt=0))


def _unclaimed(store: DirectStore, since: datetime) -> list[Evidence]:
    return list(store.load(month=since, lately=since, evidence_ids=10).unclaimed)


def test_migrations_make_the_tables_of_this_release(store: DirectStore) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


def test_opening_again_migrates_nothing_and_keeps_everything(store: DirectStore, url: str) -> None:
    store.append([ended()])
    migrate(store.engine)
    again = DirectStore(url)
    assert again.evidence_since(AT) == [ended()]
    again.close()


def test_database_of_the_first_release_keeps_what_it_holds(url: str) -> None:
    """An incident that was judged before the columns of the second migration were there."""
    first = DirectStore(url)
    first.save_incident(incident(ended(), id="old1"), user="ada")
    first.save_verdict("old1", verdict(drain=("n1",)), AT)
    with first.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE counter")
        connection.exec_driver_sql("DROP TABLE daemon")
        connection.exec_driver_sql("DROP INDEX attempt_het")
        connection.exec_driver_sql("ALTER TABLE attempt DROP COLUMN het")
        connection.exec_driver_sql("ALTER TABLE lease DROP COLUMN token")
        connection.exec_driver_sql("DROP TABLE audit")
        for index in ("incident_evidence_evidence", "plan_incident", "notice_incident"):
            connection.exec_driver_sql(f"DROP INDEX {index}")
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("DROP FUNCTION audit_only_added_to()")
        for column in ("culprit_gpus", "culprit_ranks", "seen_on", "onset_step", "users_words", "corrections"):
            connection.exec_driver_sql(f"ALTER TABLE incident DROP COLUMN {column}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    first.close()
    again = DirectStore(url)
    (row,) = again.incident_rows()
    assert (row["culprit_nodes"], row["seen_on"], row["onset_step"]) == (["n1"], None, None)
    again.save_counters([{"node": "n1", "unit": "gpu0", "name": "rows", "at": AT, "value": 1.0}])
    assert len(again.counters(AT)) == 1
    again.close()


def test_a_plan_that_cannot_be_read_is_told_at_the_start_and_stays_as_it_is(store: DirectStore) -> None:
    store.save_incident(incident(ended(), id="i1"))
    store.commit([changes.PlanMade(dataclasses.replace(PLAN, incident="i1"))])
    assert store.load(month=AT, lately=AT, evidence_ids=10).unreadable == ()
    torn = {"incident": "i1", "steps": "torn"}
    with store.engine.begin() as connection:
        connection.execute(tables.plan.update().values(record=torn))
    for _ in range(2):  # it is as unreadable the next time, and known by the same id
        stored = store.load(month=AT, lately=AT, evidence_ids=10)
        assert [(one.kind, one.record) for one in stored.unreadable] == [("Plan", torn)]
        assert stored.unreadable[0].id == UnreadableRecord("Plan", "", torn).id and stored.plans == {}


def test_evidence_is_kept_once(store: DirectStore) -> None:
    one, two = evidence(node="n1"), evidence(node="n2")
    assert store.append([one, two, one]) == [one, two]
    assert store.append([two, ended()]) == [ended()]
    assert store.append([]) == []
    assert store.append([one]) == []
    assert len(store.evidence_since(AT)) == 3


def test_first_telling_stands(store: DirectStore) -> None:
    first = evidence(node="n1", text="as it was", id="e1")
    store.append([first])
    store.append([evidence(node="n1", text="rewritten", id="e1")])
    assert store.evidence_since(AT) == [first]


def test_every_field_comes_back(store: DirectStore) -> None:
    item = dataclasses.replace(
        evidence(
            Kind.XID, node="n1", job=101, attempt=2, rank=5, text="öl\x00\x1b[31m\ud800", data={"xid": 79, "a": None}
        ),
        at=AT.astimezone(timezone(timedelta(hours=5, minutes=30))),
        rule="r",
        line=7,
    )
    store.append([item])
    (found,) = store.evidence_since(AT)
    assert found == item and found.data == item.data and found.at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_loss_that_is_no_number_can_be_kept(store: DirectStore, number: float) -> None:
    """It is what the evidence of a diverged run says; a batch with it must not be refused."""
    item = evidence("nan", source=Source.JOB_LOG, job=101, data={"loss": number})
    assert store.append([item, ended()]) == [item, ended()]
    (found,) = (e for e in store.evidence_since(AT) if e.kind == "nan")
    assert repr(found.data["loss"]) == repr(number)


def test_evidence_of_a_job_and_of_a_node(store: DirectStore) -> None:
    items = [evidence(node="n1", at_s=2.0), evidence(node="n2", job=101, at_s=1.0), ended(at_s=3.0)]
    store.append(items)
    assert [e.at for e in store.evidence_since(AT)] == [later(1), later(2), later(3)]
    assert store.evidence_since(later(1.5)) == [items[0], items[2]]
    assert store.evidence_since(AT, job=101) == [items[1], items[2]]
    assert store.evidence_since(AT, node="n1") == [items[0]]
    assert store.evidence_since(AT, job=101, node="n2") == [items[1]]


def test_tiers_of_a_jobs_saves(store: DirectStore) -> None:
    """One in the shared folder comes for many on the nodes."""

    def saved(number: int, data: dict[str, Scalar], of: int = 101) -> Evidence:
        return evidence(Kind.CHECKPOINT_SAVED, source=Source.CHECKPOINT, job=of, at_s=float(number), data=data)

    assert store.tiers_saved(101) == frozenset()
    store.append([saved(number, {"step": number, "tier": "local"}) for number in range(1, 200)])
    assert store.tiers_saved(101) == {"local"}
    store.append([saved(0, {"step": 0, "tier": "global"}), saved(5, {"step": 7}, of=102)])
    assert store.tiers_saved(101) == {"local", "global"} and store.tiers_saved(102) == {""}
    chosen = step(StepKind.CHOOSE_CHECKPOINT, job=103, attempt=0)
    store.intend(plan(chosen), chosen, AT)
    store.record(plan(chosen), Outcome(chosen, Result.DONE, AT, data={"path": "/s/step-5", "tier": "global"}))
    assert store.tiers_saved(103) == {"global"} and store.tiers_saved(104) == frozenset()
    assert store.tiers_saved(101, after=0) == frozenset()
    assert store.tiers_saved(103, after=0) == {"global"} and store.tiers_saved(103, after=1) == frozenset()


def test_same_batch_from_two_threads_is_kept_once(store: DirectStore) -> None:
    """An agent that got no answer in time sends again while the first request still runs."""
    items = [evidence(node="n1", at_s=float(i)) for i in range(50)]
    ready, fresh, errors = threading.Barrier(4), list[Evidence](), list[Exception]()

    def send() -> None:
        ready.wait()
        try:
            fresh.extend(store.append(items))
        except Unavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(e.at for e in fresh) == [e.at for e in items]


def test_retention_spares_what_incidents_refer_to(store: DirectStore) -> None:
    old, kept, young = evidence(at_s=-10, node="n1"), evidence(at_s=-20, node="n2"), evidence(at_s=10, node="n3")
    store.append([old, kept, young])
    store.save_incident(incident(kept))
    assert store.forget(AT) == 1
    assert store.evidence_since(later(-60)) == [kept, young]


def test_attempts_that_run_are_loaded_however_old_and_ended_ones_for_a_week(store: DirectStore) -> None:
    month_s = -30 * 86400.0
    store.commit([changes.AttemptSeen(job(1, started_s=month_s), 0, 900, 2.0)])
    for number, days in ((2, 6.0), (3, 8.0)):
        over = dataclasses.replace(job(number, state="failed", started_s=month_s), ended_at=later(-86400.0 * days))
        store.commit([changes.AttemptSeen(over)])
    found = store.load(month=AT, lately=AT, evidence_ids=10).recent_attempts
    assert {row["job"]: row["last_step"] for row in found} == {1: 900, 2: None}


def test_a_closed_incident_is_loaded_while_a_job_has_the_exclusions_that_it_wrote(store: DirectStore) -> None:
    """However long ago: these end when its nodes are proven good, also under the next daemon."""
    ended = dataclasses.replace(job(101, state="failed", started_s=-90_000.0), ended_at=later(-80_000.0))
    store.commit([changes.AttemptSeen(ended)])
    for number, name in enumerate(("older", "newer", "of_another_job")):
        exclude = step(StepKind.EXCLUDE, job=7 if name == "of_another_job" else 101, attempt=number)
        made = plan(exclude, incident=name)
        over = incident(id=name, job=exclude.job)
        store.save_incident(dataclasses.replace(over, state=IncidentState.CLOSED, closed_at=later(-70_000.0)))
        store.save_plan(made)
        store.intend(made, exclude, later(-80_000.0 + number))
        store.finish_plan(made)
    assert [one.id for one in store.load(month=AT, lately=AT, evidence_ids=10).incidents] == ["newer"]


def test_of_much_unclaimed_evidence_the_newest_is_taken(store: DirectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MOST_EVIDENCE", 2)
    items = [evidence(node=f"n{number}", at_s=number) for number in range(4)]
    store.append(items)
    assert _unclaimed(store, AT) == items[2:]


def test_incidents_that_share_evidence_each_have_all_of_theirs(store: DirectStore) -> None:
    shared, own = evidence(node="n1", at_s=2.0), [evidence(node="n2", at_s=1.0), evidence(node="n3", at_s=3.0)]
    store.append([shared, *own])
    for number, item in enumerate(own):
        store.save_incident(incident(item, shared, id=f"inc{number}"))
    first, second = store.load(month=AT, lately=AT, evidence_ids=10).incidents
    assert (first.evidence, second.evidence) == ((own[0], shared), (shared, own[1]))


def test_unclaimed_is_what_no_incident_refers_to(store: DirectStore) -> None:
    old, claimed, free = evidence(at_s=-10, node="n1"), evidence(node="n2"), evidence(at_s=1, node="n3")
    store.append([old, free, claimed])
    store.save_incident(incident(claimed))
    assert _unclaimed(store, AT) == [free]


def test_incident_comes_back_with_its_evidence_in_order(store: DirectStore) -> None:
    items = [ended(at_s=2.0), evidence(node="n1", at_s=1.0)]
    store.append(items)
    made = dataclasses.replace(incident(*reversed(items), nodes=("n1", "n2")), outcome="ok")
    store.save_incident(made, user="ada")
    store.save_incident(made)
    assert store.incident("inc1") == made
    assert store.incident_rows()[0]["user"] == "ada"  # not wiped by a later save
    assert store.incident("other") is None


def test_incident_that_grows_is_saved_with_all_of_its_evidence(store: DirectStore, url: str) -> None:
    items = [evidence(node="n1", at_s=float(number)) for number in range(5)]
    store.append(items)
    for count in (1, 3, 3, 5):
        store.save_incident(incident(*items[:count]))
    found = store.incident("inc1")
    assert found is not None and list(found.evidence) == items
    assert _unclaimed(store, AT) == []
    again = DirectStore(url)  # another daemon knows nothing of what the first one has linked
    try:
        again.save_incident(incident(*items))
        assert again.incident("inc1") == store.incident("inc1")
    finally:
        again.close()


def test_incident_that_was_forgotten_and_comes_again_is_whole(store: DirectStore) -> None:
    item = evidence(node="n1")
    over = dataclasses.replace(incident(item, state=IncidentState.CLOSED), closed_at=AT)
    store.append([item])
    store.save_incident(over)
    store.forget(later(60))
    assert store.incident("inc1") is None
    store.append([item])
    store.save_incident(over)
    assert store.incident("inc1") == over


def test_open_incidents_are_all_that_are_not_closed(store: DirectStore) -> None:
    for number, state in enumerate(IncidentState):
        store.save_incident(incident(id=str(state), state=state, opened_s=float(number)))
    assert {i.id for i in store.open_incidents()} == {"open", "waiting", "held", "watching"}
    assert store.incident_ids(states=[IncidentState.CLOSED]) == ["closed"]
    assert store.incident_ids(since=later(3.0)) == ["closed", "watching"]  # newest first
    assert [r["id"] for r in store.incident_rows(limit=2)] == ["closed", "watching"]
    assert [r["id"] for r in store.incident_rows(since=later(4.0))] == ["closed"]
    assert store.incident_rows(job=7) == []


def test_last_verdict_counts_and_the_first_decision_keeps_its_time(store: DirectStore) -> None:
    store.save_incident(incident())
    store.save_verdict("inc1", verdict(Cause.PCIE, drain=("n1",), gpus=("n1:3",)), AT)
    last = verdict(Cause.GPU_NVLINK, suspect=("n2",), onset_step=4)
    store.save_verdict("inc1", last, later(9.0))
    assert store.last_verdict("inc1") == last
    row = store.incident_rows()[0]
    assert (row["cause"], row["culprit_nodes"], row["decided_at"]) == ("gpu_nvlink", [], AT)
    assert store.last_verdict("other") is None


def own(name: str, beats: int = 0) -> DaemonRow:
    return DaemonRow(name, f"http://{name}:9478", "1.0", beats, AT)
