"""Sends lines to syslog: this host's socket, or a collector by UDP or TCP (RFC 5424, 6587). Every call has a deadline."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from sentinel.errors import Unavailable, UserError

DEADLINE_S = 5.0
MOST_BYTES = 7000  # of a line: journald and rsyslog take 8 KiB
_PRIORITY = 13 * 8 + 5  # facility "log audit", severity "notice"
_PORT = 514


class Syslog:
    """
    Args:
        address: ``/dev/log`` or another socket's path, ``udp://HOST:PORT``, ``tcp://HOST:PORT``.

    Raises:
        UserError: none of these.
    """

    def __init__(self, address: str, program: str = "sentinel-audit") -> None:
        parts = urlsplit(address)
        try:
            port = parts.port or _PORT
        except ValueError:
            port = 0
        sound = address.startswith("/") or (parts.scheme in ("udp", "tcp") and parts.hostname and port)
        if not sound:
            fix = "write /dev/log, udp://HOST:PORT or tcp://HOST:PORT"
            raise UserError(f"[daemon] audit_syslog: {address!r:.80} is no address of syslog", fix=fix)
        self._path = address if address.startswith("/") else ""
        self._stream = parts.scheme == "tcp"
        self._host, self._port = parts.hostname or "", port
        self._program = program
        self._socket: socket.socket | None = None

    def send(self, text: str, at: datetime) -> None:
        """
        Raises:
            Unavailable: it was not handed over. UDP tells nobody that what was handed over got lost.
        """
        head = f"<{_PRIORITY}>1 {at.isoformat()} {socket.gethostname()} {self._program} {os.getpid()} - - "
        if self._path:  # a local syslog knows host, time and RFC 3164's short form
            head = f"<{_PRIORITY}>{self._program}[{os.getpid()}]: "
        line = (head + text).encode("utf-8", "backslashreplace")[:MOST_BYTES]
        line = b"%d %s" % (len(line), line) if self._stream else line
        try:
            if self._socket is None:
                self._socket = self._connected()
            self._socket.sendall(line)
        except OSError as error:
            self.close()
            raise Unavailable(f"syslog does not take it: {error}", fix="correct [daemon] audit_syslog") from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._stream:
            return socket.create_connection((self._host, self._port), timeout=DEADLINE_S)
        family: int = socket.AF_UNIX
        target: Any = self._path
        if not self._path:
            family, *_, target = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.settimeout(DEADLINE_S)
        try:
            made.connect(target)
        except OSError:
            made.close()
            raise
        return made
