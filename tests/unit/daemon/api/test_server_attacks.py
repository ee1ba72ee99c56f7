"""What anybody who reaches the daemon's port can try: memory, descriptors, time, and requests of others sent again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from in_memory.server import NODE, OPERATOR, RESEARCHER, FakeCredentials, Served, serving
from in_memory.world import World
from servers.certificates import authority

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.daemon.acceptor import _MOST_PER_TURN, Acceptor
from sentinel.daemon.api.callers import DenialLog, UsedCredentials
from sentinel.daemon.api.connections import Connections, open_files_limit
from sentinel.daemon.api.memory_budget import MemoryBudget
from sentinel.errors import Denied, Unavailable
from sentinel.log import Log
from sentinel.ports import Signed

PATIENCE_S = 20.0  # an answer that is late by this much does not come
STATUS = {"view": "status"}
SIGNERS = {uid: FakeCredentials(uid) for uid in (0, RESEARCHER)}


@pytest.fixture
async def served(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr("sentinel.daemon.api.transport._DEFER_ACCEPT_S", 1)
    # Looks often for what is overdue. Nothing is on a busy machine, unless a test is about it: see ``hurries``.
    async with serving(world(nodes=12), header_s=0.2) as made:
        hurries(made, header_s=PATIENCE_S, body_s=PATIENCE_S, idle_s=PATIENCE_S)
        yield made


def hurries(served: Served, *, header_s: float = 0.2, body_s: float = 0.3, idle_s: float = 1.0) -> None:
    """Short deadlines from now on."""
    served.server._settings = dataclasses.replace(served.server._settings, body_s=body_s)
    served.server.connections._header_s, served.server.connections._idle_s = header_s, idle_s


@contextlib.asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = served.server.address
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(path: str, length: int | str, *more: str) -> bytes:
    size = f"Content-Length: {length}" if isinstance(length, int) else length
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: d", size, *more, "", "")).encode()


def signed(uid: int, path: str, body: bytes) -> str:
    return f"{protocol.HEADER}: {SIGNERS[uid].encode(protocol.digest_of(path, body))}"


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the daemon closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return int((await reader.readline()).split()[1])


# --- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credential", ["", "X-Sentinel-Munge: rubbish", "X-Sentinel-Munge: " + "x" * 5000])
async def test_the_body_of_nobody_is_not_waited_for(served: Served, credential: str) -> None:
    async with connected(served) as (reader, writer):
        writer.write(head(protocol.EVIDENCE, 60_000, *filter(None, [credential])))
        assert await status_of(reader) == 403


async def test_a_body_with_a_content_encoding_is_not_read(served: Served) -> None:
    content = json.dumps(STATUS).encode()
    for encoding, raw in (("gzip", gzip.compress(content)), ("deflate", content), ("br", content)):
        async with connected(served) as (reader, writer):
            sent = signed(RESEARCHER, protocol.VIEW, content), f"Content-Encoding: {encoding}"
            writer.write(head(protocol.VIEW, len(raw), *sent) + raw)
            assert await status_of(reader) == 415


@pytest.mark.parametrize("path", [protocol.VIEW, protocol.CHANGE, protocol.ORDERS])
@pytest.mark.parametrize("framing", ["Content-Length: 40000", "Transfer-Encoding: chunked"])
async def test_each_kind_of_request_has_its_size(served: Served, path: str, framing: str) -> None:
    async with connected(served) as (reader, writer):
        writer.write(head(path, framing, signed(0, path, b"")))
        body = b"x" * 40_000
        writer.write(b"9c40\r\n" + body + b"\r\n" if "chunked" in framing else body)
        assert await status_of(reader) == 413


async def test_a_person_has_few_requests_under_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, going = 0, asyncio.Event()

    async def show(*_: Any) -> dict[str, Any]:
        nonlocal shown
        shown += 1
        await going.wait()
        return {}

    monkeypatch.setitem(served.server._views._views, "history", show)
    body = {"view": "history"}
    asked = [asyncio.create_task(served.post(protocol.VIEW, body, uid=RESEARCHER)) for _ in range(20)]
    async with asyncio.timeout(PATIENCE_S):
        while sum(task.done() for task in asked) < 16:
            await asyncio.sleep(0)
    assert {task.result().status for task in asked if task.done()} == {503} and shown == 1
    going.set()
    assert sorted([answer.status for answer in await asyncio.gather(*asked)]) == [200] * 4 + [503] * 16


async def test_a_client_that_does_not_read_its_answer_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def show(*_: Any) -> dict[str, Any]:
        hurries(served)
        shown.set()
        return {"text": "x" * (30 << 20)}

    shown = asyncio.Event()
    monkeypatch.setattr(served.server._views, "show", show)
    content = json.dumps(STATUS).encode()
    async with connected(served) as (_, writer):
        writer.write(head(protocol.VIEW, len(content), signed(RESEARCHER, protocol.VIEW, content)) + content)
        async with asyncio.timeout(PATIENCE_S):
            await shown.wait()
            while served.server.connections:
                await asyncio.sleep(0)
        assert served.server._answers.taken_bytes == 0


async def test_memory_is_waited_for_in_order_and_given_back() -> None:
    budget, order = MemoryBudget(10), list[str]()
    release = asyncio.Event()

    async def take(name: str, count: int) -> None:
        async with budget.taking(count):
            order.append(name)
            await release.wait()

    tasks = [asyncio.create_task(take(*one)) for one in (("a", 6), ("big", 99), ("c", 1))]
    await asyncio.sleep(0)
    assert order == ["a"] and budget.taken_bytes == 6  # the small one does not overtake the big one
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    await asyncio.sleep(0)
    assert order == ["a", "c"]
    release.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert budget.taken_bytes == 0


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The lengths of what the daemon takes from the kernel."""
    taken: list[int] = []
    inner = web.RequestHandler.data_received

    def data_received(self: web.RequestHandler, data: bytes) -> None:
        taken.append(len(data))
        inner(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(web.RequestHandler, "data_received", data_received)
        yield taken


MANY_HEADERS = "".join(f"X-{number}: {'y' * 4000}\r\n" for number in range(120)).encode()
STRANGERS = {
    "long header": b"GET /healthz HTTP/1.1\r\nHost: d\r\n" + MANY_HEADERS,
    "long line": b"GET /" + b"a" * 500_000,
    "body": head(protocol.EVIDENCE, 4_000_000, f"{protocol.HEADER}: 1:1:eA==") + b"x" * 500_000,
    "chunks": head(protocol.VIEW, "Transfer-Encoding: chunked", f"{protocol.HEADER}: 1:1:eA==") + b"1\r\nx\r\n" * 80_000,
    "pipelined": (head(protocol.VIEW, 0, f"{protocol.HEADER}: 1:1:eA==", "X: " + "y" * 4000)) * 120,
    "upgrade": head(protocol.VIEW, 0, f"{protocol.HEADER}: 1:1:eA==", "Connection: Upgrade", "Upgrade: websocket")
    + b"x" * 500_000,
    "connect": b"CONNECT d:1 HTTP/1.1\r\nHost: d\r\n\r\n" + b"x" * 500_000,
}  # fmt: skip


@pytest.mark.parametrize("shape", STRANGERS)
async def test_little_is_read_of_who_is_not_known(served: Served, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While munged is slow, or the answer is not read, what a stranger sends lies in the kernel, which bounds it."""
    asked, going = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(_: str) -> Signed:
        loop.call_soon_threadsafe(asked.set)
        going.wait(PATIENCE_S)
        raise Denied("no credential")

    monkeypatch.setattr(served.credentials, "decode", slow)
    served.server.connections._header_s = PATIENCE_S
    with counted(monkeypatch) as taken, contextlib.suppress(ConnectionError):
        try:
            async with connected(served) as (reader, writer):
                writer.write(STRANGERS[shape])
                if f"{protocol.HEADER}:" in STRANGERS[shape][:200].decode():
                    await asked.wait()
                else:  # refused at once
                    assert await status_of(reader) in (400, 404)
                for _ in range(100):  # turns in which more could be read
                    await asyncio.sleep(0.001)
        finally:
            going.set()
    assert 0 < sum(taken) <= 288 << 10, "the longest header that is read, and what came with its end"


async def test_requests_of_whom_is_not_known_are_bounded(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """munged answers nobody: the strangers' requests make way, and who signs with a session's key is answered."""
    async with serving(world(), waiting_per_address=8, header_s=PATIENCE_S) as served:
        node = DaemonClient(served.url, served.signers[NODE], deadline_s=PATIENCE_S, sessions=True)
        in_thread = asyncio.get_running_loop().run_in_executor
        await in_thread(None, node.post, protocol.HEARTBEAT, {"node": "n1"})
        going, decode = threading.Event(), served.credentials.decode
        monkeypatch.setattr(served.credentials, "decode", lambda said: going.wait(PATIENCE_S) and decode(said))
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(40):
                _, writer = await stack.enter_async_context(connected(served))
                writer.write(head(protocol.VIEW, 9, f"{protocol.HEADER}: 1:1:eA=="))
            async with asyncio.timeout(PATIENCE_S):
                while served.server.connections.closed < 32:
                    await asyncio.sleep(0.001)
            assert "at" in await in_thread(None, node.post, protocol.HEARTBEAT, {"node": "n1"})
            assert len(served.server.connections) <= 8 + 1
            going.set()
        node.close()


# --- time and descriptors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"POST /v1/view HT", b"POST /v1/view HTTP/1.1\r\nHost: d\r\n"])
async def test_a_connection_without_a_whole_header_is_closed(served: Served, said: bytes) -> None:
    hurries(served)
    async with connected(served) as (reader, writer):
        writer.write(said)
        assert await all_of(reader) == b""
    assert served.server.connections.overdue == 1


async def test_a_body_that_does_not_end_is_given_up(served: Served) -> None:
    hurries(served, header_s=PATIENCE_S)
    async with connected(served) as (reader, writer):
        writer.write(head(protocol.VIEW, 1000, signed(RESEARCHER, protocol.VIEW, b"")) + b"{")
        assert b" 408 " in await all_of(reader)


async def test_an_idle_connection_is_closed(served: Served) -> None:
    hurries(served, header_s=PATIENCE_S)
    async with connected(served) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: d\r\n\r\n")
        assert b"ok" in await all_of(reader)


async def test_what_is_no_http_is_neither_a_bug_nor_a_line(served: Served) -> None:
    hurries(served)
    for said in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9\r\n\r\n",
        b"\r\n" * 9000,
        b"x" * 90_000,
    ):
        async with connected(served) as (reader, writer):
            writer.write(said)
            await all_of(reader)
    hurries(served, header_s=PATIENCE_S, body_s=PATIENCE_S)
    async with connected(served) as (reader, writer):
        writer.write(head(protocol.VIEW, "Transfer-Encoding: chunked", signed(0, protocol.VIEW, b"")) + b"zz\r\n")
        assert b" 400 " in await all_of(reader)
    assert served.daemon.bugs() == 0 and served.daemon.said == ""


FLOOD = """
import socket, sys
kept = []
for _ in range(10_000):
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", int(sys.argv[1])))
    kept.append(made)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("wire", ["clear", "tls"])
async def test_ten_thousand_silent_connections_keep_nobody_out(
    world: Callable[..., World], tmp_path: Path, wire: str
) -> None:
    """With the 1,024 files that a shell allows."""
    secure: dict[str, Any] = {"wire": wire}
    if wire == "tls":
        secure["certificate_file"], secure["key_file"] = authority(tmp_path).sign("daemon")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 1024 + len(os.listdir("/proc/self/fd"))
    assert hard >= 10_100, "the test needs so many files for its own connections"
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        async with serving(world(), header_s=60.0, **secure) as served:
            ca_file = str(tmp_path / "ca.pem") if wire == "tls" else ""
            port = str(served.server.address[1])
            limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10_100, 10_100))"
            flood = await asyncio.create_subprocess_exec(
                sys.executable, "-c", limit + FLOOD, port, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert flood.stdout is not None
            async with asyncio.timeout(60.0):
                assert await flood.stdout.readline() == b"open\n"
                began_s = time.monotonic()
                await asyncio.get_running_loop().run_in_executor(None, heard, served, ca_file)
            print(f"{wire}: answered after {time.monotonic() - began_s:.3f} s")  # shown with -s; measured, not asserted
            assert len(served.server.connections) <= 256 + 1
            seen = served.daemon.state.watch.visibility
            assert seen is None or seen.own_fault_s is None
            flood.kill()
            await flood.wait()
            async with asyncio.timeout(PATIENCE_S):
                while len(served.server.connections) > 1 or not await gone(served, ca_file):
                    await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_handshakes_of_one_address_make_no_other_wait(
    world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses take turns, a few handshakes between two turns of the event loop; most of a flood is closed unanswered."""
    begun: list[str] = []
    inner = Acceptor._handed_over

    async def handed_over(self: Acceptor, connection: socket.socket) -> None:
        begun.append(connection.getpeername()[0])
        await inner(self, connection)

    monkeypatch.setattr(Acceptor, "_handed_over", handed_over)
    certificate, key = authority(tmp_path).sign("daemon")
    tls = {"wire": "tls", "certificate_file": certificate, "key_file": key}
    with contextlib.ExitStack() as stack:
        async with serving(world(), waiting_per_address=32, header_s=PATIENCE_S, **tls) as served:
            for peer in ("127.0.0.9",) * 100 + ("127.0.0.8",):
                made = stack.enter_context(socket.socket())
                made.bind((peer, 0))
                made.connect(served.server.address)
                made.sendall(b"\x16")
            async with asyncio.timeout(PATIENCE_S):
                while "127.0.0.8" not in begun:
                    await asyncio.sleep(0)
            assert begun.index("127.0.0.8") < 2 * _MOST_PER_TURN and len(served.server.connections) <= 33


def heard(served: Served, ca_file: str) -> None:
    """A heartbeat, tried again as agents do when a connection is closed on them."""
    url = served.url.replace("http:", "https:") if ca_file else served.url
    client = DaemonClient(url, served.signers[NODE], ca_file=ca_file)
    for _ in range(50):
        try:
            client.post(protocol.HEARTBEAT, {"node": "n1"})
        except Unavailable:
            continue
        client.close()
        return
    raise AssertionError("no heartbeat was answered")


async def gone(served: Served, ca_file: str) -> bool:
    """Whether the connections that the flood left in the kernel's queue were taken, and found closed."""
    await asyncio.get_running_loop().run_in_executor(None, heard, served, ca_file)
    return len(served.server.connections) <= 1


class Table:
    """``Connections`` in virtual time, and what it closed."""

    def __init__(self, **limits: Any) -> None:
        self.now_s = 0.0
        self.closed: list[str] = []
        self.full = 0
        given = {"most": 100, "most_waiting": 50, "most_waiting_per_peer": 50, "header_s": 5.0, "idle_s": 60.0}
        self.made = Connections(**given | limits, seconds=lambda: self.now_s, full=self._full)

    def _full(self) -> None:
        self.full += 1

    def open(self, *keys: str, peer: str = "a", trusted: bool = False) -> None:
        for key in keys:
            self.made.opened(key, peer, lambda key=key: self.closed.append(key))  # type: ignore[misc]
            if trusted:
                self.made.began(key)
                self.made.proved(key)
                self.made.trust(key)
                self.made.ended(key)


def test_the_longest_waiting_connection_of_an_address_goes_first() -> None:
    table = Table(most_waiting_per_peer=2)
    table.open("a1", "a2", "a3", peer="a")
    table.open("b1", "b2", peer="b")
    assert table.closed == ["a1"]
    table.open("a4", peer="a")
    assert table.closed == ["a1", "a2"] and len(table.made) == 4


def test_connections_of_all_addresses_together_are_bounded() -> None:
    table = Table(most_waiting=3)
    for number in range(9):
        table.open(f"c{number}", peer=f"p{number}")
    assert table.closed == [f"c{number}" for number in range(6)] and len(table.made) == 3


def test_a_flood_closes_its_own_connections_first() -> None:
    table = Table(most_waiting=5)
    table.open("one", peer="quiet")
    table.open(*(f"f{number}" for number in range(100)), peer="flood")
    assert "one" not in table.closed and len(table.made) == 5


def test_a_trusted_connection_and_a_request_under_way_stay() -> None:
    table = Table(most_waiting_per_peer=1, most=3)
    table.open("node", trusted=True)
    table.open("asks")
    table.made.began("asks")
    table.made.proved("asks")
    table.open("x1", "x2", "x3")
    assert table.closed == ["x1", "x2"]
    table.made.ended("asks")  # it waits again, behind x3
    assert table.closed == ["x1", "x2", "x3"]
    assert table.full == 0 and table.made.refused == 0


def test_a_request_of_whom_is_not_known_makes_way_like_a_silent_connection() -> None:
    """While munged is asked, or an answer that needs no proof is not read."""
    table = Table(most_waiting_per_peer=2)
    table.open("asks", "silent")
    table.made.began("asks")
    table.open("x1", "x2")
    assert table.closed == ["silent", "asks"]
    table.made.ended("asks")  # its handler was cancelled
    assert len(table.made) == 2 and table.full == 0


def test_a_connection_that_finds_only_trusted_ones_is_refused_and_that_is_said() -> None:
    table = Table(most=2)
    table.open("n1", "n2", trusted=True)
    table.open("late")
    assert table.closed == ["late"] and (table.full, table.made.refused, len(table.made)) == (1, 1, 2)


def test_deadlines_of_connections() -> None:
    table = Table()
    table.open("silent", "asks")
    table.open("idle", "node", trusted=True)
    table.made.began("asks")
    table.now_s = 6.0
    table.made.close_overdue()
    assert table.closed == ["silent"]
    table.now_s = 61.0
    table.made.close_overdue()
    assert table.closed == ["silent", "idle", "node"] and len(table.made) == 1
    table.made.lost("asks")
    assert len(table.made) == 0 and table.made._waiting_of == {}


def test_connections_leave_files_for_other_ends() -> None:
    assert [open_files_limit(16384, files, 512) for files in (1024, 20_000, 100)] == [512, 16384, 1]


# --- requests of others ------------------------------------------------------------------------------------------------


async def test_a_request_sent_again_after_munged_was_restarted_is_denied(served: Served) -> None:
    change = {"change": "drain", "arguments": {"node": "n1", "reason": "fan"}}
    first = await served.post(protocol.CHANGE, change, uid=OPERATOR)
    assert first.status == 200
    calls = list(served.world.slurm.calls)
    served.credentials.used.clear()  # as munged does when it is restarted
    again = await served.post(protocol.CHANGE, change, credential=first.credential)
    assert again.status == 403 and "before" in again.body["error"]
    assert served.world.slurm.calls == calls


async def test_a_change_older_than_the_daemon_is_denied(served: Served) -> None:
    served.credentials.made_s = time.time() - 60.0
    change = {"change": "drain", "arguments": {"node": "n1"}}
    answer = await served.post(protocol.CHANGE, change, uid=OPERATOR)
    assert answer.status == 403 and "older" in answer.body["error"] and served.world.slurm.calls == []
    assert (await served.post(protocol.HEARTBEAT, {"node": "n1"})).status == 200  # a node's clock may be behind


def test_credentials_are_remembered_as_long_as_they_live() -> None:
    now_s = 1000.0
    used = UsedCredentials(lambda: now_s)
    at = [Signed(b"", 0, 0, "", made_s, 300.0) for made_s in (1000.0, 700.0, 1290.0, None)]  # clocks differ
    for number, one in enumerate(at):
        used.use(f"c{number}", one)
    for passed_s, still in ((0.0, (0, 1, 2, 3)), (299.0, (0, 2, 3)), (589.0, (2,))):
        now_s = 1000.0 + passed_s
        for number in still:
            with pytest.raises(Denied):
                used.use(f"c{number}", at[number])
    now_s = 1000.0 + 10_000.0
    used.use("new", Signed(b"", 0, 0, "", now_s, 300.0))
    assert sum(map(len, used._used.values())) == used._count == 1


def test_credentials_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._REMEMBERED", 2)
    used = UsedCredentials(lambda: 0.0)
    used.use("a", Signed(b"", 0, 0))
    used.use("b", Signed(b"", 0, 0))
    with pytest.raises(Unavailable):
        used.use("c", Signed(b"", 0, 0))


async def test_one_users_credentials_keep_nobody_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._OF_ONE_USER", 20)
    monkeypatch.setattr("sentinel.daemon.api.callers._REMEMBERED", 40)
    asked = [(await served.post(protocol.VIEW, {"view": "nothing"}, uid=RESEARCHER)).status for _ in range(50)]
    assert set(asked[:20]) == {422} and set(asked[20:]) == {503}
    for path, body, uid in ((protocol.VIEW, STATUS, OPERATOR), (protocol.HEARTBEAT, {"node": "n1"}, NODE)):
        assert (await served.post(path, body, uid=uid)).status == 200


def test_credentials_of_all_users_leave_as_many_to_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._OF_ALL_USERS", 2)
    now_s = 0.0
    used = UsedCredentials(lambda: now_s)
    for uid in (1000, 1001):
        used.use(f"c{uid}", Signed(b"", uid, uid), person=True)
    with pytest.raises(Unavailable):
        used.use("c1002", Signed(b"", 1002, 1002), person=True)
    used.use("node", Signed(b"", 0, 0))
    now_s = 10_000.0
    used.use("again", Signed(b"", 1002, 1002), person=True)
    assert (used._count, used._of_users.total()) == (1, 1)


async def test_denied_requests_fill_no_log(served: Served) -> None:
    for _ in range(40):
        assert (await served.post(protocol.VIEW, STATUS, credential="junk")).status == 403
    assert served.daemon.said.count("request-denied ") == 5
    await served.server.stop()
    assert "requests-denied more=35 addresses=1" in served.daemon.said


def test_denials_are_logged_again_in_the_next_period_and_by_address(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    log = DenialLog(Log(), lambda: now_s)
    for peer in ("a", "b"):
        for _ in range(7):
            log.denied("/v1/view", peer, "why")
    now_s = 61.0
    log.denied("/v1/view", "a", "why")
    lines = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["request-denied"] * 10 + ["requests-denied", "request-denied"]


async def test_nodes_are_not_bounded_as_people_are(served: Served) -> None:
    asked = [asyncio.create_task(served.post(protocol.ORDERS, {"node": f"n{at}"}, uid=NODE)) for at in range(1, 13)]
    async with asyncio.timeout(PATIENCE_S):
        while sum(seen.state == "heard" for seen in served.daemon.live.nodes.values()) < 12:
            await asyncio.sleep(0)
    assert not any(task.done() for task in asked), "all of them wait for orders"
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
