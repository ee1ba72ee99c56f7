"""HTTP client of agents and hooks for the daemon: signed requests over a persistent connection, answers verified.

Standard library only and synchronous: each thread needs its own client.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from sentinel.adapters.encrypted_bodies import decrypted, encrypted
from sentinel.adapters.tls import client_context
from sentinel.errors import Denied, ProtocolError, Refused, SentinelError, Timeout, Unavailable, UserError
from sentinel.ports import Credentials
from sentinel.protocol import ENCRYPTED, HEADER, digest_of
from sentinel.text import json_of, json_with_bytes

MAX_ANSWER_BYTES = 24 << 20  # 16 MiB that are encrypted
# How a kept connection ends that the daemon closed.
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class DaemonClient:
    """One connection to the daemon.

    Args:
        url: ``http://host:port`` or ``https://host:port`` of the daemon.
        credentials: how requests are signed and answers checked.
        trusted_uids: who, besides root and our own uid, may answer for the daemon.
        deadline_s: for connecting, and for the daemon's silence while it answers.
        wire: ``clear``, ``tls`` or ``munge`` (bodies are encrypted for ``daemon_uid``); empty: as the address says.
        ca_file: who signed the daemon's certificate; empty: the system's authorities.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        trusted_uids: Collection[int] = (),
        deadline_s: float = 5.0,
        wire: str = "",
        ca_file: str = "",
        daemon_uid: int = 0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no address of a daemon", fix="write http://HOST:PORT or https://HOST:PORT")
        if (wire == "tls") != (parts.scheme == "https") and wire:
            fix = 'an address with https goes with wire = "tls", one with http with the others'
            raise UserError(f"{url!r} does not fit wire = {wire!r}", fix=fix)
        self._tls, self._ca_file = parts.scheme == "https", ca_file
        self._encrypts, self._daemon_uid = wire == "munge", daemon_uid
        self.host, self.port = parts.hostname, parts.port or 9478
        self.prefix = parts.path.rstrip("/")
        self.credentials = credentials
        self.trusted = {0, os.getuid(), *trusted_uids}
        self.deadline_s = deadline_s
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: Mapping[str, object], *, deadline_s: float | None = None) -> dict[str, Any]:
        """Send one request and return the checked answer. A kept connection that the daemon closed is opened again once.

        Raises:
            Timeout, Unavailable: no answer. Denied: refused, or the answer is not the daemon's.
            Refused: a limit forbids it. ProtocolError: an answer that cannot be understood.
        """
        content = json.dumps(body, separators=(",", ":")).encode()
        if self._encrypts:
            content = encrypted(self.credentials, content, self._daemon_uid)
        credential = self.credentials.encode(digest_of(path, content))
        deadline = self.deadline_s if deadline_s is None else deadline_s
        kept = self._connection is not None
        try:
            status, signature, answer = self._exchange(path, content, credential, deadline)
        except _CLOSED as error:
            self.close()
            if not kept:
                raise Unavailable(f"the daemon at {self.host}:{self.port} closed the connection") from error
            # Once more on a fresh connection: with a new credential, since the first may have been seen.
            return self.post(path, body, deadline_s=deadline_s)
        if status != 200:
            raise self._error(status, answer, credential, signature)
        answer = self._verified(credential, signature, answer)
        try:
            made = json_with_bytes(answer)  # orders name files
        except ValueError as error:
            raise ProtocolError(f"the daemon's answer is not JSON: {answer[:80]!r}") from error
        if not isinstance(made, dict):
            raise ProtocolError(f"the daemon's answer is not an object: {answer[:80]!r}")
        return made

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """End a request that another thread waits in; that thread gets ``Unavailable``."""
        connection = self._connection
        if connection is not None and getattr(connection, "sock", None) is not None:
            try:
                # Not SSLSocket's: it takes the TLS state away from under the thread that reads.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
            except OSError:
                return  # already gone: nothing waits any more

    def _exchange(self, path: str, content: bytes, credential: str, deadline_s: float) -> tuple[int, str, bytes]:
        if self._connection is None:
            self._connection = self._opened(deadline_s)
        connection = self._connection
        try:
            connection.timeout = self.deadline_s
            if getattr(connection, "sock", None) is None:
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock.settimeout(deadline_s)
            connection.request(
                "POST",
                self.prefix + path,
                body=content,
                headers={HEADER: credential, "Content-Type": ENCRYPTED if self._encrypts else "application/json"},
            )
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError as error:
            self.close()
            raise Timeout(f"the daemon at {self.host}:{self.port} did not answer within {deadline_s:g} s") from error
        except _CLOSED:
            raise
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise Unavailable(
                f"the certificate of the daemon at {self.host}:{self.port} is refused: {error.verify_message}",
                fix="ca_file holds the authority that signed it; the address has the name that it is for",
            ) from error
        except (OSError, http.client.HTTPException, AttributeError) as error:  # AttributeError: interrupted in between
            self.close()
            raise Unavailable(f"the daemon at {self.host}:{self.port} cannot be reached: {error}") from error
        if len(answer) > MAX_ANSWER_BYTES:
            self.close()
            raise ProtocolError(f"the daemon's answer is longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, response.headers.get(HEADER, ""), answer

    def _opened(self, deadline_s: float) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=deadline_s)
        context = client_context(self._ca_file)  # read for each connection: a new authority needs no restart
        return http.client.HTTPSConnection(self.host, self.port, timeout=deadline_s, context=context)

    def _error(self, status: int, answer: bytes, credential: str, signature: str) -> SentinelError:
        """The error that an answer tells of. Without a signature anybody can have sent it, while the daemon was away."""
        fix, checked = "", False
        if signature:
            with contextlib.suppress(SentinelError):
                answer, checked = self._verified(credential, signature, answer), True
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
        }
        kind = kinds.get(status, Unavailable)
        plain = message and kind in (UserError, Refused)  # written for the person who asked
        error = kind(message if plain else f"the daemon answered {status}: {message}", fix=fix)
        error.signed = checked
        return error

    def _verified(self, credential: str, signature: str, answer: bytes) -> bytes:
        """The answer, decrypted where we encrypt."""
        signed = self.credentials.decode(signature)
        if signed.payload != digest_of(credential, answer):
            raise Denied("the answer's credential was made for something else")
        if signed.uid not in self.trusted:
            raise Denied(
                f"the answer comes from uid {signed.uid}",
                fix="add the daemon's uid to trusted_uids, or stop that server",
            )
        return decrypted(self.credentials, answer, signed.uid, MAX_ANSWER_BYTES) if self._encrypts else answer
