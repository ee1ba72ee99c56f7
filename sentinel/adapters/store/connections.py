"""Makes the engine of a store's database, and sets up each of its connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from sentinel.adapters.store.json_columns import from_text, to_text
from sentinel.errors import Unavailable, UserError


@dataclass(frozen=True, slots=True)
class Pool:
    """Connections that one kind of transactions has: nobody else's can take them all.

    Attributes:
        kept: open at once, and kept open.
        more: further ones at need, closed after their transaction.
        wait_s: deadline of a transaction that waits until one is free.
    """

    kept: int
    more: int
    wait_s: float


TAKES_S = "takes_s"  # execution option of a reading: how long it may take

# When a host across a cut network is given up, by libpq's parameters: 25 s after its last word, or 30 s after the first of
# ours that it did not acknowledge (in ms). Transactions have deadlines of their own; this ends a migration, too.
_DEAD_PEER = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


def engine_of(
    url: str, busy_s: float, connect_s: float, *, pool: Pool, read_only: bool, frozen_s: float | None
) -> sa.Engine:
    """
    Args:
        busy_s: for how long SQLite waits for the lock of its only writer.
        connect_s: deadline of connecting to one host of PostgreSQL; at least 2 s.
        read_only, frozen_s: see ``Database``.

    Raises:
        UserError: no URL of a database, or its driver is missing.
    """
    arguments: dict[str, Any] = {"pool_size": pool.kept, "max_overflow": pool.more, "pool_timeout": pool.wait_s}
    if url.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": busy_s, "check_same_thread": False}
    else:
        # Whatever the server's default is: at a higher level each thread of a daemon that counts its transaction while
        # another does is refused, instead of waiting for its turn (``lease.count``).
        arguments["isolation_level"] = "READ COMMITTED"
    try:
        if not url.startswith("sqlite"):
            own, given = {"connect_timeout": max(2, round(connect_s)), **_DEAD_PEER}, sa.make_url(url).query
            arguments["connect_args"] = {name: value for name, value in own.items() if name not in given}
        engine = sa.create_engine(url, json_serializer=to_text, json_deserializer=from_text, **arguments)
    except (ArgumentError, ImportError, ValueError) as error:  # ValueError: a port that is none
        scheme = url.partition("://")[0] if "://" in url else "what is no URL"  # which may hold a password
        raise UserError(
            f"{scheme:.40}: no database that Sentinel knows",
            fix="write postgresql+psycopg://HOST/NAME (it needs psycopg), several hosts as "
            "postgresql+psycopg:///NAME?host=db1:5432&host=db2:5432; or the folder of a SQLite store",
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _sqlite_read_only if read_only else _sqlite_pragmas)
        sa.event.listen(engine, "begin", _sqlite_begin)
        return engine
    # First of all: SQLAlchemy's own first question is answered in bytes where the encoding is none.
    sa.event.listen(engine, "connect", _require_utf8, insert=True)
    sa.event.listen(engine, "connect", _never_prepares)
    if frozen_s is not None:
        sa.event.listen(engine, "begin", _ends_frozen(frozen_s))
    return engine


class OpenFile:
    """Which file the connections of a SQLite store have open: by its name there may be none any more, or another one."""

    def __init__(self, path: str) -> None:
        """``path``: of a file that is there; of what SQLite knows by another name than the system nothing is told."""
        self._path = path
        self._opened = self._there()

    def require(self) -> None:
        """
        Raises:
            Unavailable: what is saved would end with this process.
        """
        there = self._there()
        if self._opened == _NOT_KNOWN and there is not None:
            self._opened = there
        if self._opened is None:
            return
        if there is None:
            raise Unavailable(
                f"the store's file was removed below the daemon: {self._path}",
                fix="bring it back, and the daemon goes on; or stop it, remove what is left of that name with -wal and -shm "
                "behind it, and start it without a past",
            )
        if there not in (self._opened, _NOT_KNOWN):
            # SQLite would take the log of the former one for that of this one.
            raise Unavailable(
                f"the store's file was replaced by another below the daemon: {self._path}",
                fix="stop the daemon, remove the files of that name with -wal and -shm behind it, and start it",
            )

    def _there(self) -> tuple[int, int] | None:
        """Device and inode; None: there is no file."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at each transaction
        except FileNotFoundError:
            return None
        except OSError:
            return _NOT_KNOWN
        return found.st_dev, found.st_ino


_NOT_KNOWN = (-1, -1)


def _sqlite_begin(connection: sa.Connection) -> None:
    """Take the write lock at the beginning: else two transactions could both read before either writes."""
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _sqlite_read_only(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _sqlite_begin says
    # It may be a stranger's file, and a schema is a program: a view in a table's place need not end.
    cursor = connection.cursor()
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    found = cursor.execute(_PROGRAMS).fetchone()
    cursor.close()
    if found is not None:
        raise UserError(f"it is no store: {found[0]!r:.80} in it is no table", fix="name a store of Sentinel's")


_PROGRAMS = (
    "SELECT name FROM sqlite_master WHERE type = 'view' OR (type = 'table' AND (sql LIKE 'CREATE VIRTUAL%' "
    "OR sql LIKE '% AS (%')) LIMIT 1"
)


def _sqlite_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _sqlite_begin says
    cursor = connection.cursor()
    # WAL: readers never wait for the writer. FULL: an intent row survives power loss before its effect happens.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _require_utf8(connection: Any, _record: object) -> None:
    """
    Raises:
        UserError: the database cannot hold every character: what has others could not be saved.
    """
    cursor = connection.cursor()
    cursor.execute("SHOW server_encoding")
    said = cursor.fetchone()[0]
    cursor.close()
    connection.rollback()
    encoding = said.decode() if isinstance(said, bytes) else str(said)
    if encoding != "UTF8":
        raise UserError(
            f"the database's encoding is {encoding}, and must be UTF8",
            fix="make another one: createdb --encoding UTF8 --locale C --template template0 NAME",
        )


def _never_prepares(connection: Any, _record: object) -> None:
    """A pooler gives each transaction any session of the server: a statement prepared in another one is not there, or is
    another client's of the same name, whose answer would be taken for ours."""
    connection.prepare_threshold = None


def _ends_frozen(after_s: float) -> Callable[[sa.Connection], None]:
    """For each transaction in PostgreSQL, since its session may be a pooler's: end it when its client is frozen, so that its
    locks are released.

    What a reading has fetched it decodes in the same transaction, for which it has its own deadline (``TAKES_S``): that the
    server hears nothing of it meanwhile is no sign, and its locks hold up nobody but a change of the schema.
    """

    def set_up(connection: sa.Connection) -> None:
        silent_s = max(after_s, connection.get_execution_options().get(TAKES_S, 0.0))
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {max(1, round(silent_s * 1000))}")

    return set_up
