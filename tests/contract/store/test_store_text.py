"""Text that a database refuses (NUL, half a surrogate pair) in one item: kept as it can be, it hides no other item."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, ended, evidence, incident, job, later, plan, step, verdict

from sentinel.adapters.store import tables as t
from sentinel.model.records import Evidence, Kind, Notice, Outcome, Result, Source, StepKind
from sentinel.text import plain

HOSTILE = "a\0b \udcff\ud800 \udc00 \x1b[2J\n☃ '; DROP TABLE evidence; --"
PLAIN = plain(HOSTILE)


def _unclaimed(store: DirectStore, since: datetime) -> list[Evidence]:
    return list(store.load(month=since, lately=since, evidence_ids=10).unclaimed)


def test_evidence_beside_a_hostile_one_is_kept(store: DirectStore) -> None:
    hostile = evidence(Kind.XID, node=HOSTILE, id=f"id{HOSTILE[:3]}", text=HOSTILE, data={"words": HOSTILE, HOSTILE: 1})
    hostile = replace(hostile, where=replace(hostile.where, path=f"/logs/{HOSTILE}"))
    kept = store.append([ended(), hostile, ended(102)])
    assert [item.where.job for item in kept] == [101, None, 102]
    found = store.evidence_since(later(-60))
    assert len(found) == 3 and sum(item.kind == Kind.XID for item in found) == 1
    assert [item.kind for item in store.evidence_since(later(-60), node=HOSTILE)] == [Kind.XID]
    assert store.append([hostile]) == [], "known, whatever its id"


def test_an_incident_of_hostile_names(store: DirectStore) -> None:
    store.save_incident(replace(incident(ended(), nodes=(HOSTILE,)), outcome=HOSTILE), user=HOSTILE[:20])
    store.save_verdict("inc1", verdict(drain=(HOSTILE,), gpus=(HOSTILE,), advice=HOSTILE), AT)
    (row,) = store.incident_rows()
    assert (row["outcome"], row["user"]) == (PLAIN, plain(HOSTILE[:20]))
    seen = store.incident("inc1")
    assert seen is not None and seen.outcome == PLAIN and store.last_verdict("inc1") is not None


def test_an_attempt_of_a_hostile_name(store: DirectStore) -> None:
    view = job(name=HOSTILE * 20, user=HOSTILE * 20, partition=HOSTILE * 20, nodes=(HOSTILE,), state="x" * 30)
    store.save_attempt(view, first_step=1, last_step=2, step_time_s=1.0)
    store.save_attempt(job(102), first_step=1, last_step=2, step_time_s=1.0)
    rows = {row["job"]: row for row in store.attempts()}
    assert set(rows) == {101, 102} and rows[101]["name"].startswith(PLAIN[:20]) and len(rows[101]["name"]) <= 255


def test_a_notice_of_hostile_words_to_a_hostile_receiver(store: DirectStore) -> None:
    notice = Notice("n1", "inc1", AT, HOSTILE, HOSTILE, {HOSTILE: [HOSTILE]})
    store.record_notice(notice, HOSTILE, delivered=False)
    assert store.knows_notice("n1", HOSTILE) and not store.notice_sent("n1", HOSTILE)
    ((kept, receiver),) = store.undelivered()
    assert (kept.id, receiver) == ("n1", PLAIN)


def test_the_ledger_keeps_the_bytes_of_a_path(store: DirectStore) -> None:
    """A checkpoint's folder must be found again under the name that it has."""
    choose = step(StepKind.CHOOSE_CHECKPOINT, job=101, attempt=0)
    made = plan(choose, step(StepKind.DRAIN, node=HOSTILE))
    store.save_plan(made)
    assert store.intend(made, choose, AT) and store.intend(made, made.steps[1], AT)
    path = "/shared/step-\udcff"
    store.record(made, Outcome(choose, Result.DONE, AT, HOSTILE, {"path": path}))
    found = store.outcome("inc1", choose)
    assert found is not None and (found.data["path"], found.reason) == (path, PLAIN)
    assert store.open_plans()[0].steps[0] == choose


def test_settings_and_the_lease(store: DirectStore) -> None:
    store.put("paused", {HOSTILE: HOSTILE})
    assert store.get("paused") == {HOSTILE: HOSTILE}
    assert store.take_lease(HOSTILE, store.look_at_lease()) and store.look_at_lease().token == 1


@pytest.mark.parametrize("spoiled", [{"kind": 7}, {"id": "e"}, "torn", None])
def test_a_row_that_cannot_be_read_hides_no_other(store: DirectStore, spoiled: Any) -> None:
    kept = [ended(), evidence(Kind.STEP, source=Source.PROGRESS, job=101, attempt=0, id="spoiled")]
    store.append(kept)
    store.save_incident(incident(*kept, id="inc1"))
    store.save_verdict("inc1", verdict(), AT)
    for name in ("inc1", "inc2"):
        store.save_plan(plan(step(StepKind.DRAIN, node="n1"), incident=name))
    notice = Notice("n1", "inc1", AT, "title", "body")
    for receiver in ("a", "b"):
        store.record_notice(notice, receiver, delivered=False)
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.evidence).where(t.evidence.c.id == "spoiled").values(record=spoiled))
        connection.execute(sa.update(t.verdict).values(record=spoiled))
        connection.execute(sa.update(t.plan).where(t.plan.c.incident == "inc1").values(record=spoiled))
        connection.execute(sa.update(t.notice).where(t.notice.c.receiver == "a").values(record=spoiled))
    assert store.evidence_since(later(-60)) == [ended()] and _unclaimed(store, later(-60)) == []
    seen = store.incident("inc1")
    assert seen is not None and seen.evidence == (ended(),)
    assert store.last_verdict("inc1") is None and store.plan_of("inc1") is None
    assert [made.incident for made in store.open_plans()] == ["inc2"]
    assert store.undelivered() == [(notice, "b")]
