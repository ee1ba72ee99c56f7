"""The event loop of the daemon where uvloop is not installed: asyncio's, with threads of its own for names of hosts.

asyncio resolves them in the threads in which the store is read. Where no name server answers, a look-up hangs for half a
minute, and those of probes, webhooks and Prometheus would take all of these threads. uvloop has others for it anyway.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from sentinel.adapters.threads import Threads

_AT_ONCE = 8  # look-ups: a few receivers of messages, Prometheus, and nodes that are probed


class ResolvingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._resolving = Threads("resolve", _AT_ONCE)

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """As ``socket.getaddrinfo``.

        Raises:
            OSError: as there.
        """
        return await self._resolving.call(socket.getaddrinfo, host, port, family, type, proto, flags)
