"""Time and descriptors that anybody can take: silent connections, handshakes, floods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_memory.server import RESEARCHER, Served, serving
from in_memory.world import World
from servers.asked_by_anybody import PATIENCE_S, connected, head, heard, hurries, signed
from servers.certificates import authority

from sentinel import protocol
from sentinel.daemon.acceptor import _MOST_PER_TURN, Acceptor
from sentinel.daemon.api.connections import Connections, open_files_limit


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the daemon closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


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
