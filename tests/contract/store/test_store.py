"""What a store must hold, over SQLite and over PostgreSQL."""

from __future__ import annotations

import dataclasses
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from in_memory.direct_store import DirectStore
from made_records import AT, ended, evidence, incident, job, later, plan, step, verdict

from sentinel.adapters.store import lease, loading, tables
from sentinel.adapters.store.changes import write as write_change
from sentinel.adapters.store.database import migrate
from sentinel.adapters.store.lease import DaemonRow, LeaseView
from sentinel.errors import Superseded, Unavailable
from sentinel.model import changes
from sentinel.model.corrections import Correction
from sentinel.model.records import (
    Cause,
    Evidence,
    Ground,
    IncidentState,
    Kind,
    Notice,
    Outcome,
    Result,
    Scalar,
    Scope,
    Source,
    StepKind,
)
from sentinel.model.stored import UnreadableRecord

DRAIN = step(StepKind.DRAIN, node="n1")
PLAN = plan(DRAIN, step(StepKind.RELEASE, job=101, attempt=0))


def _unclaimed(store: DirectStore, since: datetime) -> list[Evidence]:
    return list(store.load(month=since, lately=since, evidence_ids=10).unclaimed)


# --- schema ------------------------------------------------------------------------------------------------------------


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


# --- evidence ----------------------------------------------------------------------------------------------------------


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


# --- incidents ---------------------------------------------------------------------------------------------------------


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


# --- plans and the ledger ----------------------------------------------------------------------------------------------


def test_plan_is_open_until_it_is_finished(store: DirectStore) -> None:
    store.save_plan(PLAN)
    assert store.open_plans() == [PLAN] and store.plan_of("inc1") == PLAN
    longer = dataclasses.replace(PLAN, steps=(*PLAN.steps, step(StepKind.CONFIRM, job=101, attempt=0)))
    store.save_plan(longer)
    assert store.open_plans() == [longer]
    store.finish_plan(longer)
    assert store.open_plans() == [] and store.plan_of("inc1") == longer


@pytest.mark.parametrize("made", [plan(refusal="breaker"), plan(DRAIN, observe_only=True), plan()])
def test_plan_with_nothing_to_do_is_never_open(store: DirectStore, made: object) -> None:
    store.save_plan(made)  # type: ignore[arg-type]
    assert store.open_plans() == []


@pytest.mark.parametrize(
    ("result", "again"), [(None, True), (Result.NOT_KNOWN, True), (Result.DONE, False), (Result.FAILED, False)]
)
def test_step_with_a_final_outcome_is_not_begun_again(store: DirectStore, result: Result | None, again: bool) -> None:
    assert store.intend(PLAN, DRAIN, AT)
    assert store.outcome("inc1", DRAIN) is None
    if result is not None:
        made = Outcome(DRAIN, result, later(1.0), "why", {"a": 1})
        store.record(PLAN, made)
        found = store.outcome("inc1", DRAIN)
        assert found == made and found.data == {"a": 1}
    assert store.intend(PLAN, DRAIN, later(2.0)) is again
    assert len(store.steps_of("inc1")) == 1
    assert store.steps_of("inc1")[0]["intended_at"] == AT


def test_step_is_another_for_another_incident_node_or_attempt(store: DirectStore) -> None:
    assert store.intend(PLAN, DRAIN, AT)
    store.record(PLAN, Outcome(DRAIN, Result.DONE, AT))
    assert store.intend(plan(DRAIN, incident="inc2"), DRAIN, AT)
    assert store.intend(PLAN, step(StepKind.DRAIN, node="n2"), AT)
    release = step(StepKind.RELEASE, job=101, attempt=0)
    assert store.intend(PLAN, release, AT)
    store.record(PLAN, Outcome(release, Result.DONE, AT))
    assert store.intend(PLAN, step(StepKind.RELEASE, job=101, attempt=1), AT)


def test_outcome_without_an_intent_is_not_invented(store: DirectStore) -> None:
    store.record(PLAN, Outcome(DRAIN, Result.DONE, AT))
    assert store.outcome("inc1", DRAIN) is None


def test_steps_done_are_those_that_were(store: DirectStore) -> None:
    for number, result in enumerate([Result.DONE, Result.FAILED, Result.NOT_KNOWN]):
        this = step(StepKind.DRAIN, node=f"n{number}")
        store.intend(PLAN, this, later(number))
        store.record(PLAN, Outcome(this, result, later(number)))
    release = step(StepKind.RELEASE, job=101, attempt=0)
    store.intend(PLAN, release, later(5.0))
    store.record(PLAN, Outcome(release, Result.DONE, later(5.0)))
    assert [row["node"] for row in store.steps_done([StepKind.DRAIN, StepKind.DOWN])] == ["n0"]
    assert store.steps_done([StepKind.DRAIN], since=later(1.0)) == []
    assert [row["kind"] for row in store.steps_done([StepKind.RELEASE, StepKind.DRAIN], job=101)] == ["release"]


# --- notices, attempts, settings ---------------------------------------------------------------------------------------


def test_notice_is_known_before_it_is_delivered(store: DirectStore) -> None:
    notice = Notice("note", "inc1", AT, "title", "body\nmore", {"nodes": ["n1"], "step": None, "deep": {"a": [1]}})
    assert not store.knows_notice("note", "pager")
    store.record_notice(notice, "pager", delivered=False)
    assert store.knows_notice("note", "pager") and not store.notice_sent("note", "pager")
    assert store.undelivered() == [(notice, "pager")]
    assert store.undelivered()[0][0].data == notice.data
    assert not store.knows_notice("note", "chat")
    store.record_notice(notice, "pager", delivered=True)
    assert store.notice_sent("note", "pager") and store.undelivered() == []


def test_threads_of_incidents_are_loaded_as_they_were(store: DirectStore) -> None:
    data = {"stage": "restarting", "worst": "warning", "final": False, "joined": "", "labels": {"cause": "pcie"}}
    asking = {**data, "stage": "asked", "asked": AT.isoformat(), "beside": "restarting"}
    first = Notice("note1", "inc1", AT, "title", "body", data)
    last = Notice("note2", "inc1", later(5.0), "title", "body", {**data, "stage": "running again", "final": True})
    joined = Notice("note3", "inc2", AT, "title", "body", {**data, "joined": "inc1"})
    asks = Notice("note5", "inc2", later(5.0), "title", "body", asking)
    for notice in (last, first, asks, joined, Notice("old", "inc3", AT, "title", "body", {})):
        for receiver in ("pager", "chat"):
            store.record_notice(notice, receiver, delivered=False)
    store.record_notice(Notice("note4", "inc4", AT, "title", "body", data), "pager", delivered=True)
    store.commit([changes.IncidentChanged(incident(id=name)) for name in ("inc1", "inc2", "inc3")])
    told = store.load(month=AT, lately=AT, evidence_ids=10).told
    over = {"stages": ("resolved",), "worst": "critical", "final": True, "joined": "", "labels": {}}
    # These do not say of which request they told: of all that had begun.
    known = {"worst": "warning", "joined": "", "labels": data["labels"], "asked": AT.isoformat(), "beside": None}
    assert told == {
        "inc4": over,  # of no incident that is open or was lately
        "inc1": {
            **known,
            "stages": ("restarting", "running again"),
            "final": True,
            "asked": later(5.0).isoformat(),
        },
        "inc2": {
            **known,
            "stages": ("restarting", "asked"),
            "final": False,
            "asked": AT.isoformat(),
            "beside": "restarting",
        },
        "inc3": {
            **known,
            "stages": ("handled",),
            "worst": "critical",
            "final": True,
            "labels": {},
            "asked": AT.isoformat(),
        },
    }


def test_attempts_are_updated_and_told_apart(store: DirectStore) -> None:
    first = job(nodes=("n1", "n2"))
    store.save_attempt(first, first_step=None, last_step=None, step_time_s=None)
    store.save_attempt(first, first_step=1, last_step=90, step_time_s=0.5)
    store.save_attempt(job(restarts=1, started_s=10.0), first_step=80, last_step=95, step_time_s=0.5)
    store.save_attempt(job(2, started_s=None), first_step=1, last_step=1, step_time_s=1.0)  # never started
    rows = store.attempts(job=101)
    assert [(r["attempt"], r["first_step"], r["last_step"], r["ended_at"]) for r in rows] == [
        (0, 1, 90, None),
        (1, 80, 95, None),
    ]
    assert rows[0]["nodes"] == ["n1", "n2"] and store.attempts(job=2) == []
    assert [r["attempt"] for r in store.attempts(since=AT)] == [1]


def test_no_number_that_a_job_prints_stops_the_bookkeeping(store: DirectStore) -> None:
    store.save_attempt(job(), first_step=1, last_step=10**30, step_time_s=1.0)
    store.save_attempt(job(restarts=1), first_step=-(10**12), last_step=2**40, step_time_s=1.0)
    assert [r["attempt"] for r in store.attempts()] == [0, 1]


def test_settings_of_operators(store: DirectStore) -> None:
    assert store.get("paused", False) is False
    for value in (True, False, {"by": "ada"}, None):
        store.put("paused", value)
        assert store.get("paused", "absent") == value


# --- lease -------------------------------------------------------------------------------------------------------------


def own(name: str, beats: int = 0) -> DaemonRow:
    return DaemonRow(name, f"http://{name}:9478", "1.0", beats, AT)


def test_one_holds_the_lease_and_its_token_grows(store: DirectStore) -> None:
    assert store.look_at_lease() == LeaseView("", 0, ())
    assert store.take_lease("a", store.look_at_lease(own("a"))) and store.token == 1
    seen = store.look_at_lease(own("a", 1))
    assert (seen.holder, seen.token, seen.active) == ("a", 1, own("a", 1))
    store.leave_lease("a")
    assert store.look_at_lease() == LeaseView("", 1, ())
    assert store.take_lease("b", store.look_at_lease()) and store.token == 2


def test_who_looked_before_another_took_it_does_not_get_it(store: DirectStore, url: str) -> None:
    late = DirectStore(url)
    seen = late.look_at_lease()
    assert store.take_lease("a", store.look_at_lease())
    assert not late.take_lease("b", seen) and late.token is None
    late.leave_lease("b")  # it has nothing to give back
    assert store.look_at_lease().holder == "a"
    late.close()


def test_of_many_that_ask_at_once_one_gets_it(store: DirectStore, url: str) -> None:
    ready, took, errors = threading.Barrier(6), list[str](), list[Exception]()
    stores = [DirectStore(url) for _ in range(6)]

    def ask(name: str, mine: DirectStore) -> None:
        try:
            seen = mine.look_at_lease(own(name))
            ready.wait(60)
            if mine.take_lease(name, seen):
                took.append(name)
        except (Unavailable, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(f"d{at}", mine)) for at, mine in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in stores:
        mine.close()
    assert errors == []
    assert took == [store.look_at_lease().holder]


def test_what_a_superseded_daemon_writes_is_not_there(store: DirectStore, url: str) -> None:
    """The daemon that had the lease before, which knows nothing of it: whatever it writes, in whichever way."""
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", "a")
    other = DirectStore(url)
    assert other.take_lease("b", other.look_at_lease(own("b")))
    other.put("paused", "b")
    for write in (
        lambda: store.put("paused", "late"),
        lambda: store.append([ended()]),
        lambda: store.commit([changes.PlanMade(PLAN), changes.StepIntended(PLAN, DRAIN, AT)]),
        lambda: store.forget(later(1e6)),
        lambda: store.look_at_lease(own("a", 7)),
        store.require_lease,
    ):
        with pytest.raises(Superseded, match="b is the active daemon"):
            write()
    store.leave_lease("a")  # its own row goes; the lease is not its to give
    seen = store.look_at_lease()
    assert (other.get("paused"), store.evidence_since(AT), store.open_plans()) == ("b", [], [])
    assert (seen.holder, [row.holder for row in seen.daemons]) == ("b", ["b"])
    other.require_lease()
    other.close()


def test_a_transaction_under_way_is_over_before_another_takes_the_lease(store: DirectStore, url: str) -> None:
    """A holder that is about to commit, seen by the taker as silent: either its changes are there, or it is superseded."""
    assert store.take_lease("a", store.look_at_lease(own("a")))
    other = DirectStore(url)
    seen = other.look_at_lease(own("b"))
    took = threading.Thread(target=other.take_lease, args=("b", seen))
    with store._begin() as connection:
        write_change(connection, changes.SettingChanged("paused", "a"))
        lease.require(connection, 1)
        took.start()
        took.join(0.5)
        assert took.is_alive()  # it waits for our commit
    took.join()
    assert other.token == 2 and other.get("paused") == "a"
    other.close()


# --- trouble -----------------------------------------------------------------------------------------------------------


def test_database_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="store does not answer"):
        DirectStore(f"sqlite:///{tmp_path / 'missing' / 'sentinel.db'}")


def test_store_that_stops_answering_is_unavailable(store: DirectStore) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE step")
    with pytest.raises(Unavailable) as caught:
        store.intend(PLAN, DRAIN, AT)
    assert caught.value.fix


# --- what history needs ---------------------------------------------------------------------------------------------------


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
