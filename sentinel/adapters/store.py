"""The store over SQLAlchemy: SQLite in WAL mode by default, PostgreSQL by its URL.

Evidence is append-only with stable ids; the ledger's rows are written before the effect and completed after it. Every
method is one transaction. Errors of the database come out as ``Unavailable``: a store that cannot be written stops the
acting, never the observing.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from sentinel.adapters import store_retention
from sentinel.adapters import store_tables as t
from sentinel.errors import Unavailable
from sentinel.model import (
    Evidence,
    Incident,
    IncidentState,
    JobView,
    Notice,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
)
from sentinel.wire import record_from, to_json

_MOST_STEP = 2**31 - 1
_FLOAT = "$float"
_SEEN_ON = 16


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'sentinel.db'}"


def migrate(engine: sa.Engine) -> None:
    """Bring the schema to this release's (Alembic, all steps in one go)."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


class Store:
    """See ``sentinel.ports.Store`` for what must hold."""

    def __init__(self, url: str, *, busy_s: float = 10.0) -> None:
        arguments: dict[str, Any] = {}
        if url.startswith("sqlite"):
            arguments["connect_args"] = {"timeout": busy_s, "check_same_thread": False}
        self.engine = sa.create_engine(url, json_serializer=_to_text, json_deserializer=_from_text, **arguments)
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _sqlite_pragmas)
            sa.event.listen(self.engine, "begin", _sqlite_begin)
        self._reader = self.engine.execution_options(reads=True)
        with self._reported():
            migrate(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise Unavailable(
                f"the store does not answer: {error!s:.300}", fix="check disk space and rights of the state folder"
            ) from error

    @contextlib.contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        with self._reported(), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads: in SQLite it waits for no writer."""
        with self._reported(), self._reader.begin() as connection:
            yield connection

    def _insert(self, table: sa.Table) -> Any:
        """An insert that can say what happens when the row is there; the two databases spell it alike."""
        return (postgresql if self.engine.dialect.name == "postgresql" else sqlite).insert(table)

    def _upsert(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], values: Mapping[str, Any]
    ) -> None:
        """Insert, or update the row with the same keys."""
        rest = {name: value for name, value in values.items() if name not in keys}
        connection.execute(
            self._insert(table).values(**values).on_conflict_do_update(index_elements=list(keys), set_=rest)
        )

    # --- evidence -----------------------------------------------------------------------------------------------------

    def append(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        if not evidence:
            return []
        rows: dict[str, Evidence] = {}
        for item in evidence:
            rows.setdefault(item.id, item)
        with self._begin() as connection:
            # By id, so that two senders of the same batch wait for each other and not in a ring. Many rows of one
            # statement, not one statement of many rows: that would be compiled anew for every batch.
            insert = self._insert(t.evidence).on_conflict_do_nothing().returning(t.evidence.c.id)
            fresh = set(connection.execute(insert, [_evidence_row(rows[name]) for name in sorted(rows)]).scalars())
        return [item for name, item in rows.items() if name in fresh]

    def evidence_since(self, since: datetime, *, job: int | None = None, node: str | None = None) -> list[Evidence]:
        """Evidence from ``since`` on, oldest first, of one job and/or node if named."""
        query = sa.select(t.evidence.c.record).where(t.evidence.c.at >= since).order_by(t.evidence.c.at)
        if job is not None:
            query = query.where(t.evidence.c.job == job)
        if node is not None:
            query = query.where(t.evidence.c.node == node)
        with self._read() as connection:
            return [record_from(Evidence, row.record) for row in connection.execute(query.limit(5000))]

    def unclaimed(self, since: datetime) -> list[Evidence]:
        """Evidence read since then that no incident refers to, oldest first: after a start, what was not judged yet."""
        claimed = sa.select(t.incident_evidence.c.evidence)
        query = (
            sa.select(t.evidence.c.record)
            .where(t.evidence.c.seen_at >= since, t.evidence.c.id.not_in(claimed))
            .order_by(t.evidence.c.at)
        )
        with self._read() as connection:
            return [record_from(Evidence, row.record) for row in connection.execute(query.limit(5000))]

    # --- incidents ----------------------------------------------------------------------------------------------------

    def save_incident(self, incident: Incident, *, user: str | None = None) -> None:
        values: dict[str, Any] = {
            "id": incident.id,
            "opened_at": incident.opened_at,
            "updated_at": incident.updated_at,
            "closed_at": incident.closed_at,
            "state": incident.state,
            "job": incident.job,
            "attempt": incident.attempt,
            "nodes": list(incident.nodes),
            "outcome": incident.outcome,
        }
        if user is not None:
            values["user"] = user
        with self._begin() as connection:
            self._upsert(connection, t.incident, ["id"], values)
            rows = [{"incident": incident.id, "evidence": item.id} for item in incident.evidence]
            if rows:
                connection.execute(self._insert(t.incident_evidence).on_conflict_do_nothing(), rows)

    def save_verdict(self, incident: str, verdict: Verdict, at: datetime) -> None:
        with self._begin() as connection:
            connection.execute(sa.insert(t.verdict).values(incident=incident, at=at, record=to_json(verdict)))
            connection.execute(
                sa.update(t.incident)
                .where(t.incident.c.id == incident)
                .values(
                    cause=verdict.cause,
                    scope=verdict.scope,
                    confidence=verdict.confidence,
                    culprit_nodes=list(verdict.culprits.nodes),
                    culprit_gpus=list(verdict.culprits.gpus),
                    culprit_ranks=list(verdict.culprits.ranks),
                    seen_on=_seen_on(verdict),
                    onset_step=_counted(verdict.onset_step),
                    decided_at=sa.func.coalesce(t.incident.c.decided_at, at),
                )
            )

    def incident_ids(self, since: datetime | None = None, states: Sequence[IncidentState] = ()) -> list[str]:
        query = sa.select(t.incident.c.id).order_by(t.incident.c.opened_at.desc())
        if since is not None:
            query = query.where(t.incident.c.opened_at >= since)
        if states:
            query = query.where(t.incident.c.state.in_(states))
        with self._read() as connection:
            return [row.id for row in connection.execute(query)]

    def incident(self, incident: str) -> Incident | None:
        with self._read() as connection:
            row = connection.execute(sa.select(t.incident).where(t.incident.c.id == incident)).first()
            if row is None:
                return None
            joined = (
                sa.select(t.evidence.c.record)
                .join(t.incident_evidence, t.incident_evidence.c.evidence == t.evidence.c.id)
                .where(t.incident_evidence.c.incident == incident)
                .order_by(t.evidence.c.at)
            )
            evidence = tuple(record_from(Evidence, item.record) for item in connection.execute(joined))
        return Incident(
            id=row.id,
            opened_at=row.opened_at,
            updated_at=row.updated_at,
            closed_at=row.closed_at,
            state=IncidentState(row.state),
            job=row.job,
            attempt=row.attempt,
            nodes=tuple(row.nodes),
            evidence=evidence,
            outcome=row.outcome,
        )

    def open_incidents(self) -> list[Incident]:
        states = [state for state in IncidentState if state is not IncidentState.CLOSED]
        found = [self.incident(name) for name in self.incident_ids(states=states)]
        return [incident for incident in found if incident is not None]

    def incident_rows(
        self,
        *,
        since: datetime | None = None,
        job: int | None = None,
        ids: Sequence[str] | None = None,
        limit: int = 200,
    ) -> list[dict[str, Any]]:
        """Incidents without their evidence, newest first, for listings."""
        query = sa.select(t.incident).order_by(t.incident.c.opened_at.desc()).limit(limit)
        if ids is not None:
            query = query.where(t.incident.c.id.in_(ids))
        if since is not None:
            query = query.where(t.incident.c.opened_at >= since)
        if job is not None:
            query = query.where(t.incident.c.job == job)
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def last_verdict(self, incident: str) -> Verdict | None:
        query = sa.select(t.verdict.c.record).where(t.verdict.c.incident == incident).order_by(t.verdict.c.id.desc())
        with self._read() as connection:
            row = connection.execute(query.limit(1)).first()
        return record_from(Verdict, row.record) if row else None

    # --- plans and the ledger -----------------------------------------------------------------------------------------

    def save_plan(self, plan: Plan) -> None:
        values = {
            "id": plan.id,
            "incident": plan.incident,
            "at": plan.at,
            "finished": bool(plan.refusal) or plan.observe_only or not plan.steps,
            "record": to_json(plan),
        }
        with self._begin() as connection:
            self._upsert(connection, t.plan, ["id"], values)

    def finish_plan(self, plan: Plan) -> None:
        with self._begin() as connection:
            connection.execute(sa.update(t.plan).where(t.plan.c.id == plan.id).values(finished=True))

    def plan_of(self, incident: str) -> Plan | None:
        query = sa.select(t.plan.c.record).where(t.plan.c.incident == incident).order_by(t.plan.c.at.desc()).limit(1)
        with self._read() as connection:
            row = connection.execute(query).first()
        return record_from(Plan, row.record) if row else None

    def open_plans(self) -> list[Plan]:
        query = sa.select(t.plan.c.record).where(t.plan.c.finished.is_(False)).order_by(t.plan.c.at)
        with self._read() as connection:
            return [record_from(Plan, row.record) for row in connection.execute(query)]

    def intend(self, plan: Plan, step: Step, at: datetime) -> bool:
        key = step.key(plan.incident)
        with self._begin() as connection:
            row = connection.execute(sa.select(t.step.c.result).where(t.step.c.key == key)).first()
            if row is None:
                connection.execute(
                    sa.insert(t.step).values(
                        key=key,
                        incident=plan.incident,
                        plan=plan.id,
                        kind=step.kind,
                        node=step.node,
                        job=step.job,
                        attempt=step.attempt,
                        intended_at=at,
                        data={},
                        reason="",
                        record=to_json(step),
                    )
                )
                return True
            return row.result not in (Result.DONE, Result.FAILED)

    def record(self, plan: Plan, outcome: Outcome) -> None:
        with self._begin() as connection:
            connection.execute(
                sa.update(t.step)
                .where(t.step.c.key == outcome.step.key(plan.incident))
                .values(
                    result=outcome.result,
                    finished_at=outcome.at,
                    reason=outcome.reason,
                    data=to_json(outcome.data),
                )
            )

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        with self._read() as connection:
            row = connection.execute(sa.select(t.step).where(t.step.c.key == step.key(incident))).first()
        if row is None or row.result is None:
            return None
        return Outcome(step, Result(row.result), row.finished_at, row.reason, row.data)

    def steps_of(self, incident: str) -> list[dict[str, Any]]:
        query = sa.select(t.step).where(t.step.c.incident == incident).order_by(t.step.c.intended_at)
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def steps_done(
        self,
        kinds: Sequence[StepKind],
        *,
        since: datetime | None = None,
        job: int | None = None,
        results: Sequence[Result] = (Result.DONE,),
    ) -> list[dict[str, Any]]:
        """Ledger rows of these kinds that were done (or ended with one of ``results``), oldest first."""
        query = (
            sa.select(t.step)
            .where(t.step.c.kind.in_(kinds), t.step.c.result.in_(results))
            .order_by(t.step.c.intended_at)
        )
        if since is not None:
            query = query.where(t.step.c.intended_at >= since)
        if job is not None:
            query = query.where(t.step.c.job == job)
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    # --- notices ------------------------------------------------------------------------------------------------------

    def notice_sent(self, notice: str, receiver: str) -> bool:
        query = sa.select(t.notice.c.delivered).where(t.notice.c.id == notice, t.notice.c.receiver == receiver)
        with self._read() as connection:
            row = connection.execute(query).first()
        return bool(row and row.delivered)

    def knows_notice(self, notice: str, receiver: str) -> bool:
        """Whether this notice was composed for the receiver before, delivered or not."""
        query = sa.select(t.notice.c.id).where(t.notice.c.id == notice, t.notice.c.receiver == receiver)
        with self._read() as connection:
            return connection.execute(query).first() is not None

    def record_notice(self, notice: Notice, receiver: str, delivered: bool) -> None:
        values = {
            "id": notice.id,
            "receiver": receiver,
            "incident": notice.incident,
            "at": notice.at,
            "delivered": delivered,
            "record": to_json(notice),
        }
        with self._begin() as connection:
            self._upsert(connection, t.notice, ["id", "receiver"], values)

    def undelivered(self) -> list[tuple[Notice, str]]:
        query = sa.select(t.notice.c.record, t.notice.c.receiver).where(t.notice.c.delivered.is_(False))
        with self._read() as connection:
            return [(record_from(Notice, row.record), row.receiver) for row in connection.execute(query)]

    # --- attempts -----------------------------------------------------------------------------------------------------

    def save_attempt(
        self, job: JobView, *, first_step: int | None, last_step: int | None, step_time_s: float | None
    ) -> None:
        """What one attempt of a job had and reached; called when that changes, seldom."""
        if job.started_at is None:
            return
        values = {
            "job": job.id,
            "attempt": job.restarts,
            "started_at": job.started_at,
            "user": job.user[:64],
            "partition": job.partition[:64],
            "name": job.name[:255],
            "nodes": list(job.nodes),
            "ended_at": job.ended_at if job.state not in ("running", "completing", "pending") else None,
            "state": job.state,
            "first_step": _counted(first_step),
            "last_step": _counted(last_step),
            "step_time_s": step_time_s,
        }
        with self._begin() as connection:
            self._upsert(connection, t.attempt, ["job", "attempt", "started_at"], values)

    def attempts(
        self, *, job: int | None = None, since: datetime | None = None, ran_since: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Attempts that started ``since`` then, or that still ran at ``ran_since`` or later."""
        query = sa.select(t.attempt).order_by(t.attempt.c.started_at)
        if ran_since is not None:
            query = query.where(sa.or_(t.attempt.c.ended_at.is_(None), t.attempt.c.ended_at >= ran_since))
        if job is not None:
            query = query.where(t.attempt.c.job == job)
        if since is not None:
            query = query.where(t.attempt.c.started_at >= since)
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    # --- counters that age ----------------------------------------------------------------------------------------------

    def save_counters(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Values as (node, unit, name, at, value); of each day the last one is kept."""
        if not rows:
            return
        insert = self._insert(t.counter)
        insert = insert.on_conflict_do_update(
            index_elements=["node", "unit", "name", "day"],
            set_={"at": insert.excluded.at, "value": insert.excluded.value},
            where=insert.excluded.at >= t.counter.c.at,
        )
        with self._begin() as connection:
            connection.execute(insert, [{**row, "day": f"{row['at']:%Y-%m-%d}"} for row in rows])

    def counters(self, since: datetime, *, least: float | None = None) -> list[dict[str, Any]]:
        """One row for each day, oldest first; with ``least`` only counters that changed, or reached that much."""
        query = sa.select(t.counter).where(t.counter.c.at >= since).order_by(t.counter.c.at)
        if least is not None:
            key, value = (t.counter.c.node, t.counter.c.unit, t.counter.c.name), t.counter.c.value
            told = sa.select(*key).where(t.counter.c.at >= since).group_by(*key)
            told = told.having(sa.or_(sa.func.max(value) > sa.func.min(value), sa.func.max(value) >= least))
            query = query.where(sa.tuple_(*key).in_(told))
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def counters_told(self, since: datetime, name: str) -> dict[str, datetime]:
        """Since when, after ``since``, each node has told of its counters."""
        first = sa.select(t.counter.c.node, sa.func.min(t.counter.c.at)).where(t.counter.c.at >= since)
        query = first.where(t.counter.c.name.startswith(name, autoescape=True)).group_by(t.counter.c.node)
        with self._read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    # --- settings an operator changes, lease, retention ---------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        with self._read() as connection:
            row = connection.execute(sa.select(t.setting.c.value).where(t.setting.c.name == name)).first()
        return row.value if row else default

    def put(self, name: str, value: Any) -> None:
        with self._begin() as connection:
            self._upsert(connection, t.setting, ["name"], {"name": name, "value": value})

    def take_lease(self, name: str, holder: str, now: datetime, for_s: float) -> str:
        """Take or renew the lease; returns who holds it afterwards."""
        until = now + timedelta(seconds=for_s)
        with self._begin() as connection:
            first = self._insert(t.lease).values(name=name, holder=holder, until=until)
            connection.execute(first.on_conflict_do_nothing())
            row = connection.execute(sa.select(t.lease).where(t.lease.c.name == name).with_for_update()).one()
            if row.holder != holder and row.until > now:
                return str(row.holder)
            connection.execute(sa.update(t.lease).where(t.lease.c.name == name).values(holder=holder, until=until))
            return holder

    def drop_lease(self, name: str) -> None:
        with self._begin() as connection:
            connection.execute(sa.delete(t.lease).where(t.lease.c.name == name))

    def forget(self, before: datetime) -> int:
        """Delete what is over since before then; returns how much evidence went. What is open stays."""
        with self._begin() as connection:
            return store_retention.forget(connection, before)

    def forget_beyond(self, most_bytes: int, now: datetime, before: datetime) -> datetime:
        """Forget, with a shorter and shorter memory until the rest takes at most ``most_bytes``; returns its beginning."""
        while True:
            self.forget(before)
            with self._read() as connection:
                size = store_retention.size_bytes(connection)
            shorter = store_retention.shorter(now, before) if size > most_bytes else None
            if shorter is None:
                return before
            before = shorter


def _seen_on(verdict: Verdict) -> list[str]:
    """Nodes on which what decided was seen, in order of weight; a history needs no long lists."""
    return list(dict.fromkeys(g.evidence.where.node for g in verdict.grounds if g.evidence.where.node))[:_SEEN_ON]


def _to_text(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):  # seldom: a number that is none
        return json.dumps(_spelled(value), allow_nan=False)


def _spelled(value: Any) -> Any:
    """A loss may be NaN, for which JSON (and PostgreSQL) has no word."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(item) for item in value]
    return value


def _from_text(text: str | bytes) -> Any:
    return json.loads(text, object_hook=lambda found: float(found[_FLOAT]) if found.keys() == {_FLOAT} else found)


def _counted(number: int | None) -> int | None:
    """A step as the column holds it; a job may print any number, and one beyond it is none."""
    return number if number is not None and abs(number) <= _MOST_STEP else None


def _sqlite_begin(connection: sa.Connection) -> None:
    """The write lock comes first, or two transactions both read, both write, and neither sees the other."""
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _sqlite_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _sqlite_begin says
    cursor = connection.cursor()
    # WAL: readers never wait for the writer. FULL: an intent row survives power loss before its effect happens.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


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
