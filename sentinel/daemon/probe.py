"""slurmd's port as a witness: it answers while the node lives, whatever became of our agent there."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from sentinel.model import NodeView


async def slurmd_answers(view: NodeView, deadline_s: float) -> str | None:
    """None when slurmd's port accepts a connection, or when it is we who have no way out; else in a word why not."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(view.address or view.name, view.port), deadline_s)
    except TimeoutError:
        return "no answer"
    except (ConnectionError, socket.gaierror, OSError) as error:
        if error.errno in (errno.ENETUNREACH, errno.ENETDOWN):
            return None  # our own network: says nothing about the node
        number = error.errno or 0  # asyncio's own words for it repeat the address
        return os.strerror(number) if number > 0 else error.strerror or type(error).__name__
    writer.close()
    return None
