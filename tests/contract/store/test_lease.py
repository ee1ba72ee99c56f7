"""The lease that one daemon holds, and a store that cannot be opened or stops answering."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from in_memory.direct_store import DirectStore
from made_records import AT, ended, later, plan, step

from sentinel.adapters.store import lease
from sentinel.adapters.store.changes import write as write_change
from sentinel.adapters.store.lease import DaemonRow, LeaseView
from sentinel.errors import Superseded, Unavailable
from sentinel.model import changes
from sentinel.model.records import (
    StepKind,
)

DRAIN = step(StepKind.DRAIN, node="n1")


PLAN = plan(DRAIN, step(StepKind.RELEASE, job=101, attempt=0))


def own(name: str, beats: int = 0) -> DaemonRow:
    return DaemonRow(name, f"http://{name}:9478", "1.0", beats, AT)


def test_one_holds_the_lease_and_its_token_grows(store: DirectStore) -> None:
    assert store.look_at_lease() == LeaseView("", 0, ())
    assert store.take_lease("a", store.look_at_lease(own("a"))) and store.token == 1
    seen = store.look_at_lease(own("a", 1))
    assert (seen.holder, seen.token, seen.active) == ("a", 1, own("a", 1))
    store.leave_lease("a")
    assert store.look_at_lease() == LeaseView("", 1, ())
    assert store.take_lease("b", store.look_at_lease()) and store.token == 2


def test_who_looked_before_another_took_it_does_not_get_it(store: DirectStore, url: str) -> None:
    late = DirectStore(url)
    seen = late.look_at_lease()
    assert store.take_lease("a", store.look_at_lease())
    assert not late.take_lease("b", seen) and late.token is None
    late.leave_lease("b")  # it has nothing to give back
    assert store.look_at_lease().holder == "a"
    late.close()


def test_of_many_that_ask_at_once_one_gets_it(store: DirectStore, url: str) -> None:
    ready, took, errors = threading.Barrier(6), list[str](), list[Exception]()
    stores = [DirectStore(url) for _ in range(6)]

    def ask(name: str, mine: DirectStore) -> None:
        try:
            seen = mine.look_at_lease(own(name))
            ready.wait(60)
            if mine.take_lease(name, seen):
                took.append(name)
        except (Unavailable, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(f"d{at}", mine)) for at, mine in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in stores:
        mine.close()
    assert errors == []
    assert took == [store.look_at_lease().holder]


def test_what_a_superseded_daemon_writes_is_not_there(store: DirectStore, url: str) -> None:
    """The daemon that had the lease before, which knows nothing of it: whatever it writes, in whichever way."""
    assert store.take_lease("a", store.look_at_lease(own("a")))
    store.put("paused", "a")
    other = DirectStore(url)
    assert other.take_lease("b", other.look_at_lease(own("b")))
    other.put("paused", "b")
    for write in (
        lambda: store.put("paused", "late"),
        lambda: store.append([ended()]),
        lambda: store.commit([changes.PlanMade(PLAN), changes.StepIntended(PLAN, DRAIN, AT)]),
        lambda: store.forget(later(1e6)),
        lambda: store.look_at_lease(own("a", 7)),
        store.require_lease,
    ):
        with pytest.raises(Superseded, match="b is the active daemon"):
            write()
    store.leave_lease("a")  # its own row goes; the lease is not its to give
    seen = store.look_at_lease()
    assert (other.get("paused"), store.evidence_since(AT), store.open_plans()) == ("b", [], [])
    assert (seen.holder, [row.holder for row in seen.daemons]) == ("b", ["b"])
    other.require_lease()
    other.close()


def test_a_transaction_under_way_is_over_before_another_takes_the_lease(store: DirectStore, url: str) -> None:
    """A holder that is about to commit, seen by the taker as silent: either its changes are there, or it is superseded."""
    assert store.take_lease("a", store.look_at_lease(own("a")))
    other = DirectStore(url)
    seen = other.look_at_lease(own("b"))
    took = threading.Thread(target=other.take_lease, args=("b", seen))
    with store._begin() as connection:
        write_change(connection, changes.SettingChanged("paused", "a"))
        lease.require(connection, "a", 1)
        took.start()
        took.join(0.5)
        assert took.is_alive()  # it waits for our commit
    took.join()
    assert other.token == 2 and other.get("paused") == "a"
    other.close()


def test_database_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="store does not answer"):
        DirectStore(f"sqlite:///{tmp_path / 'missing' / 'sentinel.db'}")


def test_store_that_stops_answering_is_unavailable(store: DirectStore) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE step")
    with pytest.raises(Unavailable) as caught:
        store.intend(PLAN, DRAIN, AT)
    assert caught.value.fix
