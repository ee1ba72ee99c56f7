"""TLS by certificate files, which are read again when they change. Standard library only: agents and commands use it too."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from sentinel.errors import FileError, Unavailable, UserError
from sentinel.given_files import require_file, states


def client_context(ca_file: str) -> ssl.SSLContext:
    """Checks the daemon's certificate and its name. ``ca_file``: who signed it; empty: the system's authorities.

    Raises:
        FileError: the file cannot be used.
    """
    try:
        if ca_file:
            require_file(Path(ca_file))
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:
        raise FileError(ca_file, f"is no certificate of an authority: {error}", fix="correct ca_file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def certificate_ends(host: str, port: int, ca_file: str, deadline_s: float) -> datetime:
    """The expiry time of the certificate of the server at this address, verified as clients do.

    Raises:
        Unavailable: no TLS server, or a certificate that clients refuse.
    """
    context = client_context(ca_file)
    try:
        with (
            socket.create_connection((host, port), timeout=deadline_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as made,
        ):
            ends = (made.getpeercert() or {}).get("notAfter")
    except OSError as error:  # ssl.SSLError is one
        raise Unavailable(f"TLS with {host}:{port} fails: {error}", fix="sentinel doctor on the controller") from error
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(ends)), UTC)


class ServerCertificate:
    """The daemon's certificate and key.

    Raises:
        UserError: a file is missing, not readable, or the key is not the certificate's.
    """

    def __init__(self, certificate_file: str, key_file: str) -> None:
        if not certificate_file:
            raise UserError('[daemon] wire = "tls" needs certificate_file', fix="name a PEM file, and its key_file")
        self._files = [name for name in (certificate_file, key_file) if name]
        self._seen = states(self._files)
        self.context = self._loaded()

    def reload(self) -> bool:
        """Load the files again if they changed; True if they had. Unusable files are refused: the old certificate stays.

        Raises:
            UserError: the changed files cannot be used; said once for each change.
        """
        state = states(self._files)
        if state == self._seen:
            return False
        self._seen = state
        self.context = self._loaded()
        return True

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # A key with a passphrase would be asked for on the terminal, for ever.
        secret = lambda: b""  # noqa: E731
        try:
            for name in self._files:
                require_file(Path(name))
            context.load_cert_chain(self._files[0], self._files[1] if len(self._files) > 1 else None, password=secret)
        except (OSError, ValueError) as error:
            fix = "PEM, readable for the daemon's account; the key belongs to the certificate and has no passphrase"
            raise FileError(self._files[0], f"cannot be used with its key: {error}", fix=fix) from error
        return context
