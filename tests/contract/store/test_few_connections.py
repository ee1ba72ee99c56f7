"""However many people read at once: what is decided is saved, and the lease renewed."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, incident

from sentinel.adapters.store.database import READERS
from sentinel.adapters.store.lease import DaemonRow
from sentinel.errors import Unavailable
from sentinel.model import changes

MOST = READERS + 2  # connections of the role: one for a commit, one for the lease


@pytest.fixture
def few(url: str) -> Iterator[str]:
    """URL of a database that gives few connections to the account that owns it, as small plans do; SQLite has none."""
    made = sa.make_url(url)
    if made.get_backend_name() == "postgresql":
        role, admin = f"r{uuid.uuid4().hex}", sa.create_engine(made, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {MOST}")
            connection.exec_driver_sql(f"ALTER DATABASE {made.database} OWNER TO {role}")
        admin.dispose()
        made = made.set(username=role)
    yield made.render_as_string(hide_password=False)


class Readings:
    """Readings that go on until ``over``. ``begun``: released by each."""

    def __init__(self, store: DirectStore) -> None:
        self._store = store
        self.begun, self.over = threading.Semaphore(0), threading.Event()

    def read(self) -> bool:
        with self._store._read() as connection:
            self.begun.release()
            return self.over.wait(120) and connection.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_many_readings_hold_up_neither_a_commit_nor_a_renewal(few: str) -> None:
    store = DirectStore(few, busy_s=60.0, renewal_s=10.0)
    readings = Readings(store)
    assert store.take_lease("a", store.look_at_lease(DaemonRow("a", "http://a:9478", "1.0", 0, AT)))
    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(readings.read) for _ in range(20)]
        for _ in range(READERS):
            assert readings.begun.acquire(timeout=60)
        for n in range(10):
            name = f"i{n}"
            store.commit(changes.Batch([changes.IncidentChanged(dataclasses.replace(incident(), id=name))], name))
            store.look_at_lease(DaemonRow("a", "http://a:9478", "1.0", n + 1, AT))
            store.require_lease()
        readings.over.set()
        assert all(one.result(120) for one in asked)
    assert len(store.incident_rows()) == 10
    store.close()


def test_a_reading_waits_for_its_turn_no_longer_than_a_transaction_may_take(url: str) -> None:
    store = DirectStore(url, busy_s=0.2, readers=1)
    readings = Readings(store)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(readings.read)
        assert readings.begun.acquire(timeout=60)
        with pytest.raises(Unavailable, match="other readings") as caught:
            store.get("x")
        assert "database_readers" in caught.value.fix
        readings.over.set()
        first.exception(120)  # on PostgreSQL its own deadline may have ended it
    store.close()
