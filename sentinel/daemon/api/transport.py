"""The server's connections below HTTP: the listening socket, the TLS handshake, the count, and aiohttp's own log."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import http_exceptions, web

from sentinel.daemon.api.connections import Connections
from sentinel.log import Log
from sentinel.telemetry import Telemetry

Page = Callable[[web.BaseRequest], Awaitable[web.Response]]


class CountingServer(web.Server):
    """aiohttp's server, whose connections are counted from their first moment."""

    def __init__(
        self,
        handler: Page,
        connections: Connections,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshake_s: float = 5.0,
        **options: Any,
    ) -> None:
        """``tls``: gives the context of each new connection; None: they are not encrypted."""
        super().__init__(handler, **options)
        self._counted = connections
        self._tls = tls
        self._handshake_s = handshake_s

    def __call__(self) -> Any:
        made = super().__call__()
        return made if self._tls is None else _Handshake(made, self._counted, self._tls, self._handshake_s)

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        self._counted.opened(handler, peer[0] if peer else "", transport.abort)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._counted.lost(handler)
        super().connection_lost(handler, exc)


class _Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is over. It counts as one that waits from the moment it is accepted: who only
    begins handshakes takes no more room than who says nothing."""

    def __init__(
        self, then: Any, connections: Connections, tls: Callable[[], ssl.SSLContext], deadline_s: float
    ) -> None:
        """``then``: aiohttp's protocol, which gets the encrypted connection."""
        self._then = then
        self._counted = connections
        self._tls = tls
        self._deadline_s = deadline_s
        self._early: list[bytes] = []  # decrypted before aiohttp has the connection
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # until TLS reads
        peer = transport.get_extra_info("peername")
        self._counted.opened(self, peer[0] if peer else "", transport.abort)
        if not transport.is_closing():
            self._task = asyncio.get_running_loop().create_task(self._shake(transport))

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.start_tls(
                transport, self, self._tls(), server_side=True, ssl_handshake_timeout=self._deadline_s
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError and ConnectionError are OSErrors
            made = None
        self._counted.lost(self)
        if made is None:
            transport.abort()
            return
        if made.is_closing():
            return
        made.set_protocol(self._then)
        self._then.connection_made(made)
        for data in self._early:
            self._then.data_received(data)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.lost(self)
        if self._task is not None:
            self._task.cancel()


def listening(address: str) -> socket.socket:
    """A socket bound to ``host:port``; without a host on all addresses of this machine."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    family, *_, found = socket.getaddrinfo(host or "0.0.0.0", int(port), type=socket.SOCK_STREAM)[0]  # noqa: S104
    return socket.create_server(found, family=family)


def http_log(log: Log, telemetry: Telemetry) -> logging.Logger:
    """aiohttp's own log: what is no HTTP is counted and not logged, since anybody can send it; the rest is a bug."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, http_exceptions.HttpProcessingError | ConnectionError):
                telemetry.refused.labels(status=400).inc()
            elif record.levelno >= logging.ERROR:
                telemetry.bugs.inc()
                log.error("bug", where="http", error=repr(error or record.getMessage()))

    made = logging.Logger("sentinel.http", logging.WARNING)
    made.addHandler(Told())
    return made
