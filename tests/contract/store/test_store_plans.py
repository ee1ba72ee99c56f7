"""Plans and the ledger of their steps, notices, attempts and settings in a store."""

from __future__ import annotations

import dataclasses

import pytest
from in_memory.direct_store import DirectStore
from made_records import AT, incident, job, later, plan, step, verdict

from sentinel.model import changes
from sentinel.model.records import (
    IncidentState,
    Notice,
    Outcome,
    Result,
    Step,
    StepKind,
)

DRAIN = step(StepKind.DRAIN, node="n1")


PLAN = plan(DRAIN, step(StepKind.RELEASE, job=101, attempt=0))


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


def test_a_message_that_others_have_in_a_receivers_stead_is_its_no_more(store: DirectStore) -> None:
    first, second = (Notice(f"note{number}", "inc1", later(number), "title", "body") for number in (1, 2))
    store.record_notice(first, "old", delivered=False)
    store.record_notice(second, "pager", delivered=True)
    store.record_notice(Notice("other", "inc2", AT, "title", "body"), "pager", delivered=True)
    loaded = store.load(month=AT, lately=AT, evidence_ids=10)
    assert loaded.undelivered == ((first, "old"),) and loaded.heard_of == {"inc1": {"old", "pager"}}
    store.commit([changes.NoticeChanged(first, "new", delivered=False), changes.NoticeDropped("note1", "old")])
    loaded = store.load(month=AT, lately=AT, evidence_ids=10)
    assert loaded.undelivered == ((first, "new"),) and loaded.heard_of == {"inc1": {"new", "pager"}}


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


def test_a_thread_is_loaded_in_the_order_of_its_messages_whatever_the_clock_said(store: DirectStore) -> None:
    known = {"worst": "warning", "joined": "", "labels": {}, "asked": "", "beside": None}
    ahead = {**known, "stage": "restarting", "told": ["restarting"], "message": 1, "final": False}
    last = {**known, "stage": "resolved", "told": ["restarting", "resolved"], "message": 2, "final": True}
    for name, at_s, data in (("a", 86400.0, ahead), ("b", 0.0, last)):
        store.record_notice(Notice(name, "inc1", later(at_s), "title", "body", data), "pager", delivered=True)
    store.commit([changes.IncidentChanged(incident())])
    told = store.load(month=AT, lately=AT, evidence_ids=10).told["inc1"]
    assert (told["stages"], told["final"]) == (("restarting", "resolved"), True)


@pytest.mark.parametrize(
    ("closed_s", "ended_s", "steps", "observe", "suspect", "loaded"),
    [
        (-3000.0, None, (), False, "n1", True),
        (-3000.0, None, (DRAIN,), False, "n1", True),
        (-3000.0, 0.0, (), False, "n1", False),  # its job is over
        (-4000.0, None, (), False, "n1", False),  # it would have failed by now
        (-3000.0, None, (), False, "", False),  # no node was accused
        (-3000.0, None, (DRAIN,), True, "n1", False),
        (-3000.0, None, (step(StepKind.HOLD, job=101, attempt=0),), False, "n1", False),
    ],
)
def test_what_left_its_job_running_is_loaded_while_that_may_fail_by_it(
    store: DirectStore,
    closed_s: float,
    ended_s: float | None,
    steps: tuple[Step, ...],
    observe: bool,
    suspect: str,
    loaded: bool,
) -> None:
    accused = verdict(suspect=(suspect,) if suspect else ())
    over = dataclasses.replace(incident(state=IncidentState.CLOSED), closed_at=later(closed_s), job=101, attempt=0)
    made = plan(*steps, incident=over.id, observe_only=observe)
    store.commit(
        [changes.IncidentChanged(over), changes.VerdictReached(over.id, accused, AT), changes.PlanMade(made),
         changes.PlanFinished(made.id)]
    )  # fmt: skip
    attempt = dataclasses.replace(job(state="failed"), ended_at=later(ended_s)) if ended_s is not None else job()
    store.save_attempt(attempt, first_step=1, last_step=90, step_time_s=0.5)
    found = store.load(month=later(-86400.0), lately=AT, evidence_ids=10)
    assert [known.id for known in found.incidents] == ([over.id] if loaded else [])
    assert set(found.plans) == ({over.id} if loaded else set())


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
