"""Probes slurmd's TCP port: it answers while the node is up, even if Sentinel's agent there is not."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Sequence

from sentinel.errors import Unavailable
from sentinel.model.records import NodeView

# This host ran out of descriptors, memory, disk or ports.
EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
# This host has no network, or its firewall blocks outgoing connections.
_OWN_NETWORK_ERRORS = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EPERM, errno.EACCES})

# If a deadline is noticed this late, the event loop was busy and the answer may have arrived in time. An idle loop is
# late by milliseconds, one on a busy host by tenths of a second, and lost nodes must be found there too.
_LATE_S = 0.5


async def slurmd_answers(view: NodeView, deadline_s: float) -> str | None:
    """Connect to slurmd's port. None if it accepts, or if a fault of this host prevents an answer; else the reason.

    A deadline that is noticed late is a fault of this host: a busy daemon must not find nodes unreachable.

    Args:
        deadline_s: of the look-up of the node's name, and of the connection after it.

    Raises:
        Unavailable: this host ran out of a resource that a connection needs. That says nothing about the node.
    """
    try:
        addresses = await asyncio.wait_for(_addresses(view.address or view.name, view.port), deadline_s)
    except (OSError, UnicodeError) as error:
        _require_resources(error)
        return None  # name resolution failed on this host, or hangs: that proves nothing about the node
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        await asyncio.wait_for(_connect(addresses, view.port), deadline_s)
    except TimeoutError:
        return None if loop.time() - began_s > deadline_s + _LATE_S else "no answer"
    except OSError as error:
        _require_resources(error)
        if error.errno in _OWN_NETWORK_ERRORS:
            return None  # this host's own network failed: that proves nothing about the node
        number = error.errno or 0  # strerror instead of asyncio's message, which repeats the address
        return os.strerror(number) if number > 0 else error.strerror or type(error).__name__
    return None


def _require_resources(error: Exception) -> None:
    """
    Raises:
        Unavailable: the error is that this host ran out of something.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in EXHAUSTED:
        raise Unavailable(f"no connection can be made here: {os.strerror(number or 0)}") from error


async def _addresses(host: str, port: int | None) -> list[str]:
    """Of a node. Looked up apart from the connection: which of the two took too long makes the difference."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(one[4][0]) for one in found]


async def _connect(addresses: Sequence[str], port: int | None) -> None:
    """Connect to one of the addresses.

    Raises:
        OSError: none of them accepts: what one of them said, or else why none could be asked.
    """
    errors: list[OSError] = []
    for address in addresses:
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError as error:
            errors.append(error)
        else:
            writer.close()
            return
    asked = [error for error in errors if error.errno not in _OWN_NETWORK_ERRORS]
    raise (asked or errors)[0]


async def answers(node: NodeView, deadline_s: float) -> bool:
    """Whether slurmd on the node takes a connection, or a fault of this host prevents the question.

    Raises:
        Unavailable: as above.
    """
    return node.port is not None and await slurmd_answers(node, deadline_s) is None
