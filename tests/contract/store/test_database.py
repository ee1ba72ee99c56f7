"""What a database must be, and who brings it to this release when several daemons start at once."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from servers.ports import free_ports
from servers.postgres import PostgresServer, empty_database, missing

from sentinel.adapters.store import lease
from sentinel.adapters.store.database import where_of
from sentinel.errors import Timeout, Unavailable, UserError


@pytest.fixture
def encoded(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Makes an empty database of an encoding, and returns its URL."""
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    with empty_database(request.getfixturevalue("postgres_url")) as made:
        admin = sa.create_engine(request.getfixturevalue("postgres_url"), isolation_level="AUTOCOMMIT")

        def make(encoding: str) -> str:
            name = sa.make_url(made).database
            with admin.connect() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {name}")
                connection.exec_driver_sql(
                    f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
                )
            return made

        yield make
        admin.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_character_is_refused_at_the_start(
    encoded: Callable[[str], str], encoding: str
) -> None:
    """A change with a path in other letters would be dropped later, or nothing could be read."""
    with pytest.raises(UserError, match=f"encoding is {encoding}, and must be UTF8") as caught:
        DirectStore(encoded(encoding))
    assert "createdb" in caught.value.fix and "template0" in caught.value.fix


@pytest.mark.postgres
def test_one_that_can_hold_them_does(encoded: Callable[[str], str]) -> None:
    store = DirectStore(encoded("UTF8"))
    store.put("path", "シ/ckpt")
    assert store.get("path") == "シ/ckpt"
    store.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that lets everybody in and answers no question."""
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    listening = socket.create_server(("127.0.0.1", 0))
    kept = []

    def lets_in() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                kept.append(connection)
                connection.recv(4096)  # who asks for what; then: he may, UTF8, ready
                for kind, said in ((b"R", bytes(4)), (b"S", b"client_encoding\0UTF8\0"), (b"Z", b"I")):
                    connection.sendall(kind + struct.pack("!i", len(said) + 4) + said)

    threading.Thread(target=lets_in, daemon=True).start()
    yield f"postgresql+psycopg://a@127.0.0.1:{listening.getsockname()[1]}/a?sslmode=disable&gssencmode=disable"
    for connection in (listening, *kept):
        connection.close()


def test_a_server_that_lets_in_and_answers_nothing_is_unavailable(silent: str) -> None:
    said: Queue[Unavailable] = Queue()

    def asks() -> None:
        try:
            DirectStore(silent, busy_s=0.2)
        except Unavailable as error:
            said.put(error)

    threading.Thread(target=asks, daemon=True).start()
    error = said.get(timeout=60)
    assert isinstance(error, Timeout) and "did not answer within 0.2 s" in error.message, error


def test_a_port_for_each_of_several_hosts_is_one_clear_error() -> None:
    with pytest.raises(UserError, match="no database that Sentinel knows") as caught:
        DirectStore("postgresql+psycopg://a:SECRET@db1:5432,db2:5432/sentinel")
    assert "host=db1:5432&host=db2:5432" in caught.value.fix and "SECRET" not in str(caught.value)


def test_a_password_that_is_a_parameter_of_the_url_is_shown_nowhere() -> None:
    """The error is also the reason of an outage, which chats, the log and whoever asks for the status are told."""
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    (port,) = free_ports(1)
    secrets = (
        "password=SECRET&sslpassword=SECRET&passfile=/SECRET&options=-c%20a.b=SECRET&target_session_attrs=read-write"
    )
    with pytest.raises(Unavailable) as caught:
        DirectStore(f"postgresql+psycopg://a:SECRET@/sentinel?host=127.0.0.1:{port}&user=b&{secrets}")
    shown = f"postgresql+psycopg://a:***@/sentinel?host=127.0.0.1:{port}&target_session_attrs=read-write&user=b"
    assert f"({shown})" in caught.value.message.replace("%3A", ":") and "SECRET" not in str(caught.value)
    with pytest.raises(UserError, match="no database that Sentinel knows") as misread:
        DirectStore("host=db1 password=SECRET")
    assert "SECRET" not in str(misread.value)


def test_a_database_that_a_service_file_of_libpq_names_is_told_by_that_name() -> None:
    url = sa.make_url("postgresql+psycopg://?service=sentinel&servicefile=/etc/pg.conf&password=SECRET")
    assert where_of(url) == "postgresql+psycopg://?service=sentinel"


_START = "import sys; from sentinel.adapters.store.store import Store; input(); Store(sys.argv[1]).close()"


def test_many_that_start_at_once_on_an_empty_database_all_start(url: str) -> None:
    daemons = [
        subprocess.Popen([sys.executable, "-c", _START, url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for daemon in daemons:  # each has all modules when the first is told to go
        assert daemon.stdin is not None
        daemon.stdin.write("go\n")
    with ThreadPoolExecutor(len(daemons)) as ended:
        said = list(ended.map(lambda daemon: daemon.communicate(timeout=120)[1], daemons))
    assert [daemon.returncode for daemon in daemons] == [0] * len(daemons), said


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("setting", "statement", "fix"),
    [
        ("default_transaction_read_only = on", "DELETE FROM setting", "target_session_attrs=read-write"),
        ("statement_timeout = '500ms'", "SELECT pg_sleep(60)", "ALTER ROLE"),
    ],
)
def test_what_a_server_refuses_by_its_settings_is_said_with_the_fix(
    url: str, setting: str, statement: str, fix: str
) -> None:
    """As a standby refuses to write. None of it has to do with the disk of this host."""
    DirectStore(url).close()
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {admin.url.database} SET {setting}")
    admin.dispose()
    store = DirectStore(url)
    with pytest.raises(Unavailable) as caught, store._begin() as connection:
        connection.exec_driver_sql(statement)
    assert fix in caught.value.fix and "state folder" not in caught.value.fix
    store.close()


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_that_became_one_to_be_read_is_not_called_away(url: str) -> None:
    """As a primary that its operator set so while its disk is full: it can be reached, and says no to who wants to write."""
    store = DirectStore(
        sa.make_url(url).update_query_dict({"target_session_attrs": "read-write"}).render_as_string(False)
    )
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {admin.url.database} SET default_transaction_read_only = on")
    admin.dispose()
    with pytest.raises(Unavailable, match="session is read-only") as caught:
        store.audit_length()
    assert "its primary" in caught.value.fix
    store.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_disk_that_fails_is_told_from_a_full_one(store: DirectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(lease, "look", fails)
    with pytest.raises(Unavailable, match="disk I/O error") as caught:
        store.look_at_lease()
    assert "journalctl -k" in caught.value.fix and "space" not in caught.value.fix


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_what_ends_a_frozen_process_is_not_called_a_setting_of_the_server(store: DirectStore, url: str) -> None:
    """No role or server can be altered so that it helps."""
    frozen = DirectStore(url, read_only=True, frozen_s=0.2)
    there = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    with pytest.raises(Unavailable) as caught, frozen._begin() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        gone = False
        while not gone:
            with store._read() as other:
                gone = not other.execute(there, {"pid": pid}).scalar_one()
        connection.exec_driver_sql("SELECT 1")
    frozen.close()
    assert "lease_s" in caught.value.fix and "ALTER" not in caught.value.fix


@pytest.fixture(scope="module")
def strict() -> Iterator[sa.URL]:
    """Of a server that asks the account ``low`` for its password, and others but its owner for nothing but their right."""
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    if reason := missing():
        pytest.skip(f"needs postgres: {reason}")
    rules = "postgres trust", "low scram-sha-256", "nobody,nologin trust"
    with PostgresServer() as server:
        (server.folder / "data" / "pg_hba.conf").write_text("".join(f"local all {rule}\n" for rule in rules))
        admin = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

        def loaded() -> Any:
            with admin.connect() as connection:
                return connection.exec_driver_sql("SELECT pg_conf_load_time()").scalar_one()

        before = loaded()
        with admin.connect() as connection:
            for statement in (
                "CREATE ROLE low LOGIN PASSWORD 'right'",
                "CREATE ROLE nologin",
                "CREATE DATABASE closed",
                "REVOKE CONNECT ON DATABASE closed FROM public",
                "SELECT pg_reload_conf()",
            ):
                connection.exec_driver_sql(statement)
        while loaded() == before:  # the server reads it in its own time
            pass
        yield sa.make_url(server.url)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("account", "password", "database", "fix"),
    [
        ("low", "wrong", "postgres", "correct account and password"),
        ("low", None, "postgres", "correct account and password"),
        ("nobody", None, "postgres", "correct account and password"),
        ("nologin", None, "postgres", "correct account and password"),
        ("unlisted", None, "postgres", "correct account and password"),
        ("low", "right", "gone", "create it"),
        ("low", "right", "closed", "OWNER TO"),
        ("low", "right", "postgres", "OWNER TO"),
    ],
)
def test_whom_a_server_lets_not_in_is_told_to_mend_the_account_and_not_the_server(
    strict: sa.URL, account: str, password: str | None, database: str, fix: str
) -> None:
    url = strict.set(username=account, password=password, database=database)
    with pytest.raises(Unavailable) as caught:
        DirectStore(url.render_as_string(hide_password=False))
    assert fix in caught.value.fix, caught.value


def test_a_store_that_cannot_be_opened_leaves_no_thread_behind(silent: str) -> None:
    """A daemon that waits for its store opens it every two seconds, for as long as that takes."""

    def watchers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "database deadlines"]

    before = watchers()
    for _ in range(3):
        with pytest.raises(Unavailable):
            DirectStore(silent, busy_s=0.2)
    for left in set(watchers()).difference(before):
        left.join(timeout=60)
        assert not left.is_alive()
