"""The server below HTTP: listening socket, TLS handshake, limits of connections, and aiohttp's log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import http_exceptions, web

from sentinel.adapters.tls import ServerCertificate
from sentinel.config.settings import Daemon
from sentinel.daemon.acceptor import Acceptor, listening
from sentinel.daemon.api.connections import Connections, open_files_limit
from sentinel.daemon.ingest.quick_heartbeats import QuickHeartbeats, WholeRequest, begins, is_one_request, whole
from sentinel.daemon.periodic import Periodic
from sentinel.log import Log
from sentinel.telemetry import Telemetry

_RESERVED_FILES = 512  # descriptors reserved for the store, Slurm's commands and probes of slurmd ports
_BACKLOG = 4096  # connections queued in the kernel; the client of one dropped there retries after 1 s
_DEFER_ACCEPT_S = 5  # TCP_DEFER_ACCEPT: the kernel holds a connection without data for this long
_LINGER_S = 2.0  # how long a refused client's body is discarded, so that the client reads the answer
# How long requests in progress have to end when the server stops, and once more when they are cancelled. Until then the
# lease is kept; with the last deliveries before it, all of it fits in systemd's TimeoutStopSec.
STOP_S = 2.0
_NEVER_S = 365 * 86400.0
_RENEW_S = 10.0  # how often the certificate files are checked for changes
_OVERDUE_S = 1.0  # how often connections are checked for deadlines
# Most headers, and their bytes, in a request of an agent, a person or Prometheus. An unknown client can occupy as much.
_HEADERS, _HEADER_BYTES = 32, 5120  # enough for a credential of 4,096 characters
_LINE_BYTES = 1024
_READ_BYTES = 16 << 10  # read-ahead of a body (at most twice as much)
_RECEIVED_BYTES = 32 << 10  # receive buffer of each connection in the kernel; also the most that is read at once
Page = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Listener:
    """Listens at ``[daemon] listen``, with TLS where the settings say so, and bounds connections."""

    def __init__(
        self,
        settings: Daemon,
        answer: Page,
        telemetry: Telemetry,
        log: Log,
        *,
        full: Callable[[], None] = lambda: None,
        quick: QuickHeartbeats | None = None,
    ) -> None:
        """
        Args:
            full: called when a connection is refused because all others are trusted or busy.
            quick: answers heartbeats without aiohttp; None: nothing does.
        """
        self._quick = quick
        self._settings = settings
        self._answer = answer
        self._telemetry = telemetry
        self._log = log
        tls = settings.wire == "tls"
        self._certificate = ServerCertificate(settings.certificate_file, settings.key_file) if tls else None
        self._runner: web.ServerRunner | None = None
        self._acceptor: Acceptor | None = None
        self._periodic = Periodic(telemetry, log)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.connections = Connections(
            most=open_files_limit(settings.connections, files, _RESERVED_FILES),
            most_waiting=settings.waiting_connections,
            most_waiting_per_peer=settings.waiting_per_address,
            header_s=settings.header_s,
            idle_s=settings.idle_s,
            seconds=time.monotonic,
            full=full,
        )

    async def start(self) -> None:
        """
        Raises:
            OSError, ValueError: the address cannot be used.
        """
        # No aiohttp application: a fixed table needs no router, and there are a thousand requests a second.
        # A broken connection cancels its handler, since a broken long poll is the first sign of a lost node.
        server = CountingServer(
            self._answer,
            self.connections,
            self._quick,
            self._bug,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # no client of ours compresses, and a compressed KB may expand to a MB
            keepalive_timeout=_NEVER_S,  # ``Connections`` closes idle connections instead
            lingering_time=_LINGER_S,
            logger=http_log(self._log, self._telemetry),
            max_headers=_HEADERS,
            max_field_size=_HEADER_BYTES,
            max_line_size=_LINE_BYTES,
            read_bufsize=_READ_BYTES,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
        await self._runner.setup()
        bound = await asyncio.to_thread(listening, self._settings.listen)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_ACCEPT_S)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        bound.listen(_BACKLOG)
        certificate = self._certificate
        tls = (lambda: certificate.context) if certificate is not None else None
        self._acceptor = Acceptor(bound, server, self.connections, tls=tls, handshake_s=self._settings.header_s)
        self._periodic.every(min(_OVERDUE_S, self._settings.header_s / 4), self._close_overdue, "overdue connections")
        if certificate is not None:
            self._periodic.every(_RENEW_S, partial(self._renew, certificate), "certificate", first_s=_RENEW_S)
        self._periodic.start()

    def _bug(self, where: str) -> None:
        self._telemetry.bugs.inc()
        self._log.bug(where)

    async def _renew(self, certificate: ServerCertificate) -> None:
        """Load changed certificate files, so that a renewal needs no restart.

        Raises:
            UserError: they cannot be used; the previous certificate stays in force.
        """
        if await asyncio.to_thread(certificate.reload):
            self._log.info("certificate-renewed")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, while it listens."""
        assert self._acceptor is not None
        return self._acceptor.address

    async def stop(self) -> None:
        """Stop listening and close all connections, within twice ``STOP_S``.

        A second call, or one before ``start``, does nothing.
        """
        self._periodic.stop()
        if self._acceptor is not None:
            await self._acceptor.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _close_overdue(self) -> None:
        self.connections.close_overdue()
        self._telemetry.connections.set(len(self.connections))


class CountingServer(web.Server):
    """aiohttp's server, with its connections counted in ``Connections``."""

    def __init__(
        self,
        handler: Page,
        connections: Connections,
        quick: QuickHeartbeats | None = None,
        bug: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        """``bug``: called inside an ``except`` block after an unexpected exception."""
        super().__init__(handler, **options)
        self.bug = bug
        self._options = {name: value for name, value in options.items() if name != "handler_cancellation"}
        self._counted = connections
        self._quick = quick

    def __call__(self) -> web.RequestHandler:
        if self._quick is None:
            return super().__call__()
        return _Connection(self, self._quick, self._counted, loop=self._loop, **self._options)

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        self._counted.opened(handler, peer[0] if peer else "", transport.abort)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._counted.lost(handler)
        super().connection_lost(handler, exc)


class _Connection(web.RequestHandler):
    """One connection: complete heartbeats are answered directly, everything else by aiohttp.

    After the first data that is not exactly one request, everything goes to aiohttp, whose parser may hold a part of
    it.
    """

    __slots__ = ("_aside", "_asked", "_counted", "_ordinary", "_peer", "_quick", "_server")

    def __init__(
        self,
        server: CountingServer,
        quick: QuickHeartbeats,
        counted: Connections,
        **options: Any,
    ) -> None:
        super().__init__(server, **options)
        self._server = server
        self._quick = quick
        self._counted = counted
        self._aside = b""  # received beginning of a heartbeat
        self._asked = False  # aiohttp has a request that it has not answered yet
        self._ordinary = False
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""

    def data_received(self, data: bytes) -> None:
        if self._ordinary or not data:  # aiohttp also calls this without data
            super().data_received(data)
            return
        if self._aside:
            data, self._aside = self._aside + data, b""
        if self._asked:
            self._ordinary = True
        elif begins(data):
            found = whole(data)
            if found is False:
                self._aside = data
                return
            if isinstance(found, WholeRequest) and self._answered(found):
                return
            self._ordinary = found is True
        else:
            self._ordinary = not is_one_request(data)
        self._asked = True
        super().data_received(data)

    def _answered(self, request: WholeRequest) -> bool:
        transport = self.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > 0:
            return False
        try:
            answer = self._quick.answer(request, self._peer)
        except Exception:  # aiohttp answers instead, with 500 if the same happens there
            self._server.bug("quick heartbeats")
            return False
        if answer is None:
            return False
        transport.write(answer)
        self._counted.began(self)
        self._counted.trust(self)
        self._counted.ended(self)
        return True

    def answered(self) -> None:
        """Note that aiohttp has answered its request."""
        self._asked = False


def answered(connection: object) -> None:
    if isinstance(connection, _Connection):
        connection.answered()


def http_log(log: Log, telemetry: Telemetry) -> logging.Logger:
    """aiohttp's log: malformed HTTP is only counted, since anybody can send it; any other record is logged as a bug."""

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, http_exceptions.HttpProcessingError | ConnectionError):
                telemetry.refused.labels(status=400).inc()
            elif record.levelno >= logging.ERROR:
                telemetry.bugs.inc()
                log.error("bug", where="http", error=repr(error or record.getMessage()))

    made = logging.Logger("sentinel.http", logging.WARNING)
    made.addHandler(_Handler())
    return made
