"""HTTP client of agents and hooks for the daemon: signed requests over a persistent connection, answers verified.

Standard library only and synchronous: each thread needs its own client.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sentinel.adapters.daemon_addresses import Addresses
from sentinel.adapters.encrypted_bodies import decrypted, encrypted
from sentinel.adapters.session import ClientSession
from sentinel.adapters.tls import client_context
from sentinel.errors import Denied, ProtocolError, Refused, SentinelError, StandingBy, Timeout, Unavailable, UserError
from sentinel.ports import Credentials, Signed
from sentinel.protocol import (
    ACTIVE,
    ELSEWHERE,
    ENCRYPTED,
    HEADER,
    NO_SESSION,
    PORT,
    SESSION,
    STANDBY,
    digest_of,
    is_session_mark,
)
from sentinel.text import is_deep, json_of, json_with_bytes

MAX_ANSWER_BYTES = 24 << 20  # 16 MiB that are encrypted
_NO_SESSIONS_S = 300.0  # pause before a daemon without sessions is asked for one again
_TAKEOVER_PAUSE_S = 0.5  # before daemons of which none is active are asked again
_MOST_HEALTH = 64  # bytes of what /healthz says
_ANSWER_FACTOR = 2.0  # a whole answer may take this many times the limit of one read, however steadily it trickles
# Errors on a kept connection that the daemon has closed.
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class _NotReached(Unavailable):
    """No connection: the request was not sent."""


class _Response(http.client.HTTPResponse):
    """A response with a deadline for all of it: ``_ANSWER_FACTOR`` times the socket's timeout when reading begins."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))


class _DeadlineReader(io.RawIOBase):
    """Reads from the socket; raises TimeoutError when one read, or all reads together, take too long."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._socket = sock
        self._silent_s = sock.gettimeout() or 0.0
        self._until_s = time.monotonic() + _ANSWER_FACTOR * self._silent_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer was not whole in time")
        self._socket.settimeout(min(self._silent_s, left_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class DaemonClient:
    """One connection to the daemon, or to the active one of several daemons.

    Args:
        url: ``http://host:port`` or ``https://host:port`` of the daemon, several separated by commas, or what clients share.
        leads: whether a request without an answer in time makes all clients switch to the next address.
        credentials: signs requests and checks answers.
        trusted_uids: who, besides root and our own uid, may answer for the daemon.
        deadline_s: limit in seconds for connecting and for each read; the whole answer may take twice as long.
        wire: ``clear``, ``tls`` or ``munge`` (bodies are encrypted for ``daemon_uid``); empty: as the address says.
        ca_file: who signed the daemon's certificate; empty: the system's authorities.
        sessions: whether to open a session, whose key replaces MUNGE in later requests: for frequent requests.
    """

    def __init__(
        self,
        url: str | Addresses,
        credentials: Credentials,
        *,
        leads: bool = True,
        trusted_uids: Collection[int] = (),
        deadline_s: float = 5.0,
        wire: str = "",
        ca_file: str = "",
        daemon_uid: int = 0,
        sessions: bool = False,
    ) -> None:
        self._addresses = url if isinstance(url, Addresses) else Addresses(url)
        self._leads = leads
        self._ca_file = ca_file
        self._encrypts, self._daemon_uid = wire == "munge", daemon_uid
        self._session: ClientSession | None = None
        self._sessions = sessions
        self._connection: http.client.HTTPConnection | None = None
        for address in (*self._addresses.all, self._addresses.current):
            self._set_address(address, wire)
        self._addresses.register(self)
        self.credentials = credentials
        self.trusted = {0, os.getuid(), *trusted_uids}
        self.deadline_s = deadline_s

    def _set_address(self, address: str, wire: str = "") -> None:
        """
        Raises:
            UserError: not a daemon's address, or its scheme contradicts ``wire``.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{address!r} is no address of a daemon", fix="write http://HOST:PORT or https://HOST:PORT")
        if (wire == "tls") != (parts.scheme == "https") and wire:
            fix = 'an address with https goes with wire = "tls", one with http with the others'
            raise UserError(f"{address!r} does not fit wire = {wire!r}", fix=fix)
        self.close()
        self._session = None
        self._session_from_s = 0.0 if self._sessions else float("inf")  # from when on one is asked for, at this address
        self.address = address
        self.host, self.port = parts.hostname, parts.port or PORT
        self.prefix = parts.path.rstrip("/")

    def find_active(self, deadline_s: float, takeover_s: float = 0.0) -> None:
        """Ask each of several daemons whether it is active, and use the first that says so.

        While one does not answer and another stands by, that one may be about to take over: they are asked again for
        ``takeover_s``. A request to the silent one would wait in vain, and may have been carried out.

        That answer is not authenticated; the answers to requests are.
        """
        until_s, silent = time.monotonic() + takeover_s, False
        addresses = list(self._addresses.all) if len(self._addresses.all) > 1 else []
        while addresses:
            said: dict[str, str] = {}
            for address in addresses:
                said[address] = self._health(address, deadline_s)
                if said[address] == ACTIVE:
                    self._addresses.switch_to(address, instead_of=self._addresses.current)
                    return
            words = set(said.values())
            silent = silent or "" in words
            if not silent or words - {""} != {STANDBY} or time.monotonic() >= until_s:
                return
            time.sleep(_TAKEOVER_PAUSE_S)
            addresses.sort(key=lambda address: not said[address])  # one that is frozen takes the whole deadline: last

    def _health(self, address: str, deadline_s: float) -> str:
        """What the daemon there says of itself; empty: no answer."""
        parts = urlsplit(address)
        try:
            with contextlib.closing(self._opened(deadline_s, parts)) as connection:
                connection.request("GET", f"{parts.path.rstrip('/')}/healthz")
                return connection.getresponse().read(_MOST_HEALTH).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException):
            return ""

    def post(self, path: str, body: Mapping[str, object], *, deadline_s: float | None = None) -> dict[str, Any]:
        """Send one request to the active daemon and return its verified answer.

        The next address is tried only if the one before certainly did nothing: it cannot be reached, or stands by. After
        an answer with a wrong signature another address is used next: while a daemon is down, any process may listen on its
        port.

        Raises:
            StandingBy: daemons answer, and none is active. Timeout, Unavailable: no answer.
            Denied: refused, or the answer is not the daemon's.
            Refused: a limit forbids it. ProtocolError: an answer that cannot be understood.
        """
        problem: Unavailable | None = None
        for _ in self._addresses.all:
            if self.address != self._addresses.current:
                self._set_address(self._addresses.current)
            try:
                return self._post(path, body, deadline_s)
            except (StandingBy, _NotReached) as error:
                problem = error if problem is None or isinstance(error, StandingBy) else problem
                self._addresses.switch_from(self.address)
                if self._addresses.current == self.address:
                    break
            except Timeout:
                if self._leads:  # it may have been carried out: whether to ask again is the caller's matter
                    self._addresses.mark_silent(self.address)
                raise
            except SentinelError as error:
                if self._leads and not error.signed:
                    self._addresses.switch_from(self.address)
                raise
        assert problem is not None, "there is an address"
        raise problem

    def _post(self, path: str, body: Mapping[str, object], deadline_s: float | None) -> dict[str, Any]:
        """Send to the present address. A kept connection that the daemon closed is reopened once."""
        content = json.dumps(body, separators=(",", ":")).encode()
        if self._encrypts:
            content = encrypted(self.credentials, content, self._daemon_uid)
        deadline = self.deadline_s if deadline_s is None else deadline_s
        kept = self._connection is not None
        try:
            credential = self._signed(path, content)
            status, signature, answer = self._exchange(path, content, credential, deadline)
        except _CLOSED as error:
            self.close()
            if not kept or self.address != self._addresses.current:  # there is another one to ask now
                raise Unavailable(f"the daemon at {self.host}:{self.port} closed the connection") from error
            # Once more on a fresh connection: with a new credential, since the first may have been seen.
            return self._post(path, body, deadline_s)
        if status == NO_SESSION and self._session is not None:
            if not self._session.used:  # the second in a row
                self._session_from_s = time.monotonic() + _NO_SESSIONS_S
            self._session = None
            return self._post(path, body, deadline_s)
        if status != 200:
            raise self._error(status, answer, credential, signature)
        answer = self._verified(status, credential, signature, answer)
        try:
            made = json_with_bytes(answer)  # orders name files
        except ValueError as error:
            raise ProtocolError(f"the daemon's answer is not JSON: {answer[:80]!r}") from error
        if not isinstance(made, dict) or is_deep(answer, made):
            raise ProtocolError(f"the daemon's answer is not an object: {answer[:80]!r}")
        return made

    def _signed(self, path: str, content: bytes) -> str:
        """The signature of a request: by the session's key, or by MUNGE without a session."""
        if self._session is None and time.monotonic() >= self._session_from_s:
            self._session = self._opened_session()
        return (
            self.credentials.encode(digest_of(path, content))
            if self._session is None
            else self._session.mark(path, content)
        )

    def _opened_session(self) -> ClientSession | None:
        """Open a session; None if the daemon has no sessions.

        Raises:
            StandingBy, Unavailable, Denied: no active daemon answers, or it refuses us.
        """
        content = b"{}" if not self._encrypts else encrypted(self.credentials, b"{}", self._daemon_uid)
        credential = self.credentials.encode(digest_of(SESSION, content))
        status, signature, answer = self._exchange(SESSION, content, credential, self.deadline_s)
        if status == 404:  # one that is older, or is set so
            self._session_from_s = time.monotonic() + _NO_SESSIONS_S
            return None
        if status != 200:
            raise self._error(status, answer, credential, signature)
        signed = self._daemon_signature(signature)
        digest, _, key = signed.payload.partition(b" ")
        if digest != digest_of(credential, answer):
            raise Denied("the answer's credential was made for something else")
        try:
            return ClientSession(
                str(json_of(self._decrypted(answer, signed.uid))["session"]), bytes.fromhex(key.decode()), signed.uid
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"the daemon's answer is no session: {answer[:80]!r}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Abort a request that another thread waits for; that thread gets ``Unavailable``."""
        connection = self._connection
        if connection is not None and getattr(connection, "sock", None) is not None:
            try:
                # Not SSLSocket's: it takes the TLS state away from under the thread that reads.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
            except OSError:
                return  # already gone: nothing waits any more

    def _exchange(self, path: str, content: bytes, credential: str, deadline_s: float) -> tuple[int, str, bytes]:
        if self._connection is None:
            self._connection = self._opened(deadline_s, urlsplit(self.address))
        connection = self._connection
        connected = False
        try:
            connection.timeout = self.deadline_s
            if getattr(connection, "sock", None) is None:
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = True
            connection.sock.settimeout(deadline_s)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # header and body come in one piece
            connection.request(
                "POST",
                self.prefix + path,
                body=content,
                headers={HEADER: credential, "Content-Type": ENCRYPTED if self._encrypts else "application/json"},
            )
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError as error:
            self.close()
            if not connected:
                raise _NotReached(f"the daemon at {self.host}:{self.port} cannot be reached: {error}") from error
            raise Timeout(f"the daemon at {self.host}:{self.port} did not answer within {deadline_s:g} s") from error
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise _NotReached(
                f"the certificate of the daemon at {self.host}:{self.port} is refused: {error.verify_message}",
                fix="ca_file holds the authority that signed it; the address has the name that it is for",
            ) from error
        except (OSError, http.client.HTTPException, AttributeError) as error:  # AttributeError: interrupted meanwhile
            if connected and isinstance(error, _CLOSED):
                raise
            self.close()
            kind = Unavailable if connected else _NotReached
            raise kind(f"the daemon at {self.host}:{self.port} cannot be reached: {error}") from error
        if len(answer) > MAX_ANSWER_BYTES:
            self.close()
            raise ProtocolError(f"the daemon's answer is longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, response.headers.get(HEADER, ""), answer

    def _opened(self, deadline_s: float, address: SplitResult) -> http.client.HTTPConnection:
        host, port = address.hostname or "", address.port or PORT
        if address.scheme != "https":
            made = http.client.HTTPConnection(host, port, timeout=deadline_s)
        else:
            context = client_context(self._ca_file)  # read for each connection: a new authority needs no restart
            made = http.client.HTTPSConnection(host, port, timeout=deadline_s, context=context)
        made.response_class = _Response
        return made

    def _error(self, status: int, answer: bytes, credential: str, signature: str) -> SentinelError:
        """The error of an answer with another status than 200; ``signed`` is false if anybody could have sent it."""
        fix, checked = "", False
        if signature:
            with contextlib.suppress(SentinelError):
                answer, checked = self._verified(status, credential, signature, answer), True
        try:
            told = json_of(answer)
            message, fix = str(told.get("error", ""))[:500], str(told.get("fix", ""))[:500]
        except (ValueError, AttributeError):
            message = answer[:200].decode("utf-8", "replace")
        kinds: dict[int, type[SentinelError]] = {
            401: Denied,
            403: Denied,
            409: Refused,
            422: UserError,
            400: ProtocolError,
            413: ProtocolError,
            ELSEWHERE: StandingBy,
        }
        kind = kinds.get(status, Unavailable)
        plain = message and kind in (UserError, Refused, StandingBy)  # written for the person who asked
        error = kind(message if plain else f"the daemon answered {status}: {message}", fix=fix)
        error.signed = checked
        return error

    def _verified(self, status: int, credential: str, signature: str, answer: bytes) -> bytes:
        """Check the answer's signature and return the answer, decrypted if bodies are encrypted."""
        if is_session_mark(credential):
            session = self._session
            if session is None or not session.signs(credential, status, answer, signature):
                raise Denied("the answer is not signed by our session with the daemon")
            session.used = True
            return self._decrypted(answer, session.uid)
        signed = self._daemon_signature(signature)
        if signed.payload != digest_of(credential, answer):
            raise Denied("the answer's credential was made for something else")
        return self._decrypted(answer, signed.uid)

    def _daemon_signature(self, signature: str) -> Signed:
        """
        Raises:
            Denied: no valid credential, or its uid may not answer for the daemon.
        """
        signed = self.credentials.decode(signature)
        if signed.uid not in self.trusted:
            raise Denied(
                f"the answer comes from uid {signed.uid}",
                fix="is it the daemon's? [daemon] uid in sentinel.toml, trusted_uids in agent.toml; else stop that server",
            )
        return signed

    def _decrypted(self, answer: bytes, uid: int) -> bytes:
        return decrypted(self.credentials, answer, uid, MAX_ANSWER_BYTES) if self._encrypts else answer
