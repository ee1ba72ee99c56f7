"""The audit over SQLite and over PostgreSQL: entries are added, chained, and neither changed nor deleted unnoticed."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from made_records import AT, later

from sentinel.adapters.store.store import Store
from sentinel.errors import SentinelError
from sentinel.model.audit import FIRST, AuditEntry, Stage, digest_of
from sentinel.model.changes import Audited


def entry(number: int = 0, **changed: Any) -> AuditEntry:
    given: dict[str, Any] = {
        "at": later(number), "who": "ada", "origin": "10.0.0.7", "action": "drain", "stage": Stage.DONE,
        "target": f"node n{number}", "why": "a fan", "before": {"state": "idle"}, "after": {"reason": "x", "gone": None},
    }  # fmt: skip
    return AuditEntry(**given | changed)


def filled(store: Store, count: int = 4) -> None:
    for first in range(0, count, 500):  # as many as a busy database writes within its deadline
        store.commit([Audited(entry(number)) for number in range(first, min(first + 500, count))])


def forced(store: Store, statement: str) -> None:
    """What somebody does who may write the database: without the triggers."""
    with store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE audit DISABLE TRIGGER ALL")
        else:
            for event in ("update", "delete"):
                connection.exec_driver_sql(f"DROP TRIGGER audit_no_{event}")
        connection.exec_driver_sql(statement)


def test_entries_come_back_as_they_were_given_and_chained(store: Store) -> None:
    filled(store)
    found = store.audit()
    assert [item.entry for item in found] == [entry(number) for number in range(4)]
    assert [item.number for item in found] == [1, 2, 3, 4]
    assert [item.previous for item in found] == [FIRST, *(item.digest for item in found[:-1])]
    assert [digest_of(item.number, item.entry, item.previous) for item in found] == [item.digest for item in found]
    checked = store.check_audit()
    assert (checked.entries, checked.head, checked.fault) == (4, found[-1].digest, "")
    assert [item.number for item in store.audit(since=later(2))] == [3, 4]
    assert [item.number for item in store.audit(after=3)] == [4]
    assert [item.number for item in store.audit(newest=2)] == [3, 4]


def test_an_empty_audit_is_in_order(store: Store) -> None:
    checked = store.check_audit()
    assert (checked.entries, checked.head, checked.fault) == (0, FIRST, "") and store.audit() == []


# A row of the same number, with all its columns; SQLite's REPLACE deletes the one before without its trigger.
_AGAIN = "INSERT OR REPLACE INTO audit SELECT * FROM audit WHERE number = 2"
_UPSERT = "INSERT INTO audit SELECT * FROM audit WHERE number = 2 ON CONFLICT (number) DO UPDATE SET who = 'eve'"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'eve'", "DELETE FROM audit", "DELETE FROM audit WHERE 1=1", _UPSERT,
        "UPDATE audit SET number = number + 100", "DELETE FROM audit WHERE number IN (SELECT 2)",
    ],
)  # fmt: skip
def test_the_database_refuses_to_change_or_delete_one(store: Store, statement: str) -> None:
    filled(store)
    with pytest.raises(sa.exc.SQLAlchemyError, match="only added to"), store.engine.begin() as connection:
        connection.exec_driver_sql(statement)
    assert store.check_audit().entries == 4


def test_replacing_is_refused_too(store: Store) -> None:
    filled(store)
    if store.engine.dialect.name != "sqlite":  # which alone has REPLACE
        with pytest.raises(sa.exc.SQLAlchemyError, match="only added to"), store.engine.begin() as connection:
            connection.exec_driver_sql(_UPSERT)
        assert store.check_audit().entries == 4
        return
    for statement in (_AGAIN, "REPLACE INTO audit SELECT * FROM audit WHERE number = 2"):
        with pytest.raises(sa.exc.SQLAlchemyError, match="only added to"), store.engine.begin() as connection:
            connection.exec_driver_sql(statement)
    path = str(store.engine.url.database)
    for recursive in ("OFF", "ON"):
        with closing(sqlite3.connect(path)) as other, pytest.raises(sqlite3.Error, match="only added to"):
            other.execute(f"PRAGMA recursive_triggers = {recursive}")
            other.execute(_AGAIN)
    assert store.check_audit().entries == 4


def test_truncation_is_refused_too(store: Store) -> None:
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no TRUNCATE")
    filled(store)
    with pytest.raises(sa.exc.SQLAlchemyError, match="only added to"), store.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE audit")


COLUMNS = {
    "who": "'eve'", "origin": "'elsewhere'", "action": "'release'", "stage": "'failed'", "target": "'node n9'",
    "incident": "'i9'", "why": "'none'", "before": "'{}'", "after": "'{\"reason\":\"y\"}'", "digest": f"'{FIRST}'",
    "previous": f"'{FIRST}'", "at": "'2020-01-01 00:00:00.000000'",
}  # fmt: skip


@pytest.mark.parametrize("column", COLUMNS)
def test_each_altered_column_is_found(store: Store, column: str) -> None:
    filled(store)
    forced(store, f'UPDATE audit SET "{column}" = {COLUMNS[column]} WHERE number = 2')
    checked = store.check_audit()
    assert checked.entries == 1 and "entry 2" in checked.fault


@pytest.mark.parametrize(
    ("statement", "entries", "fault"),
    [
        ("DELETE FROM audit WHERE number = 2", 1, "missing: entry 2"),
        ("DELETE FROM audit WHERE number <= 2", 0, "missing: entries 1 to 2"),
        ("UPDATE audit SET number = 9 WHERE number = 2", 1, "missing: entry 2"),
        ("UPDATE audit SET stage = 'odd' WHERE number = 3", 2, "entry 3: it cannot be read"),
        ("UPDATE audit SET after = 'no JSON' WHERE number = 3", 2, "entry 3: it cannot be read"),
    ],
)
def test_missing_and_broken_entries_are_found(store: Store, statement: str, entries: int, fault: str) -> None:
    filled(store)
    forced(store, statement)
    checked = store.check_audit()
    assert checked.entries == entries and fault in checked.fault


def test_a_long_audit_is_checked_to_its_end(store: Store) -> None:
    filled(store, 2500)
    assert store.check_audit().entries == 2500
    forced(store, "UPDATE audit SET who = 'eve' WHERE number = 2001")
    assert store.check_audit().entries == 2000


def test_each_part_of_a_long_audit_is_a_transaction_with_a_deadline_of_its_own(store: Store) -> None:
    """It is never pruned: whatever deadline all of it had would be too short one day."""
    filled(store, 2500)
    begun: list[object] = []
    sa.event.listen(store._readers, "begin", begun.append)
    whole = store.check_audit()
    assert whole.entries == 2500 and len(begun) == 3
    first = store.check_audit(most=1000)
    assert first.entries == 1000 and store.check_audit(first) == whole
    assert store.check_audit(whole) == whole
    forged = replace(first, head=FIRST)
    assert "entry 1001 does not follow" in store.check_audit(forged).fault
    forced(store, "UPDATE audit SET who = 'eve' WHERE number = 2001")
    assert store.check_audit(first).entries == 2000


def test_the_audit_and_its_change_are_one_transaction(store: Store) -> None:
    with pytest.raises((SentinelError, AttributeError)):
        store.commit([Audited(entry()), Audited(None)])  # type: ignore[arg-type]
    assert store.audit() == []


def test_nothing_that_is_forgotten_takes_the_audit_with_it(store: Store) -> None:
    filled(store)
    store.forget(later(1e9))
    store.forget_beyond(1, later(1e9), AT)
    assert store.check_audit().entries == 4


def test_writers_at_once_make_one_chain(store: Store) -> None:
    def write() -> None:
        for number in range(20):
            store.commit([Audited(entry(number))])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    checked = store.check_audit()
    assert (checked.entries, checked.fault) == (80, "")


def test_hostile_texts_are_kept_short_and_in_order(store: Store) -> None:
    odd = "\0\ud800\n" + "x" * 9000
    long = {"text": odd, "nodes": [f"n{number}" for number in range(5000)], "loss": float("nan"), odd: {"deep": (1, 2)}}
    store.commit([Audited(entry(who=odd, origin=odd, target=odd, why=odd, action=odd, incident=odd, after=long))])
    checked, (found,) = store.check_audit(), store.audit()
    assert (checked.entries, checked.fault) == (1, "")
    assert len(found.entry.why) == 500 and len(found.entry.after["nodes"]) == 64 and found.entry.after["loss"] == "nan"
    assert len(str(found.entry.after)) < 3000
