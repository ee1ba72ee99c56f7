"""Accepts connections at a listening socket, and hands over those that have sent data, one address after the other."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial

from sentinel.daemon.api.connections import Connections

_ACCEPTED = 128  # connections accepted per turn of the event loop: a few ms
_MOST_PER_TURN = 8  # connections handed over per turn: a handshake takes 1 to 3 ms, for which heartbeats wait
_EXHAUSTED_S = 1.0  # pause when this host has no descriptor or memory for another one
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: closing resets the connection


class Acceptor:
    """Accepts connections, and hands each to aiohttp once its client has sent data and the TLS handshake is complete.

    Until then a connection costs only a socket and an entry in ``Connections``: thousands of silent ones do not slow
    down the others, and clients that only begin handshakes are limited like silent ones. Those that have said something
    take turns by address: a flood from one makes its own connections wait, and most of them are closed before their
    turn.
    """

    def __init__(
        self,
        bound: socket.socket,
        server: Callable[[], asyncio.Protocol],
        connections: Connections,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        handshake_s: float,
    ) -> None:
        """``tls``: returns the TLS context for a new connection; None: no encryption."""
        self._bound = bound
        self._server = server
        self._counted = connections
        self._tls = tls
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._silent: set[socket.socket] = set()
        self._speaking: dict[str, dict[socket.socket, None]] = {}  # address -> connections with data, in turn
        self._peer_of: dict[socket.socket, str] = {}  # connection with data -> address
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
        """Stop accepting, and drop connections that aiohttp does not have yet. A second call does nothing."""
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
            except OSError as error:  # out of descriptors or memory: pause, so that accepted clients are served first
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
        """Reset a connection that aiohttp does not have yet: unlike a close, this leaves no state in the kernel."""
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
        """Handle the first readable data: a request, a handshake, or the end of the connection."""
        self._silent.discard(connection)
        self._loop.remove_reader(connection.fileno())
        self._peer_of[connection] = peer
        self._speaking.setdefault(peer, {})[connection] = None
        if self._turn is None:
            self._turn = self._loop.call_soon(self._hand_over)

    def _take(self, peer: str, connection: socket.socket) -> None:
        """Remove a connection from its queue; its address goes behind all others."""
        del self._peer_of[connection]
        waiting = self._speaking.pop(peer)
        del waiting[connection]
        if waiting:
            self._speaking[peer] = waiting

    def _hand_over(self) -> None:
        self._turn = None
        for _ in range(min(_MOST_PER_TURN, len(self._peer_of))):
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
            self._counted.lost(connection)  # aiohttp's connection is counted from now on
            await self._loop.connect_accepted_socket(self._server, connection)
        else:
            await self._loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls(), ssl_handshake_timeout=self._handshake_s
            )

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Clean up after a hand-over, even one that was cancelled before it began."""
        del self._handing[connection]
        self._counted.lost(connection)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        connection.close()
        if error is not None and not isinstance(error, OSError):  # ssl.SSLError and ConnectionError are OSErrors
            self._loop.call_exception_handler({"message": "a connection was not handed over", "exception": error})


def listening(address: str) -> socket.socket:
    """A socket bound to ``host:port``; without a host, to all addresses of this machine."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    family, *_, found = socket.getaddrinfo(host or "0.0.0.0", int(port), type=socket.SOCK_STREAM)[0]  # noqa: S104
    return socket.create_server(found, family=family)
