"""Checks that requests of a node come from one of its addresses in Slurm.

A node's credential proves that its sender is root or trusted on some host of the cluster, not on which. Therefore the
address of the connection, or of the host that made the credential, must be one of the node's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection
from functools import lru_cache

from sentinel.adapters.threads import Threads
from sentinel.model.records import Fleet

_RESOLVED_S = 300.0  # how long resolved addresses are cached; nodes keep theirs for months
_UNRESOLVED_S = 30.0  # pause after which a failed look-up is tried again
_DEADLINE_S = 2.0  # of one look-up, for which a heartbeat waits
_AT_ONCE = 8  # look-ups; where no name server answers, each of them hangs for up to half a minute

Resolve = Callable[[str], frozenset[str]]


def resolved(name: str) -> frozenset[str]:
    """Addresses of a host name; empty if they are not known. May block."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


class NodeAddresses:
    """The nodes' addresses, with cached look-ups.

    Args:
        fleet: the newest snapshot of Slurm; None while there is none.
        seconds: a monotonic clock.
    """

    def __init__(
        self, fleet: Callable[[], Fleet | None], seconds: Callable[[], float], resolve: Resolve = resolved
    ) -> None:
        self._fleet = fleet
        self._seconds = seconds
        self._resolve = resolve
        self._threads = Threads("node-addresses", _AT_ONCE)
        self._known: dict[str, tuple[float, frozenset[str]]] = {}  # name -> (valid until, monotonic s; addresses)

    async def may_speak(self, node: str, addresses: Collection[str]) -> bool | None:
        """Whether one of ``addresses`` is the node's; None if its addresses, or the sender's, are not known."""
        fleet = self._fleet()
        view = fleet.nodes.get(node) if fleet is not None else None
        if view is None or not view.address or not addresses:
            return None
        own: frozenset[str] = frozenset()
        for name in dict.fromkeys((view.address, view.name)):
            own |= await self._of(name)
            if any(_same(sender, mine) for sender in addresses for mine in own):
                return True
        return False if own else None

    def is_known(self, node: str, addresses: Collection[str]) -> bool:
        """Whether one of ``addresses`` is the node's, without a look-up; False where that is not cached."""
        fleet = self._fleet()
        view = fleet.nodes.get(node) if fleet is not None else None
        if view is None or not view.address:
            return False
        own = _literal(view.address)
        if own is None:
            until_s, own = self._known.get(view.address, (float("-inf"), frozenset()))
            own = own if self._seconds() < until_s else frozenset()
        return any(_same(sender, mine) for sender in addresses for mine in own)

    async def _of(self, name: str) -> frozenset[str]:
        if (literal := _literal(name)) is not None:
            return literal
        until_s, known = self._known.get(name, (float("-inf"), frozenset()))
        if self._seconds() < until_s:
            return known
        try:
            async with asyncio.timeout(_DEADLINE_S):
                found = await self._threads.call(self._resolve, name)
        except TimeoutError:
            found = frozenset()
        self._known[name] = (self._seconds() + (_RESOLVED_S if found else _UNRESOLVED_S), found or known)
        return found or known


@lru_cache(maxsize=32768)  # called for each request of each node
def _literal(name: str) -> frozenset[str] | None:
    """The addresses of a "name" that is an IP address itself; None if it must be resolved."""
    try:
        return frozenset({str(ipaddress.ip_address(name))})
    except ValueError:
        return None


@lru_cache(maxsize=65536)
def _same(sender: str, own: str) -> bool:
    """Whether both are the same address, or both belong to this host."""
    try:
        sent, mine = ipaddress.ip_address(sender), ipaddress.ip_address(own)
    except ValueError:
        return False
    if isinstance(sent, ipaddress.IPv6Address) and sent.ipv4_mapped is not None:
        sent = sent.ipv4_mapped
    return sent == mine or ((sent.is_loopback or mine.is_loopback) and of_this_host(str(sent)) and of_this_host(own))


@lru_cache(maxsize=4096)
def of_this_host(address: str) -> bool:
    """Whether this host has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        try:
            one.bind((address, 0))
        except OSError:
            return False
    return True


def addresses_of(peer: str | None, signed: str) -> frozenset[str]:
    """Addresses of a request's sender. A loopback address in a credential is dropped: any host has that one."""
    return frozenset({peer or "", "" if signed.startswith("127.") else signed}) - {""}
