"""The connection to the store's database: SQLite in WAL mode by default, PostgreSQL by its URL.

Transactions with deadlines, and the schema. Errors of the database come out as ``Unavailable``, those that trying again
cannot help as ``Refused``.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as NoneFree

from sentinel.adapters.store import lease
from sentinel.adapters.store.connections import TAKES_S, OpenFile, Pool, engine_of
from sentinel.adapters.store.deadlines import Deadlines
from sentinel.adapters.store.tables import Utc
from sentinel.errors import ContentLost, ProtocolError, Refused, Timeout, Unavailable, UserError
from sentinel.log import Log
from sentinel.model.stored import UnreadableRecord
from sentinel.wire import record_from

_MIGRATING = 0x53454E55  # lock of PostgreSQL that is held while the schema is changed
_WAIT_FOR_OTHERS = sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING))
_SERVER_TIME: sa.Select[Any] = sa.select(sa.type_coerce(sa.func.clock_timestamp(), Utc))
_LONG_FACTOR = 10.0  # times the deadline: what may take as long as there is much of it
READERS = 4  # by default
# What is saved waits for the lock of its own daemon's row anyway: one of the engine's, one of a person's or a pruning.
_WRITERS = 2
# One that renews, and requests to Slurm that ask first (``sentinel.daemon.lease``), of which each takes milliseconds.
_LEASE_KEPT, _LEASE_MORE = 2, 3
_SAID = 100  # complaints about records that cannot be read
T = TypeVar("T")


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'sentinel.db'}"


def migrate(engine: sa.Engine, wait_s: float = 100.0) -> None:
    """Bring the schema to this release's (Alembic, all steps in one transaction). Of several that do so at once each waits
    for the one before it: two that make the same table do not wait for each other, one of them fails.

    Args:
        wait_s: for how long it waits for another one.

    Raises:
        UserError: the store is of a later release; it is left as it is.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    with engine.begin() as connection:  # SQLite: the lock of its only writer
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, round(wait_s * 1000))}")
            connection.execute(_WAIT_FOR_OTHERS)
        later = set(MigrationContext.configure(connection).get_current_heads()) - known
        if later:
            raise UserError(
                f"the store is of a later release: step {', '.join(sorted(later))} of its schema, where this release knows "
                f"{max(known)} at most ({where_of(engine.url)})",
                fix="install that release again, or bring back the copy from before the upgrade: docs/install.md, Upgrade",
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


# Of a URL's parameters: what says which database it is. Any other may be a secret, as password and sslpassword are.
_SHOWN = frozenset({"host", "hostaddr", "port", "user", "dbname", "service", "target_session_attrs"})


def where_of(url: sa.URL) -> str:
    """The file of a store, or the URL of its database without what may be a secret: it is told to users and chats."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database.removeprefix("file:")
    shown = {name: value for name, value in url.query.items() if name in _SHOWN}
    return url.set(query=shown).render_as_string(hide_password=True)


def _words(error: SQLAlchemyError) -> str:
    """The database's error message without the SQL statement, which does not help an operator."""
    said = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return " ".join(f"{said!s:.300}".split())


_OTHER_SCHEMA = (
    "it is no store of Sentinel, or of another release, which the daemon of this release migrates at its start"
)
_DAMAGED = "the file is damaged: stop the daemon and bring back a copy, or move it aside and start without a past"
_CLOSED = "check rights of the state folder, and ReadWritePaths of its unit: sentinel install --controller writes that"
_FIXES = (  # patterns in the database's message, the first that are in it: what a person can do
    (
        ("authentication failed", "no password supplied", r"no pg_hba\.conf entry", 'role ".*" (does|is) not '),
        "correct account and password in [daemon] database, then restart the daemon; or let them in at the server: ALTER "
        "ROLE, pg_hba.conf",
    ),
    (
        ('FATAL: +database ".*" does not exist',),
        "create it: docs/two-daemons.md; or correct its name in [daemon] database, then restart the daemon",
    ),
    (
        ("permission denied for",),
        "give the account the database: ALTER DATABASE ... OWNER TO; its tables too, where they are another's",
    ),
    (("no such table", "no such column", "does not exist"), _OTHER_SCHEMA),
    (("malformed", "not a database"), _DAMAGED),
    (
        ("read-only transaction", "session is read-only"),
        "it is a standby, or set to be read: name its primary, and add target_session_attrs=read-write to the URL",
    ),
    (
        ("idle-in-transaction timeout",),  # Sentinel's own setting, whatever the account's is
        "this process stood still in it for longer than [daemon] lease_s: was its host suspended, or has it too little "
        "processor time? A larger lease_s gives it longer",
    ),
    (
        ("statement timeout", "idle-session timeout", "transaction timeout"),
        "the server's settings end it; Sentinel has deadlines of its own: ALTER ROLE ... SET statement_timeout = 0, and "
        "idle_session_timeout, transaction_timeout alike",
    ),
    (
        ("too many connections", "too many clients", "connection slots"),
        "give the account more connections, or lower [daemon] database_readers: docs/two-daemons.md says how many there are",
    ),
    (("connection",), "check that its server runs and can be reached from here"),
    (("readonly", "unable to open"), _CLOSED),
    (
        ("disk I/O error",),
        "the state folder's disk cannot be read or written: journalctl -k says why; if it fails, bring the store to another "
        "one while the daemon is stopped",
    ),
    (("No space left",), "free space on the disk of the database's server"),
)


def _fix(why: str) -> str:
    found = (fix for patterns, fix in _FIXES if any(re.search(pattern, why) for pattern in patterns))
    return next(found, "check disk space and rights of the state folder, or of the database's server")


class Database:
    """One database of SQLAlchemy; what is read and written stands in ``Store``."""

    def __init__(
        self,
        url: str,
        *,
        busy_s: float = 10.0,
        log: Log | None = None,
        read_only: bool = False,
        frozen_s: float | None = None,
        renewal_s: float | None = None,
        readers: int = READERS,
    ) -> None:
        """
        Args:
            busy_s: deadline of a transaction; ten times as much for loading and pruning. Also of waiting for a connection.
            read_only: for recordings; the schema is left as it is.
            frozen_s: the server ends a transaction whose client says nothing for so long (of one that reads: for as long as
                it may take), and lets go of its locks; None: never. Without it a daemon that is stopped in a transaction
                holds up the one that takes over.
            renewal_s: of a database that daemons share: deadline of a transaction about the lease, which has a connection
                of its own, and of connecting to one host; None: ``busy_s``.
            readers: readings at once; each has a connection, of which those that write need none.

        Raises:
            Unavailable: the database does not answer. UserError: it is none that can be used.
        """
        self._log = log or Log()
        self._said: set[str] = set()  # about records that cannot be read
        self.token: int | None = None  # of the lease under which this process writes; None: it needs none
        self._holder = ""  # of that lease: this process
        self._confirmed = 0  # the newest number of a transaction of ours that the database has confirmed; 0: none
        self._numbers = threading.Lock()
        self._closing = threading.Event()
        self._busy_s = busy_s
        self._deadlines: Deadlines | None = None
        self._file: OpenFile | None = None
        self._renewal_s = busy_s if renewal_s is None else min(renewal_s, busy_s)
        made = partial(engine_of, url, busy_s, self._renewal_s, read_only=read_only, frozen_s=frozen_s)
        self.engine = made(pool=Pool(_WRITERS, 0, busy_s))
        self._readers = made(pool=Pool(readers, 0, busy_s))
        # What holds up others must not hold up a renewal, and one without an answer must end while another comes in time.
        self._lease_engine = self.engine
        if self.shared:
            self._deadlines = Deadlines()
            if renewal_s is not None:
                self._lease_engine = made(pool=Pool(_LEASE_KEPT, _LEASE_MORE, self._renewal_s))
            for engine in {self.engine, self._readers, self._lease_engine}:
                sa.event.listen(engine, "connect", self._deadlines.connected, insert=True)
        if not read_only:
            try:
                with self._reported():
                    with self._connected(self.engine, busy_s):
                        pass  # made within its deadline; the migration, which may take longer, has it from the pool
                    migrate(self.engine, _LONG_FACTOR * busy_s)
            except BaseException:
                self.close()  # a daemon that waits for its store makes it again and again
                raise
            self._file = OpenFile(where_of(self.engine.url)) if not self.shared else None
            if self.shared:
                # In weeks of standing by an idle connection may be lost: what is saved first would wait for its deadline.
                self.engine.dispose()

    def close(self) -> None:
        self._closing.set()
        for engine in (self.engine, self._readers, self._lease_engine):
            engine.dispose()
        if self._deadlines is not None:
            self._deadlines.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except NoneFree as error:
            raise Unavailable(
                "the store was not asked: other readings, or what is saved, had all connections for as long as one may take",
                fix="try again; [daemon] database_readers says how many readings go on at once",
            ) from error
        except SQLAlchemyError as error:
            own = isinstance(error, StatementError) and not isinstance(error, DBAPIError)  # never reached the database
            why, where = _words(error), where_of(self.engine.url)
            if own or isinstance(error, (DataError, IntegrityError)):  # trying again cannot help
                raise Refused(f"the store refuses it: {why} ({where})") from error
            raise Unavailable(f"the store does not answer: {why} ({where})", fix=_fix(why)) from error

    @contextlib.contextmanager
    def _begin(self, *, batch: str = "", about_lease: bool = False) -> Iterator[sa.Connection]:
        """
        Args:
            batch: name of the changes, to be asked for by ``_has``.
            about_lease: with that connection and deadline.

        Raises:
            Superseded: another daemon is active; nothing was changed.
            ContentLost: the database has lost what this daemon wrote; nothing was changed.
        """
        number: int | None = None
        engine = self._lease_engine if about_lease else self.engine
        for_s = self._renewal_s if about_lease else self._busy_s
        with self._transaction(engine, for_s) as connection:
            yield connection
            if self.token is not None:
                confirmed = self._confirmed
                # Before the lease: two transactions of this daemon must ask for these locks in the same order.
                number = lease.count(connection, self._holder, batch) if self.shared else None
                self._require_ours(connection, self.token, number - 1 if number is not None else None, confirmed)
        self._confirm(number)

    def _confirm(self, number: int | None) -> None:
        with self._numbers:
            self._confirmed = max(self._confirmed, number or 0)

    def _has(self, batch: str) -> bool:
        """Whether the last batch of ours that the database holds is the one of this name. A file has no connection that is
        lost between a commit and its answer.

        Raises:
            Superseded: another daemon is active.
        """
        if self.token is None or not self.shared:
            return False
        with self._transaction(self.engine, self._busy_s) as connection:
            number = lease.number_with(connection, self._holder, batch)
            lease.require(connection, self._holder, self.token)
        self._confirm(number)
        return number is not None

    def _require_ours(self, connection: sa.Connection, token: int, held: int | None, confirmed: int) -> None:
        """
        Args:
            held: the number of the last transaction of this daemon that the database holds; None: of none.
            confirmed: of the last one that it had confirmed before it was asked; 0: of none, as to a file.

        Raises:
            ContentLost: it holds fewer, or not the lease that we took. Superseded: another daemon is active.
        """
        missing = bool(confirmed) and (held is None or held < confirmed)
        # Another daemon that goes on without what we wrote, on an old primary, has not taken over from us. One that has
        # may have removed our row.
        if held is None or not missing:
            lease.require(connection, self._holder, token)
        if missing:
            raise ContentLost(
                f"the database does not hold what this daemon wrote: {held or 0} of {confirmed} transactions",
                fix=lease.LOST,
            )

    @contextlib.contextmanager
    def _read(self, *, times: float = 1.0, about_lease: bool = False) -> Iterator[sa.Connection]:
        """A transaction that only reads: in SQLite it waits for no writer. See ``_begin``.

        ``times``: how many usual deadlines it may take.
        """
        engine = self._lease_engine if about_lease else self._readers
        for_s = self._renewal_s if about_lease else self._busy_s * times
        with self._transaction(engine.execution_options(**{"reads": True, TAKES_S: for_s}), for_s) as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, engine: sa.Engine, for_s: float) -> Iterator[sa.Connection]:
        """Up to its commit within ``for_s``. SQLite has a deadline of its own, for its lock."""
        if self._file is not None:
            self._file.require()
        with self._reported(), self._connected(engine, for_s) as connection:
            if self._deadlines is None:
                with connection.begin():
                    yield connection
                return
            with self._overdue(for_s), self._deadlines.within(for_s, _descriptor(connection)), connection.begin():
                yield connection

    @contextlib.contextmanager
    def _connected(self, engine: sa.Engine, for_s: float) -> Iterator[sa.Connection]:
        """A connection of the pool; what a new one is asked first is answered within ``for_s``."""
        if self._deadlines is None:
            connection = engine.connect()
        else:
            with self._deadlines.opening(for_s) as was_shut_down:
                try:
                    connection = engine.connect()
                except DBAPIError as error:
                    if was_shut_down():
                        raise _unanswered(for_s) from error
                    raise
        with connection:
            yield connection

    @contextlib.contextmanager
    def _overdue(self, for_s: float) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        except DBAPIError as error:
            if error.connection_invalidated and time.monotonic() - began_s >= for_s:
                raise _unanswered(for_s) from error
            raise

    @property
    def shared(self) -> bool:
        """Whether daemons of other hosts can use this database: one that cannot reach it may not be the active one."""
        return self.engine.dialect.name != "sqlite"

    def server_time(self) -> datetime | None:
        """What the clock of the database's server says; None: it is a file, and has none."""
        if not self.shared:
            return None
        with self._read() as connection:
            told: datetime = connection.execute(_SERVER_TIME).scalar_one()
            return told

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


def _unanswered(for_s: float) -> Timeout:
    return Timeout(f"the database did not answer within {for_s:g} s", fix="is it reachable? [daemon] database_s")


def _descriptor(connection: sa.Connection) -> int:
    """Of its socket."""
    raw: Any = connection.connection.dbapi_connection
    return int(raw.fileno())
