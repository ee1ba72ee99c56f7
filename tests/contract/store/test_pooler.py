"""A pooler between the store and its PostgreSQL: each transaction may come to another session of the server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from in_memory.direct_store import DirectStore
from made_records import AT, incident
from servers import pgbouncer

from sentinel.adapters.store.lease import DaemonRow
from sentinel.model import changes

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("url", ["postgres"], indirect=True)]
LENGTH_S = 5.0


@pytest.fixture
def pooled(url: str) -> Iterator[DirectStore]:
    if why := pgbouncer.missing():
        pytest.skip(f"needs pgbouncer: {why}")
    with pgbouncer.PgBouncer(url) as pooler:
        store = DirectStore(pooler.url, frozen_s=LENGTH_S, renewal_s=2.0)
        yield store
        store.close()


def own(beats: int) -> DaemonRow:
    return DaemonRow("a", "http://a:9478", "1.0", beats, AT)


def test_what_is_written_and_read_at_once_is_what_was_asked_for(pooled: DirectStore) -> None:
    assert pooled.take_lease("a", pooled.look_at_lease(own(0)))

    def work(thread: int) -> None:
        for n in range(30):
            name = f"i{thread}-{n}"
            pooled.commit(changes.Batch([changes.IncidentChanged(dataclasses.replace(incident(), id=name))], name))
            pooled.look_at_lease(own(n)) if thread == 0 else pooled.require_lease()
            assert pooled.get("not there", "none") == "none"
            found = pooled.incident(name)
            assert found is not None and found.id == name

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, thread) for thread in range(4)]:
            done.result(120)


def test_nothing_of_a_transaction_is_left_in_the_session(url: str) -> None:
    """What is prepared or set there, the next client of that session of the server finds or misses."""
    store = DirectStore(url, frozen_s=LENGTH_S)
    for n in range(20):
        store.put(f"s{n}", n)
        assert store.get(f"s{n}") == n
    session = store.engine.raw_connection()
    cursor = session.cursor()
    cursor.execute(
        "SELECT count(*), current_setting('idle_in_transaction_session_timeout') FROM pg_prepared_statements"
    )
    assert cursor.fetchone() == (0, "0")
    session.close()
    store.close()


def test_a_transaction_that_stands_still_is_ended_all_the_same(url: str) -> None:
    store = DirectStore(url, frozen_s=LENGTH_S)
    with store._begin() as connection:
        ends = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one()
    assert ends == f"{LENGTH_S:g}s"
    store.close()
