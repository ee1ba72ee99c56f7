"""Writes the changes of a decision in one transaction; one function for each kind of change.

Values go beside the statement, not into it, and a statement is built once: SQLAlchemy builds and hashes a new one for every
row otherwise, which took most of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.audit import add_entry
from sentinel.model import changes as c
from sentinel.model.corrections import MOST_KEPT
from sentinel.model.records import Evidence, Verdict
from sentinel.text import plain
from sentinel.wire import to_json

_MOST_STEP = 2**31 - 1
_SEEN_ON = 16  # nodes on which what decided was seen; a history needs no long lists

_INSERT_VERDICT = sa.insert(t.verdict)
_DECIDED = (
    sa.update(t.incident)
    .where(t.incident.c.id == sa.bindparam("its_id"))
    .values(
        decided_at=sa.func.coalesce(
            t.incident.c.decided_at, sa.bindparam("verdict_at", type_=t.incident.c.decided_at.type)
        ),
    )
)
_PLAN_FINISHED = sa.update(t.plan).where(t.plan.c.id == sa.bindparam("its_id")).values(finished=True)
_STEP_ENDED = sa.update(t.step).where(t.step.c.key == sa.bindparam("its_key"))


def write(connection: sa.Connection, change: c.Change) -> None:
    """Within the transaction of ``connection``."""
    _WRITERS[type(change)](connection, change)


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """An insert that can say what happens when the row is there; the two databases spell it alike."""
    return _insert(connection.dialect.name, table)


def upsert(connection: sa.Connection, table: sa.Table, keys: Sequence[str], values: Mapping[str, Any]) -> None:
    """Insert, or update the row with the same keys."""
    connection.execute(_upsert(connection.dialect.name, table, tuple(keys), tuple(values)), values)


def insert_new(connection: sa.Connection, table: sa.Table, rows: Any) -> None:
    """Insert; a row that is there already stays as it is."""
    connection.execute(_insert_new(connection.dialect.name, table), rows)


@cache
def _insert(database: str, table: sa.Table) -> Any:
    return (postgresql if database == "postgresql" else sqlite).insert(table)


@cache
def _insert_new(database: str, table: sa.Table) -> Any:
    return _insert(database, table).on_conflict_do_nothing()


@cache
def _upsert(database: str, table: sa.Table, keys: tuple[str, ...], names: tuple[str, ...]) -> Any:
    insert = _insert(database, table)
    rest = {name: insert.excluded[name] for name in names if name not in keys}
    return insert.on_conflict_do_update(index_elements=list(keys), set_=rest)


@cache
def _insert_evidence(database: str) -> Any:
    return _insert_new(database, t.evidence).returning(t.evidence.c.id)


def add_evidence(connection: sa.Connection, items: Sequence[Evidence]) -> set[str]:
    """Adds what is new and returns its ids."""
    rows: dict[str, Evidence] = {}
    for item in items:
        rows.setdefault(plain(item.id), item)
    if not rows:
        return set()
    # By id, so that two senders of the same batch wait for each other and not in a ring. Many rows of one statement, not one
    # statement of many rows: that would be compiled anew for every batch.
    insert = _insert_evidence(connection.dialect.name)
    return set(connection.execute(insert, [_evidence_row(rows[name]) for name in sorted(rows)]).scalars())


def counted(number: int | None) -> int | None:
    """A step as the column holds it; a job may print any number, and one beyond it is none."""
    return number if number is not None and abs(number) <= _MOST_STEP else None


def _evidence(connection: sa.Connection, change: c.EvidenceAdded) -> None:
    add_evidence(connection, change.items)


def _counters(connection: sa.Connection, change: c.CountersRead) -> None:
    if not change.rows:
        return
    insert = insert_into(connection, t.counter)
    insert = insert.on_conflict_do_update(
        index_elements=["node", "unit", "name", "day"],
        set_={"at": insert.excluded.at, "value": insert.excluded.value},
        where=insert.excluded.at >= t.counter.c.at,
    )
    connection.execute(insert, [{**row, "day": f"{row['at']:%Y-%m-%d}"} for row in change.rows])


def _incident(connection: sa.Connection, change: c.IncidentChanged) -> None:
    incident = change.incident
    values: dict[str, Any] = {
        "id": incident.id,
        "opened_at": incident.opened_at,
        "updated_at": incident.updated_at,
        "closed_at": incident.closed_at,
        "state": incident.state,
        "nodes": list(incident.nodes),
        "outcome": incident.outcome,
    }
    if incident.job is not None:  # of one that lost its job, the row goes on naming it: for people
        values |= {"job": incident.job, "attempt": incident.attempt}
    if change.user is not None:
        values["user"] = plain(change.user)[:64]
    upsert(connection, t.incident, ["id"], values)
    rows = [{"incident": incident.id, "evidence": item.id} for item in incident.evidence]
    if rows:
        insert_new(connection, t.incident_evidence, rows)


def _verdict(connection: sa.Connection, change: c.VerdictReached) -> None:
    verdict = change.verdict
    values = {"incident": change.incident, "at": change.at, "record": to_json(verdict)}
    connection.execute(_INSERT_VERDICT, values)
    connection.execute(
        _DECIDED,
        {
            "its_id": change.incident,
            "verdict_at": change.at,
            "cause": verdict.cause,
            "scope": verdict.scope,
            "confidence": verdict.confidence,
            "culprit_nodes": list(verdict.culprits.nodes),
            "culprit_gpus": list(verdict.culprits.gpus),
            "culprit_ranks": list(verdict.culprits.ranks),
            "seen_on": _seen_on(verdict),
            "users_words": c.of_users_words(verdict),
            "onset_step": counted(verdict.onset_step),
        },
    )


def _corrected(connection: sa.Connection, change: c.VerdictCorrected) -> None:
    rows = sa.select(t.incident.c.corrections).where(t.incident.c.id == change.incident).with_for_update()
    told = [*(connection.execute(rows).scalar() or ()), to_json(change.correction)]
    changed = sa.update(t.incident).where(t.incident.c.id == change.incident)
    connection.execute(changed.values(corrections=told[-MOST_KEPT:]))


def _plan(connection: sa.Connection, change: c.PlanMade) -> None:
    plan = change.plan
    values = {
        "id": plan.id,
        "incident": plan.incident,
        "at": plan.at,
        "finished": not plan.waits and not plan.to_do,
        "record": to_json(plan),
    }
    upsert(connection, t.plan, ["id"], values)


def _plan_finished(connection: sa.Connection, change: c.PlanFinished) -> None:
    connection.execute(_PLAN_FINISHED, {"its_id": change.plan})


def _step_intended(connection: sa.Connection, change: c.StepIntended) -> None:
    plan, step = change.plan, change.step
    values = {
        "key": step.key(plan.incident),
        "incident": plan.incident,
        "plan": plan.id,
        "kind": step.kind,
        "node": step.node,
        "job": step.job,
        "attempt": step.attempt,
        "intended_at": change.at,
        "data": {},
        "reason": "",
        "record": to_json(step),
    }
    insert_new(connection, t.step, values)


def _step_ended(connection: sa.Connection, change: c.StepEnded) -> None:
    outcome = change.outcome
    connection.execute(
        _STEP_ENDED,
        {
            "its_key": outcome.step.key(change.incident),
            "result": outcome.result,
            "finished_at": outcome.at,
            "reason": outcome.reason,
            "data": to_json(outcome.data),
        },
    )


def _notice(connection: sa.Connection, change: c.NoticeChanged) -> None:
    notice = change.notice
    values = {
        "id": notice.id,
        "receiver": change.receiver,
        "incident": notice.incident,
        "at": notice.at,
        "delivered": change.delivered,
        "record": to_json(notice),
    }
    upsert(connection, t.notice, ["id", "receiver"], values)


def _notice_dropped(connection: sa.Connection, change: c.NoticeDropped) -> None:
    its = t.notice.c
    connection.execute(sa.delete(t.notice).where(its.id == change.notice, its.receiver == change.receiver))


def _attempt(connection: sa.Connection, change: c.AttemptSeen) -> None:
    job = change.job
    if job.started_at is None:
        return
    values = {
        "job": job.id,
        "attempt": job.restarts,
        "started_at": job.started_at,
        "user": plain(job.user)[:64],
        "partition": plain(job.partition)[:64],
        "name": plain(job.name)[:255],
        "nodes": list(job.nodes),
        "ended_at": job.ended_at if job.state not in ("running", "completing", "pending") else None,
        "state": job.state[:24],
        "first_step": counted(change.first_step),
        "last_step": counted(change.last_step),
        "step_time_s": change.step_time_s,
        "het": job.het,
    }
    upsert(connection, t.attempt, ["job", "attempt", "started_at"], values)


def _setting(connection: sa.Connection, change: c.SettingChanged) -> None:
    upsert(connection, t.setting, ["name"], {"name": change.name, "value": change.value})


def _audited(connection: sa.Connection, change: c.Audited) -> None:
    add_entry(connection, change.entry)


def _seen_on(verdict: Verdict) -> list[str]:
    """In order of weight."""
    return list(dict.fromkeys(g.evidence.where.node for g in verdict.grounds if g.evidence.where.node))[:_SEEN_ON]


def _evidence_row(item: Evidence) -> dict[str, Any]:
    return {
        "id": item.id,
        "at": item.at,
        "seen_at": item.seen_at,
        "source": item.source,
        "kind": item.kind,
        "trust": item.trust,
        "node": item.where.node,
        "job": item.where.job,
        "attempt": item.where.attempt,
        "record": to_json(item),
    }


_WRITERS: Mapping[type[Any], Callable[[sa.Connection, Any], None]] = {
    c.EvidenceAdded: _evidence,
    c.CountersRead: _counters,
    c.IncidentChanged: _incident,
    c.VerdictReached: _verdict,
    c.VerdictCorrected: _corrected,
    c.PlanMade: _plan,
    c.PlanFinished: _plan_finished,
    c.StepIntended: _step_intended,
    c.StepEnded: _step_ended,
    c.NoticeChanged: _notice,
    c.NoticeDropped: _notice_dropped,
    c.AttemptSeen: _attempt,
    c.SettingChanged: _setting,
    c.Audited: _audited,
}
