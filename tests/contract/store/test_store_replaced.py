"""A database that comes back with older content than a running daemon wrote: a replica was promoted that lagged."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, ended

from sentinel.adapters.store import tables
from sentinel.adapters.store.connections import OpenFile
from sentinel.adapters.store.database import sqlite_url
from sentinel.adapters.store.lease import DaemonRow
from sentinel.errors import ContentLost, Superseded, Unavailable


def own(name: str, beats: int = 0) -> DaemonRow:
    return DaemonRow(name, f"http://{name}:9478", "1.0", beats, AT)


@pytest.fixture
def replaced(store: DirectStore) -> Iterator[Callable[[], None]]:
    """Puts what the store holds back to what it held before the last commits, as a promoted replica does that lags."""
    kept: list[dict[str, Any]] = []
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", "before")
    with store.engine.begin() as connection:
        kept += [dict(row._mapping) for row in connection.execute(sa.select(tables.daemon))]

    def promote() -> None:
        with store.engine.begin() as connection:
            connection.execute(sa.delete(tables.daemon))
            connection.execute(sa.insert(tables.daemon), kept)
            connection.execute(sa.update(tables.setting).values(value="before"))

    yield promote


@pytest.mark.parametrize("without_row", [False, True])
def test_a_database_that_has_lost_what_this_daemon_wrote_takes_nothing_more_from_it(
    store: DirectStore, replaced: Callable[[], None], without_row: bool
) -> None:
    store.put("paused", "after")
    store.look_at_lease(own("a", 1))
    store.require_lease()
    if not store.shared:
        return  # a file has no replica, and pays nothing for this
    replaced()
    if without_row:
        with store.engine.begin() as connection:
            connection.execute(sa.delete(tables.daemon))
    for write in (
        lambda: store.put("paused", "late"),
        lambda: store.append([ended()]),
        lambda: store.look_at_lease(own("a", 2)),
        store.require_lease,
    ):
        with pytest.raises(ContentLost, match="does not hold what this daemon wrote"):
            write()
    assert store.get("paused") == "before" and store.evidence_since(AT) == []
    # As the process does that is started anew: with the lease, and what the store holds now.
    again = DirectStore(store.engine.url.render_as_string(hide_password=False))
    assert again.take_lease("a", again.look_at_lease(own("a", 3)))
    again.put("paused", "again")
    again.require_lease()
    assert again.get("paused") == "again"
    again.close()


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_commits_of_several_threads_are_told_from_lost_ones(store: DirectStore, level: str) -> None:
    if store.shared:  # as the site's administrator may set it for all connections
        name = store.engine.url.database
        with store.engine.begin() as connection:
            connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
        store.engine.dispose()
    assert store.take_lease("a", store.look_at_lease(own("a")))
    errors: list[Exception] = []

    def write(name: str) -> None:
        try:
            for number in range(20):
                store.put(name, number)
                store.require_lease()
        except Unavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"key{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and [store.get(f"key{number}") for number in range(4)] == [19] * 4


def test_a_file_is_not_written_once_more_for_each_commit(store: DirectStore) -> None:
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", True)
    with store.engine.begin() as connection:
        counted = connection.execute(sa.select(tables.daemon.c.commits)).scalar()
    assert counted == (1 if store.shared else 0)


def earlier(store: DirectStore, **values: Any) -> None:
    """The lease's row as a database has it that is older than this daemon, or went another way."""
    with store.engine.begin() as connection:
        connection.execute(sa.update(tables.lease).values(**values))


@pytest.mark.parametrize(
    "values",
    [{"token": 0, "holder": "b"}, {"token": 0, "holder": ""}, {"holder": "b"}],
    ids=["another one held it before", "nobody held it before", "another one took it as well"],
)
def test_a_lease_from_before_ours_is_content_lost(store: DirectStore, values: dict[str, Any]) -> None:
    """Tokens grow, and each is given to one daemon: no other daemon has taken over in what this one wrote."""
    assert store.take_lease("a", store.look_at_lease(own("a")))
    earlier(store, **values)
    for write in (lambda: store.put("paused", "late"), store.require_lease, lambda: store.look_at_lease(own("a", 1))):
        with pytest.raises(ContentLost, match="the lease that this daemon took"):
            write()
    assert store.get("paused") is None


def test_a_lease_that_is_not_there_is_content_lost(store: DirectStore) -> None:
    assert store.take_lease("a", store.look_at_lease(own("a")))
    with store.engine.begin() as connection:
        connection.execute(sa.delete(tables.lease))
    with pytest.raises(ContentLost):
        store.require_lease()


def test_one_taken_over_where_what_we_wrote_is_missing_is_content_lost(
    store: DirectStore, replaced: Callable[[], None]
) -> None:
    """An old primary is back, on which another daemon goes on."""
    if not store.shared:
        return
    for number in range(3):
        store.put("paused", number)
    replaced()
    earlier(store, token=5, holder="b")
    for write in (lambda: store.put("paused", "late"), store.require_lease):
        with pytest.raises(ContentLost, match="does not hold what this daemon wrote"):
            write()


def test_one_whose_row_was_removed_by_who_took_over_has_lost_nothing(store: DirectStore, url: str) -> None:
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", True)
    other = DirectStore(url)
    assert other.take_lease("b", other.look_at_lease(own("b")))
    other.forget_daemons(["a"])
    for late in (lambda: store.look_at_lease(own("a", 1)), store.require_lease, lambda: store.put("paused", False)):
        with pytest.raises(Superseded, match="b is the active daemon") as caught:
            late()
        assert type(caught.value) is Superseded
    other.close()


def test_one_given_back_after_ours_is_no_loss(store: DirectStore, url: str) -> None:
    assert store.take_lease("a", store.look_at_lease(own("a")))
    other = DirectStore(url)
    assert other.take_lease("b", other.look_at_lease(own("b")))
    other.leave_lease("b")
    with pytest.raises(Superseded) as caught:
        store.require_lease()
    assert type(caught.value) is Superseded
    other.close()


def require_nothing_is_done(store: DirectStore, file: Path, why: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.put("paused", True),
        lambda: store.look_at_lease(own("a", 1)),
        store.require_lease,
        lambda: store.get("paused"),
    )
    for late in calls:
        with pytest.raises(Unavailable, match=why) as caught:
            late()
        assert (
            type(caught.value) is Unavailable and str(file) in caught.value.message and "start it" in caught.value.fix
        )


def test_a_file_that_was_removed_takes_nothing_more_until_it_is_back(tmp_path: Path) -> None:
    """What is saved would end with the process, and nobody would know."""
    store, file, aside = DirectStore(sqlite_url(tmp_path)), tmp_path / "sentinel.db", tmp_path / "aside"
    assert store.take_lease("a", store.look_at_lease(own("a")))
    file.rename(aside)
    require_nothing_is_done(store, file, "was removed")
    assert not file.exists(), "nor is another one made in its place"
    aside.rename(file)
    store.put("paused", True)
    assert store.get("paused") is True
    store.close()


def test_another_file_in_its_place_is_neither_read_nor_written_before_a_start(tmp_path: Path) -> None:
    """As a copy that was restored below a running daemon: SQLite would take the former file's log for this one's."""
    store, file, copied = DirectStore(sqlite_url(tmp_path)), tmp_path / "sentinel.db", tmp_path / "copied"
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", "before")
    copied.mkdir()
    other = DirectStore(sqlite_url(copied))
    other.put("paused", "copied")
    other.close()
    (copied / "sentinel.db").replace(file)
    require_nothing_is_done(store, file, "was replaced")
    store.close()
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink()
    again = DirectStore(sqlite_url(tmp_path))
    assert again.get("paused") == "copied"
    with again._read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    again.close()


@pytest.mark.parametrize("name", ["file:{}?mode=rwc&uri=true", "file:{}?uri=true", "file:///{}?uri=true", "{}"])
def test_a_file_is_there_however_it_is_named(tmp_path: Path, name: str) -> None:
    store, file, aside = (
        DirectStore(f"sqlite:///{name.format(tmp_path / 'sentinel.db')}"),
        tmp_path / "sentinel.db",
        tmp_path / "aside",
    )
    assert store.take_lease("a", store.look_at_lease(own("a")))
    file.rename(aside)
    require_nothing_is_done(store, file, "was removed")
    aside.rename(file)
    store.put("paused", True)
    assert store.get("paused") is True
    store.close()


def test_one_whose_identity_could_not_be_read_at_first_is_not_taken_for_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a file server does not answer for a moment."""

    def silent(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    file = tmp_path / "sentinel.db"
    file.touch()
    with monkeypatch.context() as stalled:
        stalled.setattr(os, "stat", silent)
        opened = OpenFile(str(file))
        opened.require()
    opened.require()
    (tmp_path / "other").touch()
    (tmp_path / "other").replace(file)
    with pytest.raises(Unavailable, match="was replaced"):
        opened.require()
