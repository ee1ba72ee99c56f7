"""A commit whose answer is lost: whether the database did it is not known, and what is given again is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT, incident, verdict

from sentinel.adapters.store import tables
from sentinel.adapters.store.lease import DaemonRow
from sentinel.errors import ContentLost, Superseded, Unavailable
from sentinel.model import changes
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, Scope

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("url", ["postgres"], indirect=True)]
HELD = AuditEntry(AT, "root", "h", "hold", Stage.BEGUN, "job 101")
SAID = Correction(AT, "ada", Cause.GPU_FALLEN_OFF_BUS, Scope.NODE)
Cut = Callable[[bool], None]


def own(name: str, beats: int = 0) -> DaemonRow:
    return DaemonRow(name, f"http://{name}:9478", "1.0", beats, AT)


def batch(name: str = "b1") -> changes.Batch:
    found = incident()
    return changes.Batch(
        [
            changes.IncidentChanged(found),
            changes.VerdictReached(found.id, verdict(), AT),
            changes.VerdictCorrected(found.id, SAID),
            changes.Audited(HELD),
        ],
        name,
    )


@pytest.fixture
def cut(store: DirectStore, monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Cuts the connection at the next COMMIT: after the database has done it, or before it is told."""
    import psycopg

    real = store.engine.dialect.do_commit

    def arrange(done: bool) -> None:
        def lost(connection: Any) -> None:
            monkeypatch.setattr(store.engine.dialect, "do_commit", real)
            if done:
                real(connection)
            connection.dbapi_connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(store.engine.dialect, "do_commit", lost)

    assert store.take_lease("a", store.look_at_lease(own("a")))
    return arrange


def counted(store: DirectStore) -> tuple[int, int, int]:
    """Verdicts, corrections and entries of the audit."""
    with store.engine.begin() as connection:
        verdicts = connection.execute(sa.select(sa.func.count()).select_from(tables.verdict)).scalar_one()
        told = connection.execute(sa.select(tables.incident.c.corrections)).scalar_one_or_none()
    return verdicts, len(told or ()), store.audit_length()


@pytest.mark.parametrize("done", [True, False])
def test_what_is_given_again_is_written_once(store: DirectStore, cut: Cut, done: bool) -> None:
    given = batch()
    cut(done)
    with pytest.raises(Unavailable):
        store.commit(given)
    assert counted(store) == ((1, 1, 1) if done else (0, 0, 0))
    store.look_at_lease(own("a", 1))  # renewed meanwhile: another transaction of this daemon
    store.put("paused", True)
    store.commit(given)
    assert counted(store) == (1, 1, 1)
    store.commit(batch("b2"))  # another one with the same content
    assert counted(store) == (2, 2, 2)
    store.require_lease()


def test_one_that_is_not_answered_twice_is_written_once(store: DirectStore, cut: Cut) -> None:
    given = batch()
    for done in (False, True):
        cut(done)
        with pytest.raises(Unavailable):
            store.commit(given)
    store.commit(given)
    assert counted(store) == (1, 1, 1)


def test_that_it_was_written_counts_as_confirmed(store: DirectStore, cut: Cut) -> None:
    """What follows from it is done: a database without it has lost what this daemon wrote."""
    given = batch()
    with store.engine.begin() as connection:
        before = dict(connection.execute(sa.select(tables.daemon)).one()._mapping)
    cut(True)
    with pytest.raises(Unavailable):
        store.commit(given)
    store.commit(given)
    with store.engine.begin() as connection:
        connection.execute(sa.update(tables.daemon).values(**before))
    with pytest.raises(ContentLost):
        store.require_lease()


def test_who_was_superseded_meanwhile_is_told(store: DirectStore, cut: Cut, url: str) -> None:
    given = batch()
    cut(True)
    with pytest.raises(Unavailable):
        store.commit(given)
    other = DirectStore(url)
    assert other.take_lease("b", other.look_at_lease(own("b")))
    with pytest.raises(Superseded):
        store.commit(given)
    assert counted(other) == (1, 1, 1)
    other.close()
