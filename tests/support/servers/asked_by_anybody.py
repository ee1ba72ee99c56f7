"""A served API and the connections of anybody who reaches its port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from in_memory.server import NODE, RESEARCHER, FakeCredentials, Served

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.errors import Unavailable

PATIENCE_S = 20.0  # an answer that is late by this much does not come


SIGNERS = {uid: FakeCredentials(uid) for uid in (0, RESEARCHER)}


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
