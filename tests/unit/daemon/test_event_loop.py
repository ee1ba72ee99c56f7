"""The daemon's event loop: a name server that does not answer keeps nobody from the store."""

from __future__ import annotations

import asyncio
import socket

from hanging_threads import all_threads_hang

from sentinel.daemon.event_loop import ResolvingLoop


async def _asked() -> int:
    """Connect by a name; how much of that was handed to the threads in which the store is read."""
    hanging = all_threads_hang()
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.wait_for(asyncio.open_connection("localhost", port, family=socket.AF_INET), 30.0)
    writer.close()
    server.close()
    return len(hanging.asked)


def test_names_are_resolved_in_threads_of_their_own() -> None:
    with asyncio.Runner(loop_factory=ResolvingLoop) as loop:
        assert loop.run(_asked()) == 0
