"""Two daemon processes on one PostgreSQL: one acts, and the other takes over whatever happens to the first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from in_memory.direct_store import DirectStore
from made_records import AT
from servers.cut_network import CutNetwork
from servers.ports import free_ports
from stories.witnesses import until

from sentinel.adapters.client import DaemonClient
from sentinel.adapters.store.lease import DaemonRow
from sentinel.errors import StandingBy, Timeout, Unavailable

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("url", ["postgres"], indirect=True)]
ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 2.0


class DaemonProcess:
    """``sentinel daemon`` without Slurm: there is none on its path."""

    def __init__(self, folder: Path, name: str, database: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        (self.folder / "sentinel.toml").write_text(
            f'[slurm]\nbin = "{self.folder}"\n[daemon]\nlisten = "127.0.0.1:{self.port}"\nurl = "{self.url}"\n'
            f'state = "{self.folder}"\ndatabase = "{database}"\nlease_s = {LEASE_S}\ndatabase_s = 3.0\n'
            f'munge_socket = "{self.folder}/munge"\n'
        )
        with (self.folder / "log").open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sentinel", "daemon", "--config", str(self.folder / "sentinel.toml")],
                stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError) as error:
            return f"no answer: {error}"

    def wait(self, word: str) -> None:
        """Until ``/healthz`` says it."""
        until(lambda: self.get("/healthz").strip() == word, lambda: f"{self.url} to say {word}: {self.log[-2000:]}")

    def wait_log(self, word: str, times: int = 1) -> None:
        until(lambda: self.log.count(word) >= times, lambda: f"{word}: {self.log[-2000:]}")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., DaemonProcess]


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    daemons: list[DaemonProcess] = []

    def make(name: str, through: str = url) -> DaemonProcess:
        daemons.append(DaemonProcess(tmp_path, name, through))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.end()
    for daemon in daemons:
        assert " ERROR " not in daemon.log and "Traceback" not in daemon.log, daemon.log


@pytest.fixture
def pair(start: Start) -> tuple[DaemonProcess, DaemonProcess]:
    """The first is active, the second stands by."""
    first = start("a")
    first.wait("ok")
    second = start("b")
    second.wait("standby")
    return first, second


class Unsigned:
    """Nobody looks at credentials where a daemon stands by."""

    def encode(self, payload: bytes) -> str:
        return "x"

    def encrypt(self, payload: bytes, uid: int) -> str:
        return "x"

    def decode(self, credential: str) -> object:
        raise AssertionError("unsigned")


def test_the_standby_says_who_is_active(pair: tuple[DaemonProcess, DaemonProcess]) -> None:
    first, second = pair
    client = DaemonClient(second.url, Unsigned())  # type: ignore[arg-type]
    with pytest.raises(StandingBy, match=f"standby: the active daemon is {first.url}"):
        client.post("/v1/view", {"view": "status"})
    client.close()
    assert "sentinel_active 0.0" in second.get("/metrics") and "sentinel_active 1.0" in first.get("/metrics")
    until(lambda: "sentinel_standbys 1.0" in first.get("/metrics"), "the active one to know of the other")


def test_a_stopped_one_is_replaced_and_stands_by_when_it_goes_on(pair: tuple[DaemonProcess, DaemonProcess]) -> None:
    first, second = pair
    first.process.send_signal(signal.SIGSTOP)
    second.wait("ok")
    first.process.send_signal(signal.SIGCONT)
    first.wait_log(f"standing-by active={second.url}")
    first.wait("standby")
    assert " superseded " in first.log and first.process.poll() is None
    second.process.kill()
    second.process.wait()
    first.wait("ok")


def test_a_stopped_transaction_holds_nobody_up(pair: tuple[DaemonProcess, DaemonProcess], url: str) -> None:
    """As if the active daemon were stopped within a transaction that has looked at the lease: the server ends it."""
    first, second = pair
    frozen = DirectStore(url, frozen_s=LEASE_S)
    frozen.token = frozen.look_at_lease().token
    with pytest.raises(Unavailable), frozen._begin() as connection:
        connection.exec_driver_sql("SELECT token FROM lease WHERE name = 'active' FOR SHARE")
        first.process.kill()
        first.process.wait()
        second.wait("ok")
    frozen.close()


def test_the_standby_takes_over_after_its_connections_were_lost(
    pair: tuple[DaemonProcess, DaemonProcess], url: str
) -> None:
    """PostgreSQL was restarted while both ran: what lies idle in the standby is closed at the other end."""
    first, second = pair
    until(lambda: "sentinel_standbys 1.0" in first.get("/metrics"), "the active one to know of the other")
    store = DirectStore(url)
    with store._begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    store.close()
    first.wait("ok")
    first.process.kill()
    first.process.wait()
    second.wait("ok")
    assert second.log.count("active daemon=") == 1


def test_one_that_ends_gives_the_lease_back(pair: tuple[DaemonProcess, DaemonProcess]) -> None:
    first, second = pair
    first.process.send_signal(signal.SIGTERM)
    first.process.wait(60)
    second.wait("ok")
    assert "sentinel_standbys 0.0" in second.get("/metrics")


def test_a_cut_network_to_the_database(start: Start, url: str) -> None:
    parts = sa.make_url(url)
    with CutNetwork(Path(str(parts.query["host"])) / ".s.PGSQL.5432") as net:
        through = parts.set(host="127.0.0.1", port=net.port, query={"sslmode": "disable", "gssencmode": "disable"})
        first = start("a", through.render_as_string(hide_password=False))
        first.wait("ok")
        second = start("b")
        second.wait("standby")
        net.cut()
        first.wait("standby")  # it does not act any more, and says so, though it knows of nobody else
        second.wait("ok")
        first.wait_log("lease-not-renewed")  # as soon as the deadline of its renewal is over
        assert " superseded " not in first.log
        net.mend()
        first.wait_log(" superseded ")
        first.wait_log(f"standing-by active={second.url}")
        second.wait("ok")


def test_a_transaction_that_is_not_answered_ends(url: str) -> None:
    parts = sa.make_url(url)
    with CutNetwork(Path(str(parts.query["host"])) / ".s.PGSQL.5432") as net:
        through = parts.set(host="127.0.0.1", port=net.port, query={"sslmode": "disable", "gssencmode": "disable"})
        store = DirectStore(through.render_as_string(hide_password=False), busy_s=1.0)
        store.put("paused", True)
        net.cut()
        with pytest.raises(Timeout, match="did not answer within 1 s"):
            store.put("paused", False)
        net.mend()
        until(lambda: _answers(store), "the database to answer again")
        store.close()


def test_a_connection_that_is_lost_costs_no_lease(url: str) -> None:
    """A renewal ends while another one still comes in time, whatever the deadline of others; so does a look of one that
    stands by."""
    parts = sa.make_url(url)
    with CutNetwork(Path(str(parts.query["host"])) / ".s.PGSQL.5432") as net:
        through = parts.set(host="127.0.0.1", port=net.port, query={"sslmode": "disable", "gssencmode": "disable"})
        store = DirectStore(through.render_as_string(hide_password=False), busy_s=600.0, renewal_s=1.0)
        own = DaemonRow("a:1", "http://a", "1", 0, AT)
        for look in (lambda: store.look_at_lease(own), store.look_at_lease, store.require_lease):
            store.look_at_lease(own)
            if store.token is None:
                assert store.take_lease("a:1", store.look_at_lease())
            net.cut()
            with pytest.raises(Timeout, match="did not answer within 1 s"):
                look()
            net.mend()
            until(lambda: _answers(store, store.require_lease), "the database to answer again")
        store.close()


def _answers(store: DirectStore, asked: Callable[[], object] | None = None) -> bool:
    try:
        return asked() is None if asked is not None else store.get("paused") is True
    except Unavailable:
        return False
