"""One daemon acts, whatever happens to clocks, the database and processes. Times are a made-up monotonic clock's."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hanging_threads import all_threads_hang

from sentinel.adapters.store.lease import DaemonRow, LeaseView
from sentinel.daemon.lease import Lease, died_here, this_place
from sentinel.errors import Refused, Superseded, Unavailable
from sentinel.log import Log

LEASE_S = 5.0


class Database:
    """The lease's two tables. ``away``: daemons that cannot reach it."""

    def __init__(self) -> None:
        self.holder, self.token = "", 0
        self.rows: dict[str, DaemonRow] = {}
        self.away: set[str] = set()

    def view(self) -> LeaseView:
        return LeaseView(self.holder, self.token, tuple(self.rows.values()))


class Connection:
    """``LeaseStore`` of one daemon."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self.name = database, name
        self.token: int | None = None

    def _reach(self) -> None:
        if self.name in self.database.away:
            raise Unavailable("the database does not answer")

    def look_at_lease(self, own: DaemonRow | None = None) -> LeaseView:
        self._reach()
        if own is not None:
            self.require_lease()
            self.database.rows[own.holder] = own
        return self.database.view()

    def take_lease(self, holder: str, seen: LeaseView) -> bool:
        self.require_lease()
        if (seen.holder, seen.token) != (self.database.holder, self.database.token):
            return False
        self.database.holder, self.database.token = holder, seen.token + 1
        self.token = self.database.token
        return True

    def require_lease(self) -> None:
        self._reach()
        if self.token is not None and self.token != self.database.token:
            raise Superseded(f"{self.database.holder} is the active daemon")

    def forget_daemons(self, holders: object) -> None:
        for holder in list(holders):  # type: ignore[call-overload]
            self.database.rows.pop(holder, None)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Host:
    """One daemon on a host with a monotonic clock of its own; ``turn`` is what it does five times in a lease."""

    def __init__(self, database: Database, name: str) -> None:
        self.clock = Clock()
        self.gone: list[Superseded] = []
        self.said = io.StringIO()
        own = DaemonRow(f"{name}:1", f"http://{name}:9478", "1", 0, datetime(2026, 1, 1, tzinfo=UTC))
        self.lease = Lease(
            Connection(database, name),
            own,
            LEASE_S,
            Log(self.said),
            seconds=self.clock,
            superseded=self.gone.append,
        )
        self.lease._turned()
        self.took = False

    @property
    def acts(self) -> bool:
        return self.took and not self.gone and self.lease.left_s() > 0

    def turn(self) -> None:
        self.clock.now_s += self.lease.every_s
        if self.took:
            self.lease._turned()
            self.lease.renew()
            return
        try:
            self.took = self.lease.try_to_take()
        except Unavailable:
            return


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def pair(database: Database) -> tuple[Host, Host]:
    """The first is active, the second stands by."""
    first, second = Host(database, "a"), Host(database, "b")
    first.turn()
    second.turn()
    assert first.acts and not second.took
    return first, second


def turns(times: int, *hosts: Host) -> None:
    for _ in range(times):
        for host in hosts:
            host.turn()
        assert sum(host.acts for host in hosts) <= 1


def test_another_one_acts_that_is_seen_to_renew_and_not_one_that_is_only_named(pair: tuple[Host, Host]) -> None:
    first, second = pair
    assert not second.lease.another_renews and second.lease.other_addresses == ("http://a:9478",)
    turns(2, second)
    assert not second.lease.another_renews
    turns(2, first, second)
    assert second.lease.another_renews and not first.lease.another_renews


def test_who_renews_stays(pair: tuple[Host, Host]) -> None:
    first, second = pair
    turns(100, first, second)
    assert first.acts and not second.took
    assert [(row["address"], row["state"]) for row in second.lease.shown()] == [
        ("http://a:9478", "active"), ("http://b:9478", "standby"),
    ]  # fmt: skip


def test_a_silent_one_is_replaced_after_its_lease_and_has_stopped_before(pair: tuple[Host, Host]) -> None:
    first, second = pair
    waited_s = 0.0
    for _ in range(20):
        waited_s += first.lease.every_s
        first.clock.now_s += first.lease.every_s  # its process lives, and renews nothing
        second.turn()
        assert not (first.acts and second.acts)
        if second.acts:
            break
    assert second.acts and waited_s == pytest.approx(LEASE_S, abs=first.lease.every_s)


def test_one_that_wakes_up_is_told_and_changes_nothing(pair: tuple[Host, Host], database: Database) -> None:
    first, second = pair
    turns(8, second)  # the first is frozen, its clock with it, as in a paused virtual machine
    assert second.acts and first.acts  # by its clock no time has passed
    with pytest.raises(Superseded, match="b:1 is the active daemon"):
        asyncio.run(first.lease.confirm())
    assert first.gone and not first.acts
    assert database.holder == "b:1"


async def test_whether_it_is_ours_is_found_out_while_threads_hang_elsewhere(pair: tuple[Host, Host]) -> None:
    """Its own thread goes on renewing: no other daemon takes over from one that cannot ask any more."""
    first, second = pair
    all_threads_hang()
    await asyncio.wait_for(first.lease.confirm(), 30.0)
    turns(8, second)
    with pytest.raises(Superseded):
        await asyncio.wait_for(first.lease.confirm(), 30.0)


def test_a_cut_database_stops_the_one_that_is_cut_off(pair: tuple[Host, Host], database: Database) -> None:
    first, second = pair
    database.away = {"a"}
    turns(12, first, second)
    assert second.acts and not first.acts and not first.gone  # it does not know yet
    with pytest.raises(Unavailable, match="another daemon may be active: the database does not answer"):
        asyncio.run(first.lease.confirm())
    database.away = set()
    turns(1, first, second)
    assert first.gone and second.acts


def test_a_database_that_is_away_for_all_makes_nobody_act_and_the_same_one_goes_on(
    pair: tuple[Host, Host], database: Database
) -> None:
    first, second = pair
    database.away = {"a", "b"}
    turns(30, first, second)
    assert not first.acts and not second.acts
    database.away = set()
    first.turn()
    assert first.acts and not first.gone
    turns(10, first, second)
    assert first.acts and not second.took


@pytest.mark.parametrize("unanswered", ["forget_daemons", "look_at_lease"])
def test_who_took_the_lease_and_then_got_no_answer_acts_all_the_same(
    pair: tuple[Host, Host], database: Database, monkeypatch: pytest.MonkeyPatch, unanswered: str
) -> None:
    """It counts on in its row, so that nobody else would take over from it."""
    _, second = pair
    store: Any = second.lease._store
    answer, failed = getattr(store, unanswered), list[bool]()

    def fails_once(*given: Any) -> Any:
        if store.token is not None and not failed:
            failed.append(True)
            raise Unavailable("server closed the connection unexpectedly")
        return answer(*given)

    monkeypatch.setattr(store, unanswered, fails_once)
    turns(12, second)
    assert failed and second.acts and database.holder == "b:1"


def test_who_stands_by_says_that_an_older_database_answers(pair: tuple[Host, Host], database: Database) -> None:
    """An old primary is back and the active daemon is gone: nobody else is left who could tell."""
    _, second = pair
    database.holder, database.token = "c:1", 7
    second.turn()
    assert "store-lost-content" not in second.said.getvalue()
    database.holder, database.token = "a:1", 6
    turns(3, second)
    assert second.said.getvalue().count("store-lost-content") == 1
    assert "the lease's token is 6, and was 7" in second.said.getvalue()


@pytest.mark.parametrize("step_s", [-86400.0, -3.0, 3.0, 86400.0])
@pytest.mark.parametrize("which", [0, 1])
def test_a_clock_that_is_set_changes_nothing(
    pair: tuple[Host, Host], which: int, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock is in no decision; rows carry times of it for people only."""
    own = pair[which].lease._own
    pair[which].lease._own = replace(own, since=datetime.fromtimestamp(own.since.timestamp() + step_s, UTC))
    turns(50, *pair)
    assert pair[0].acts and not pair[1].took


def test_the_event_loop_that_stands_still_gives_the_lease_up(pair: tuple[Host, Host]) -> None:
    first, second = pair
    for _ in range(25):
        first.clock.now_s += first.lease.every_s
        first.lease.renew()
        second.turn()
        assert not (first.acts and second.acts)
    assert second.acts and not first.acts


def test_a_holder_that_died_on_this_host_is_replaced_at_once(database: Database) -> None:
    database.holder, database.token = f"{this_place()}:4194305", 7  # above the kernel's largest process id
    fresh = Host(database, "b")
    fresh.turn()
    assert fresh.acts and database.token == 8
    assert not died_here("elsewhere:4194305") and not died_here("")


def test_a_holder_whose_exit_nobody_has_read_yet_is_replaced_at_once(database: Database) -> None:
    """``kill -9`` and a start at once: the old process is a zombie until its parent asks for its status."""
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    database.holder, database.token = f"{this_place()}:{killed.pid}", 7
    try:
        waits = Host(database, "b")
        waits.turn()
        assert not waits.acts
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has exited, and stays a zombie
        assert died_here(database.holder)
        waits.turn()
        assert waits.acts and database.token == 8
    finally:
        killed.kill()
        killed.wait()


def test_a_holder_in_another_container_of_this_host_name_has_its_time(database: Database) -> None:
    """Its process ids are others: what is gone here may be alive there."""
    host, _, boot_and_space = this_place().partition("/")
    boot, _, space = boot_and_space.partition("-")
    for place in (host, f"{host}/{boot}-{int(space) + 1}", f"{host}/00000000-{space}"):
        assert not died_here(f"{place}:4194305"), place


async def test_effects_wait_until_the_lease_is_renewed(pair: tuple[Host, Host]) -> None:
    first, _ = pair
    first.clock.now_s += LEASE_S
    waits = asyncio.ensure_future(first.lease.renewed())
    await asyncio.sleep(0)
    assert not waits.done()
    first.lease._turned()
    first.lease.renew()
    await waits


def test_a_store_that_refuses_is_told_and_the_next_renewal_is_tried(
    pair: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair

    def refuses(_own: object = None) -> LeaseView:
        raise Refused("the store refuses it")

    with monkeypatch.context() as broken:
        broken.setattr(first.lease._store, "look_at_lease", refuses)
        first.turn()
    assert "refuses" in first.lease._problem
    first.turn()
    assert first.acts and not first.lease._problem


def test_a_bug_in_one_renewal_does_not_end_all(pair: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = pair
    first.lease.every_s = 0.001
    tried, loop = [0], asyncio.new_event_loop()
    again = threading.Event()

    def fails(_own: object = None) -> LeaseView:
        tried[0] += 1
        if tried[0] == 1:
            raise RuntimeError("a bug")
        again.set()
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(first.lease._store, "look_at_lease", fails)
    first.lease.keep(loop)
    assert again.wait(30.0)
    first.lease.stop()
    loop.close()


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.25, 0.75), (2.0, 0.0)])
def test_a_renewal_that_took_long_is_followed_by_the_next_one_at_once(
    pair: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, took_s: float, pause_s: float
) -> None:
    first, _ = pair
    pauses, loop = list[float](), asyncio.new_event_loop()

    class Stopped:
        def wait(self, for_s: float) -> bool:
            pauses.append(for_s)
            return len(pauses) == 3

    def unanswered(_own: object = None) -> LeaseView:
        first.clock.now_s += took_s
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(first.lease, "_stopped", Stopped())
    monkeypatch.setattr(first.lease._store, "look_at_lease", unanswered)
    first.lease._renew_until_stopped(loop)
    loop.close()
    assert pauses == [1.0, pause_s, pause_s]


def test_renewing_ends_when_it_is_told_to(pair: tuple[Host, Host]) -> None:
    first, _ = pair
    loop = asyncio.new_event_loop()
    before: Callable[[], int] = threading.active_count
    first.lease.keep(loop)
    first.lease.stop()
    loop.close()
    assert first.acts and before() >= 1
