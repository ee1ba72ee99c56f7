"""The server's connections below HTTP: the listening socket, the TLS handshake, the count, and aiohttp's own log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import http_exceptions, web

from sentinel.adapters.tls import ServerCertificate
from sentinel.config.settings import Daemon
from sentinel.daemon.api.connections import Connections, open_files_limit
from sentinel.daemon.ingest.quick_heartbeats import QuickHeartbeats, WholeRequest, begins, is_one_request, whole
from sentinel.daemon.periodic import Periodic
from sentinel.log import Log
from sentinel.telemetry import Telemetry

_ACCEPTED = 128  # connections taken at once between two turns of the event loop: a few thousandths of a second
_HANDED = 8  # connections handed over between two turns: a handshake takes 1 to 3 ms, and heartbeats wait meanwhile
_EXHAUSTED_S = 1.0  # pause when this host has no descriptor or memory for another one
_RESERVED_FILES = 512  # descriptors kept for the store, Slurm's commands and the probes of slurmd's ports
_BACKLOG = 4096  # connections that wait in the kernel; a client whose connection is dropped there tries again after 1 s
_SAYS_NOTHING_S = 5  # the kernel keeps a connection on which nothing was sent for so long, before we are told of it
_LINGER_S = 2.0  # a refused client's body is read and thrown away for so long, so that it reads the answer
_NEVER_S = 365 * 86400.0
_RENEW_S = 10.0  # how often the certificate's files are looked at
_OVERDUE_S = 1.0  # how often connections are looked at, at the least
# What an agent's, a person's or Prometheus' request has at most. As much of each stranger's connection may lie in memory.
_HEADERS, _HEADER_BYTES = 32, 5120  # the longest has a credential of 4,096 characters
_LINE_BYTES = 1024
_READ_BYTES = 16 << 10  # of a body, ahead of who reads it (twice as much at the most)
_RECEIVED_BYTES = 32 << 10  # that the kernel keeps of each connection; also the most that is read at once
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER
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
            OSError, ValueError: the address cannot be had.
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
            auto_decompress=False,  # nobody of ours compresses; a kilobyte may be a megabyte
            keepalive_timeout=_NEVER_S,  # ``Connections`` closes those that wait too long, and knows of all requests
            lingering_time=_LINGER_S,
            logger=http_log(self._log, self._telemetry),
            max_headers=_HEADERS,
            max_field_size=_HEADER_BYTES,
            max_line_size=_LINE_BYTES,
            read_bufsize=_READ_BYTES,
        )
        self._runner = web.ServerRunner(server)
        await self._runner.setup()
        bound = await asyncio.to_thread(listening, self._settings.listen)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SAYS_NOTHING_S)
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
        """Take changed certificate files, so that a renewal needs no restart.

        Raises:
            UserError: they cannot be used; the certificate before stays in force.
        """
        if await asyncio.to_thread(certificate.reload):
            self._log.info("certificate-renewed")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, while it listens."""
        assert self._acceptor is not None
        return self._acceptor.address

    async def stop(self) -> None:
        """A second call, or one before ``start``, does nothing."""
        self._periodic.stop()
        if self._acceptor is not None:
            await self._acceptor.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _close_overdue(self) -> None:
        self.connections.close_overdue()
        self._telemetry.connections.set(len(self.connections))


class CountingServer(web.Server):
    """aiohttp's server, whose connections are counted."""

    def __init__(
        self,
        handler: Page,
        connections: Connections,
        quick: QuickHeartbeats | None = None,
        bug: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        """``bug``: called in an ``except``, after an error of our own."""
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
    """One connection: whole heartbeats are answered at once, everything else by aiohttp.

    With what is not one whole request in its turn, all that follows goes to aiohttp: what its parser holds is not known.
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
        self._aside = b""  # the beginning of a heartbeat
        self._asked = False  # aiohttp has a request that it did not answer yet
        self._ordinary = False
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""

    def data_received(self, data: bytes) -> None:
        if self._ordinary or not data:  # aiohttp calls this with nothing, too
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
        except Exception:  # the ordinary way answers, with 500 where it meets the same
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
        """aiohttp has answered the request that it had."""
        self._asked = False


def answered(connection: object) -> None:
    if isinstance(connection, _Connection):
        connection.answered()


class Acceptor:
    """Accepts connections, and hands one to aiohttp when its client has said something and the TLS handshake is over.

    Until then a connection is a socket and a row in the count, no more: thousands that say nothing take no time from those
    that do, and who only begins handshakes gets no more connections than who is silent. Those that have said something
    take turns by address: a flood from one makes its own connections wait, and most of them are closed before their turn.
    """

    def __init__(
        self,
        bound: socket.socket,
        server: CountingServer,
        connections: Connections,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        handshake_s: float,
    ) -> None:
        """``tls``: gives the context of each new connection; None: they are not encrypted."""
        self._bound = bound
        self._server = server
        self._counted = connections
        self._tls = tls
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._silent: set[socket.socket] = set()
        self._speaking: dict[str, dict[socket.socket, None]] = {}  # by address; the next one's turn is first
        self._peer_of: dict[socket.socket, str] = {}  # of those
        self._turn: asyncio.Handle | None = None
        self._handing: dict[socket.socket, asyncio.Task[None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._bound.getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Accept no more, and drop what aiohttp does not have. A second call does nothing."""
        if self._bound.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        if self._turn is not None:
            self._turn.cancel()
        for connection in (*self._silent, *self._peer_of):
            self._drop(connection)
        handing = tuple(self._handing.values())
        for task in handing:
            task.cancel()
        await asyncio.gather(*handing, return_exceptions=True)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory: those who wait are served first
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(_EXHAUSTED_S, self._listen)
                context = {"message": "socket.accept() out of system resource", "exception": error}
                self._loop.call_exception_handler(context)
                return
            connection.setblocking(False)
            self._silent.add(connection)
            self._loop.add_reader(connection.fileno(), self._speaks, connection, peer[0])
            self._counted.opened(connection, peer[0], partial(self._drop, connection))

    def _drop(self, connection: socket.socket) -> None:
        """Close a connection that aiohttp does not have, as one that is reset: it leaves nothing in the kernel."""
        self._counted.lost(connection)
        if connection in self._silent or connection in self._peer_of:
            if connection in self._silent:
                self._silent.discard(connection)
                self._loop.remove_reader(connection.fileno())
            else:
                self._take(self._peer_of[connection], connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.close()
        elif connection in self._handing:
            self._handing[connection].cancel()

    def _speaks(self, connection: socket.socket, peer: str) -> None:
        """It can be read: a request, a handshake, or its end."""
        self._silent.discard(connection)
        self._loop.remove_reader(connection.fileno())
        self._peer_of[connection] = peer
        self._speaking.setdefault(peer, {})[connection] = None
        if self._turn is None:
            self._turn = self._loop.call_soon(self._hand_over)

    def _take(self, peer: str, connection: socket.socket) -> None:
        """It waits for its turn no more; the next turn of its address comes after all others'."""
        del self._peer_of[connection]
        waiting = self._speaking.pop(peer)
        del waiting[connection]
        if waiting:
            self._speaking[peer] = waiting

    def _hand_over(self) -> None:
        self._turn = None
        for _ in range(min(_HANDED, len(self._peer_of))):
            peer, waiting = next(iter(self._speaking.items()))
            connection = next(iter(waiting))
            self._take(peer, connection)
            task = self._loop.create_task(self._handed_over(connection))
            self._handing[connection] = task
            task.add_done_callback(partial(self._ended, connection))
        if self._peer_of:
            self._turn = self._loop.call_soon(self._hand_over)

    async def _handed_over(self, connection: socket.socket) -> None:
        if self._tls is None:
            self._counted.lost(connection)  # from now on as aiohttp's
            await self._loop.connect_accepted_socket(self._server, connection)
        else:
            await self._loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls(), ssl_handshake_timeout=self._handshake_s
            )

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it began."""
        del self._handing[connection]
        self._counted.lost(connection)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        connection.close()
        if error is not None and not isinstance(error, OSError):  # ssl.SSLError and ConnectionError are OSErrors
            self._loop.call_exception_handler({"message": "a connection was not handed over", "exception": error})


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
