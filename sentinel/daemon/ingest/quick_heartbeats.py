"""Answers heartbeats directly, without aiohttp: 8,192 nodes send 4,000 a second, most of them without changes.

This handles only a complete request with the headers that agents send, in a valid session, for a node whose address is
known. Everything else is left to aiohttp's handler, which also reports what is wrong. Checks have the same order: size,
the session's signature, then the body. A session mark is used up when the heartbeat was processed.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from sentinel import protocol
from sentinel.daemon.api.node_addresses import addresses_of
from sentinel.errors import SentinelError
from sentinel.ports import Signed
from sentinel.text import is_deep
from sentinel.wire import to_text

MOST_BYTES = 8 << 10  # largest request handled here; a heartbeat has a few hundred bytes
_LINE = f"POST {protocol.HEARTBEAT} HTTP/1.1\r\n".encode()
_MARK = protocol.HEADER.lower().encode()
_LENGTH = b"content-length"
# Headers that HTTP clients add by themselves. A request with any other header is left to aiohttp.
_KNOWN = frozenset({_MARK, _LENGTH, b"host", b"accept", b"accept-encoding", b"user-agent", b"content-type"})
_PLAIN = b"application/json"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # other parsers may take a bare CR or LF for the end of a line
_ANSWER = (
    "HTTP/1.1 200 OK\r\n" + protocol.HEADER + ": {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)


class WholeRequest(NamedTuple):
    mark: str
    body: bytes


class Session(Protocol):
    key: bytes


class Sessions(Protocol):
    def verified(self, mark: str, peer: str) -> tuple[Any, Signed, int]: ...

    def used(self, session: Any, stamp_us: int) -> None: ...


class Nodes(Protocol):
    def known_sender(self, addresses: Collection[str], body: dict[str, Any]) -> str | None: ...

    def beat(self, node: str, body: dict[str, Any]) -> dict[str, Any]: ...


def begins(data: bytes) -> bool:
    """Whether ``data`` may be the beginning of a request that is handled here: it fits so far, and is not too long."""
    return len(data) <= MOST_BYTES and data.startswith(_LINE)


def whole(data: bytes) -> WholeRequest | bool:
    """The request in ``data``. False: it is not complete yet. True: it is left to aiohttp."""
    end = data.find(b"\r\n\r\n", len(_LINE))
    if end < 0:
        return False
    found: dict[bytes, bytes] = {}
    for line in data[len(_LINE) : end].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if name not in _KNOWN or name in found or not colon or _CONTROL.search(value):
            return True
        found[name] = value.strip(b" \t")
    mark, length = found.get(_MARK, b""), found.get(_LENGTH, b"")
    if b"host" not in found or found.get(b"content-type", _PLAIN) != _PLAIN:
        return True
    if not mark.isascii() or not length.isdigit() or len(length) > 4:
        return True
    body = data[end + 4 :]
    if len(body) < int(length):
        return end + 4 + int(length) > MOST_BYTES
    return WholeRequest(mark.decode(), body) if len(body) == int(length) else True


def is_one_request(data: bytes) -> bool:
    """Whether ``data`` is exactly one request, by the content length in its header."""
    head, end, body = data.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    if not end or b"transfer-encoding" in names or names.count(_LENGTH) != 1:
        return False
    length = head.split(b"\r\n")[1 + names.index(_LENGTH)].partition(b":")[2].strip(b" \t")
    return length.isdigit() and len(length) <= 9 and int(length) == len(body)


class QuickHeartbeats:
    def __init__(self, sessions: Sessions, nodes: Nodes, trusted: Collection[int], acts: Callable[[], bool]) -> None:
        """``trusted``: uids that may speak for nodes. ``acts``: whether this daemon is the active one."""
        self._sessions = sessions
        self._nodes = nodes
        self._trusted = trusted
        self._acts = acts

    def answer(self, request: WholeRequest, peer: str) -> bytes | None:
        """The answer with its header; None: nothing was done, and aiohttp's handler has to answer."""
        if not self._acts() or not protocol.is_session_mark(request.mark):
            return None
        try:
            session, signed, stamp_us = self._sessions.verified(request.mark, peer)
            digest = protocol.digest_of(protocol.HEARTBEAT, request.body)
            if signed.uid not in self._trusted or not hmac.compare_digest(signed.payload, digest):
                return None
            body = json.loads(request.body)
            addresses = addresses_of(peer, signed.address)
            sound = isinstance(body, dict) and not is_deep(request.body, body)
            node = self._nodes.known_sender(addresses, body) if sound else None
            if node is None:
                return None
            result = self._nodes.beat(node, body)
        except (SentinelError, ValueError, RecursionError):
            return None
        self._sessions.used(session, stamp_us)
        raw = to_text(result).encode()
        mark = protocol.answer_mark(session.key, request.mark, 200, raw)
        return _ANSWER.format(mark, len(raw)).encode() + raw
