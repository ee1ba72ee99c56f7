"""Memory that anybody who reaches the daemon's port can make it take: bodies, answers, requests under way."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from in_memory.server import NODE, RESEARCHER, Served, serving
from in_memory.world import World
from servers.asked_by_anybody import PATIENCE_S, connected, head, hurries, signed

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.daemon.api.memory_budget import MemoryBudget
from sentinel.errors import Denied
from sentinel.ports import Signed

STATUS = {"view": "status"}


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return int((await reader.readline()).split()[1])


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
