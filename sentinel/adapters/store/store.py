"""The store over SQLAlchemy: SQLite in WAL mode by default, PostgreSQL by its URL.

Evidence is append-only with stable ids; the ledger's rows are written before the effect and completed after it. Every
method is one transaction. Errors of the database come out as ``Unavailable``: a store that cannot be written stops the
acting, never the observing.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from sentinel.adapters.store import audit as chain
from sentinel.adapters.store import lease, retention
from sentinel.adapters.store import tables as t
from sentinel.adapters.store.changes import add_evidence, write
from sentinel.adapters.store.deadlines import Deadlines
from sentinel.adapters.store.loading import incident_from, load
from sentinel.adapters.store.recording import read_recording
from sentinel.errors import ProtocolError, Refused, Timeout, Unavailable, UserError
from sentinel.log import Log
from sentinel.model import changes
from sentinel.model.audit import ChainedEntry
from sentinel.model.changes import Change
from sentinel.model.recording import Recording
from sentinel.model.records import (
    Evidence,
    Incident,
    JobView,
    Notice,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.model.stored import Stored, UnreadableRecord
from sentinel.text import plain
from sentinel.wire import record_from

_FLOAT = "$float"
_MOST_PLANS = 2000  # newest plans that one reading returns
_MOST_AUDIT = 10_000  # entries of the audit that one reading returns
_SAID = 100  # complaints about records that cannot be read
_LONG = 10.0  # times the deadline: what reads or prunes a month of a whole cluster
T = TypeVar("T")


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


def where_of(url: sa.URL) -> str:
    """The file of a store, or the URL of its database without the password."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database.removeprefix("file:")
    return url.render_as_string(hide_password=True)


def _words(error: SQLAlchemyError) -> str:
    """What the database said, without the statement that it was given: it helps nobody who runs Sentinel."""
    said = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return " ".join(f"{said!s:.300}".split())


def _fix(why: str) -> str:
    if "no such table" in why or "no such column" in why or "does not exist" in why:
        return (
            "it is no store of Sentinel, or of another release, which the daemon of this release migrates at its start"
        )
    if "malformed" in why or "not a database" in why:
        return "the file is damaged: stop the daemon and bring back a copy, or move it aside and start without a past"
    return "check disk space and rights of the state folder"


class Store:
    """What is decided is written with ``commit``, one decision a transaction; every other method is one transaction too."""

    def __init__(
        self,
        url: str,
        *,
        busy_s: float = 10.0,
        log: Log | None = None,
        read_only: bool = False,
        frozen_s: float | None = None,
    ) -> None:
        """
        Args:
            busy_s: deadline of a transaction; ten times as much for loading and pruning.
            read_only: for recordings; the schema is left as it is.
            frozen_s: the server ends a transaction whose client says nothing for so long, and lets go of its locks; None:
                never. Without it a daemon that is stopped in a transaction holds up the one that takes over.

        Raises:
            Unavailable: the database does not answer.
        """
        self._log = log or Log()
        self._said: set[str] = set()  # about records that cannot be read
        self.token: int | None = None  # of the lease under which this process writes; None: it needs none
        self._busy_s = busy_s
        self._deadlines: Deadlines | None = None
        arguments: dict[str, Any] = {}
        if url.startswith("sqlite"):
            arguments["connect_args"] = {"timeout": busy_s, "check_same_thread": False}
        try:
            if not url.startswith("sqlite") and "connect_timeout" not in sa.make_url(url).query:
                arguments["connect_args"] = {"connect_timeout": max(2, round(busy_s))}
            self.engine = sa.create_engine(url, json_serializer=_to_text, json_deserializer=_from_text, **arguments)
        except (ArgumentError, ImportError) as error:
            raise UserError(
                f"{url.partition(':')[0]:.40}: no database that Sentinel knows",
                fix="write postgresql://HOST/NAME (it needs psycopg), or the folder of a SQLite store",
            ) from error
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _sqlite_read_only if read_only else _sqlite_pragmas)
            sa.event.listen(self.engine, "begin", _sqlite_begin)
        else:
            self._deadlines = Deadlines()
            if frozen_s is not None:
                sa.event.listen(self.engine, "connect", _ends_frozen(frozen_s))
        self._reader = self.engine.execution_options(reads=True)
        if not read_only:
            with self._reported():
                migrate(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            own = isinstance(error, StatementError) and not isinstance(error, DBAPIError)  # never reached the database
            why, where = _words(error), where_of(self.engine.url)
            if own or isinstance(error, (DataError, IntegrityError)):  # trying again cannot help
                raise Refused(f"the store refuses it: {why} ({where})") from error
            raise Unavailable(f"the store does not answer: {why} ({where})", fix=_fix(why)) from error

    @contextlib.contextmanager
    def _begin(self, *, times: float = 1.0) -> Iterator[sa.Connection]:
        """
        Args:
            times: how many usual deadlines it may take.

        Raises:
            Superseded: another daemon is active; nothing was changed.
        """
        with self._transaction(self.engine, self._busy_s * times) as connection:
            yield connection
            if self.token is not None:
                lease.require(connection, self.token)

    @contextlib.contextmanager
    def _read(self, *, times: float = 1.0) -> Iterator[sa.Connection]:
        """A transaction that only reads: in SQLite it waits for no writer."""
        with self._transaction(self._reader, self._busy_s * times) as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, engine: sa.Engine, for_s: float) -> Iterator[sa.Connection]:
        """Up to its commit within ``for_s``. SQLite has a deadline of its own, for its lock."""
        with self._reported(), engine.connect() as connection:
            if self._deadlines is None:
                with connection.begin():
                    yield connection
                return
            with self._overdue(for_s), self._deadlines.within(for_s, _descriptor(connection)), connection.begin():
                yield connection

    @contextlib.contextmanager
    def _overdue(self, for_s: float) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        except DBAPIError as error:
            if error.connection_invalidated and time.monotonic() - began_s >= for_s:
                raise Timeout(
                    f"the database did not answer within {for_s:g} s", fix="is it reachable? [daemon] database_s"
                ) from error
            raise

    @property
    def shared(self) -> bool:
        """Whether daemons of other hosts can use this database: one that cannot reach it may not be the active one."""
        return self.engine.dialect.name != "sqlite"

    def commit(self, wanted: Sequence[Change]) -> None:
        """All of them, in their order, or none: one transaction."""
        if not wanted:
            return
        with self._begin() as connection:
            for change in wanted:
                write(connection, change)

    def recording(
        self, *, since: datetime, until: datetime, incident: str | None = None, node: str | None = None
    ) -> Recording:
        """The past as a recording; see ``sentinel.adapters.store.recording``."""
        with self._read() as connection:
            return read_recording(connection, self._readable, since=since, until=until, incident=incident, node=node)

    def load(self, *, month: datetime, lately: datetime, evidence_ids: int) -> Stored:
        """Everything that the engine's state is made of; see ``sentinel.adapters.store.loading``."""
        left_out: list[UnreadableRecord] = []
        readable = partial(self._readable, left_out=left_out)
        with self._read(times=_LONG) as connection:
            stored = load(connection, readable, month=month, lately=lately, evidence_ids=evidence_ids)
        return replace(stored, unreadable=tuple(one for one in left_out if one.kind != Notice.__name__))

    def _readable(
        self, kind: type[T], found: Iterable[object], left_out: list[UnreadableRecord] | None = None
    ) -> list[T]:
        """Records of ``kind``; one that cannot be read (a later release wrote it, or the disk lost it) is left out and said
        once, and hides no other."""
        made = []
        for value in found:
            try:
                made.append(record_from(kind, value))
            except ProtocolError as error:
                why = f"{kind.__name__}: {error.message}"
                if left_out is not None:
                    left_out.append(UnreadableRecord(kind.__name__, error.message, value))
                if why not in self._said and len(self._said) < _SAID:
                    self._said.add(why)
                    self._log.warning("store-record-unreadable", reason=why, record=f"{value!r:.200}")
        return made

    # --- evidence -----------------------------------------------------------------------------------------------------

    def append(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """Keep what is new (by id) and return it, in order."""
        if not evidence:
            return []
        with self._begin() as connection:
            fresh = add_evidence(connection, evidence)
        kept: dict[str, Evidence] = {}
        for item in evidence:
            kept.setdefault(plain(item.id), item)
        return [item for name, item in kept.items() if name in fresh]

    # --- incidents ----------------------------------------------------------------------------------------------------

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
            evidence = tuple(self._readable(Evidence, (item.record for item in connection.execute(joined))))
        return incident_from(row, evidence)

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
            found = self._readable(Verdict, (row.record for row in connection.execute(query.limit(1))))
        return found[0] if found else None

    # --- plans and the ledger -----------------------------------------------------------------------------------------

    def plan_of(self, incident: str) -> Plan | None:
        query = sa.select(t.plan.c.record).where(t.plan.c.incident == incident).order_by(t.plan.c.at.desc()).limit(1)
        with self._read() as connection:
            found = self._readable(Plan, (row.record for row in connection.execute(query)))
        return found[0] if found else None

    def waits_of(self, incidents: Sequence[str]) -> dict[str, tuple[Wait, ...]]:
        """What the plans of these incidents wait for, by incident; those that wait for nothing are left out."""
        query = sa.select(t.plan.c.record).where(t.plan.c.incident.in_(incidents)).order_by(t.plan.c.at)
        with self._read() as connection:
            plans = self._readable(Plan, (row.record for row in connection.execute(query)))
        return {plan.incident: plan.waits for plan in plans if plan.waits}

    def plans_since(self, since: datetime) -> list[Plan]:
        """Plans made since then, newest first."""
        query = sa.select(t.plan.c.record).where(t.plan.c.at >= since).order_by(t.plan.c.at.desc()).limit(_MOST_PLANS)
        with self._read() as connection:
            return self._readable(Plan, (row.record for row in connection.execute(query)))

    def steps_under_way(self) -> list[dict[str, Any]]:
        """Ledger rows of unfinished plans that have no result yet, oldest first."""
        unfinished = sa.select(t.plan.c.id).where(t.plan.c.finished.is_(False))
        query = (
            sa.select(t.step)
            .where(t.step.c.plan.in_(unfinished), t.step.c.result.is_(None))
            .order_by(t.step.c.intended_at)
        )
        with self._read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

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

    def notices(self, *, since: datetime, most: int) -> list[tuple[Notice, str, bool]]:
        """Messages since then, and those that were not delivered whenever it was; the newest first."""
        columns = (t.notice.c.record, t.notice.c.receiver, t.notice.c.delivered)
        wanted = sa.or_(t.notice.c.at >= since, t.notice.c.delivered.is_(False))
        query = sa.select(*columns).where(wanted).order_by(t.notice.c.at.desc(), t.notice.c.id).limit(most)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [(one, row.receiver, row.delivered) for row in rows for one in self._readable(Notice, [row.record])]

    # --- attempts -----------------------------------------------------------------------------------------------------

    def save_attempt(
        self, job: JobView, *, first_step: int | None, last_step: int | None, step_time_s: float | None
    ) -> None:
        """What one attempt of a job had and reached; called when that changes, seldom."""
        self.commit([changes.AttemptSeen(job, first_step, last_step, step_time_s)])

    def attempts(
        self,
        *,
        job: int | None = None,
        since: datetime | None = None,
        ran_since: datetime | None = None,
        user: str | None = None,
        newest: int | None = None,
    ) -> list[dict[str, Any]]:
        """Attempts that started ``since`` then, or that still ran at ``ran_since`` or later, the oldest first.

        ``newest``: of more than so many, the newest.
        """
        query = sa.select(t.attempt).order_by(t.attempt.c.started_at)
        if newest is not None:
            query = sa.select(t.attempt).order_by(t.attempt.c.started_at.desc()).limit(newest)
        if user is not None:
            query = query.where(t.attempt.c.user == user)
        if ran_since is not None:
            query = query.where(sa.or_(t.attempt.c.ended_at.is_(None), t.attempt.c.ended_at >= ran_since))
        if job is not None:
            query = query.where(t.attempt.c.job == job)
        if since is not None:
            query = query.where(t.attempt.c.started_at >= since)
        with self._read() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]
        return rows if newest is None else rows[::-1]

    def rename_receiver(self, before: str, after: str) -> None:
        """Give a receiver of notices another name. An earlier release kept the addresses of webhooks, which are secrets."""
        with self._begin() as connection:
            connection.execute(sa.update(t.notice).where(t.notice.c.receiver == before).values(receiver=after))

    # --- counters that age ----------------------------------------------------------------------------------------------

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

    # --- the audit ----------------------------------------------------------------------------------------------------

    def audit(
        self, *, since: datetime | None = None, after: int = 0, newest: int | None = None, most: int = _MOST_AUDIT
    ) -> list[ChainedEntry]:
        """See ``sentinel.adapters.store.audit.entries``."""
        with self._read() as connection:
            return chain.entries(connection, since=since, after=after, newest=newest, most=most)

    def audit_length(self) -> int:
        with self._read() as connection:
            return connection.execute(sa.select(sa.func.max(t.audit.c.number))).scalar() or 0

    def check_audit(self) -> chain.Checked:
        with self._read() as connection:
            return chain.check(connection)

    # --- settings an operator changes, lease, retention ---------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        with self._read() as connection:
            row = connection.execute(sa.select(t.setting.c.value).where(t.setting.c.name == name)).first()
        return row.value if row else default

    def put(self, name: str, value: Any) -> None:
        self.commit([changes.SettingChanged(name, value)])

    def look_at_lease(self, own: lease.DaemonRow | None = None) -> lease.LeaseView:
        """Who is active, and which daemons there are; with ``own`` we count up in our row first.

        Raises:
            Superseded: we wrote under the lease, and another daemon has it now.
        """
        if own is None:
            with self._read() as connection:
                return lease.look(connection)
        with self._begin() as connection:
            lease.beat(connection, own)
            return lease.look(connection)

    def take_lease(self, holder: str, seen: lease.LeaseView) -> bool:
        """Take the lease if it is as seen; from then on everything is written under its token."""
        with self._begin() as connection:
            token = lease.take(connection, holder, seen)
        if token is not None:
            self.token = token
        return token is not None

    def require_lease(self) -> None:
        """
        Raises:
            Superseded: another daemon is active.
        """
        if self.token is not None:
            with self._read() as connection:
                lease.require(connection, self.token)

    def leave_lease(self, holder: str) -> None:
        """Give it back if it is ours, and be no daemon any more."""
        token, self.token = self.token, None
        with self._begin() as connection:
            lease.leave(connection, holder, token)

    def forget_daemons(self, holders: Sequence[str]) -> None:
        with self._begin() as connection:
            lease.forget(connection, list(holders))

    def forget(self, before: datetime) -> int:
        """Delete what is over since before then; returns how much evidence went. What is open stays."""
        with self._begin(times=_LONG) as connection:
            return retention.forget(connection, before)

    def forget_beyond(self, most_bytes: int, now: datetime, before: datetime) -> datetime:
        """Forget, with a shorter and shorter memory until the rest takes at most ``most_bytes``; returns its beginning.

        What users fill beyond their share goes first: one user's flood costs nobody else's history.
        """
        own: dict[str, datetime] = {}  # by user: the beginning of what is kept of theirs
        while True:
            self.forget(before)
            with self._begin(times=_LONG) as connection:
                size = retention.size_bytes(connection)
                while size > most_bytes:
                    greedy = retention.greedy(retention.users_bytes(connection), most_bytes)
                    left = ((user, retention.shorter(now, own.get(user, before))) for user in greedy)
                    user, since = next(((user, since) for user, since in left if since is not None), ("", None))
                    if since is None:
                        break
                    own[user] = since
                    retention.forget_user(connection, user, since)
                    size = retention.size_bytes(connection)
            shorter = retention.shorter(now, before) if size > most_bytes else None
            if shorter is None:
                return before
            before = shorter


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


def _descriptor(connection: sa.Connection) -> int:
    """Of its socket."""
    raw: Any = connection.connection.dbapi_connection
    return int(raw.fileno())


def _sqlite_begin(connection: sa.Connection) -> None:
    """The write lock comes first, or two transactions both read, both write, and neither sees the other."""
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _sqlite_read_only(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _sqlite_begin says


def _sqlite_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _sqlite_begin says
    cursor = connection.cursor()
    # WAL: readers never wait for the writer. FULL: an intent row survives power loss before its effect happens.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _ends_frozen(after_s: float) -> Callable[[Any, object], None]:
    """For each new connection to PostgreSQL: a client that stands still in a transaction loses it, and its locks."""

    def set_up(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = {max(1, round(after_s * 1000))}")
        cursor.close()
        connection.commit()  # outside of it the first rollback would undo it

    return set_up
