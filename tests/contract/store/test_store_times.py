"""Times come back in UTC, whatever time zone the database's server was installed with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import incident, job, plan, verdict

from sentinel.model import changes

NIGHT = datetime(2026, 10, 25, 0, 50, tzinfo=UTC)  # 02:50 in Berlin, twenty minutes before the second 02:10


@pytest.fixture
def store(url: str) -> Iterator[DirectStore]:
    """Over a database whose times have summer time, as where initdb took the host's zone."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {engine.url.database} SET timezone = 'Europe/Berlin'")
    engine.dispose()
    made = DirectStore(url)
    yield made
    made.close()


def test_what_lasted_over_the_night_in_which_clocks_are_set_back_lasted_as_long_as_it_did(store: DirectStore) -> None:
    began, ended = NIGHT - timedelta(hours=3), NIGHT + timedelta(hours=3)
    ran = dataclasses.replace(job(state="completed"), started_at=began, ended_at=ended)
    store.commit([changes.AttemptSeen(ran, None, None, None)])
    (row,) = store.attempts(job=ran.id)
    assert row["ended_at"] - row["started_at"] == timedelta(hours=6)
    assert (row["started_at"].tzinfo, row["ended_at"].tzinfo) == (UTC, UTC)


def test_a_start_goes_on_with_the_newest_plan_of_the_hour_that_comes_twice(store: DirectStore) -> None:
    later = NIGHT + timedelta(minutes=20)
    found = dataclasses.replace(incident(), opened_at=NIGHT, updated_at=NIGHT)
    made = [dataclasses.replace(plan(), id=name, at=at) for name, at in (("older", NIGHT), ("newer", later))]
    judged = changes.VerdictReached(found.id, verdict(), NIGHT)
    store.commit([changes.IncidentChanged(found), judged, *map(changes.PlanMade, made)])
    stored = store.load(month=NIGHT - timedelta(days=30), lately=NIGHT - timedelta(days=1), evidence_ids=10)
    assert stored.plans[found.id].id == "newer"
    assert store.incident(found.id) == found


def test_a_server_says_its_time_and_a_file_has_none(store: DirectStore) -> None:
    before = datetime.now(UTC)
    told = store.server_time()
    if not store.shared:
        assert told is None
        return
    assert told is not None and before <= told <= datetime.now(UTC) and told.tzinfo is UTC
