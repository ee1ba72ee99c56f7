"""Encrypts bodies of requests and answers by MUNGE, for one uid, and decrypts them (``sentinel.protocol``)."""

from __future__ import annotations

from sentinel.errors import Denied, ProtocolError
from sentinel.ports import Credentials
from sentinel.protocol import MOST_HEAD, PART_BYTES, joined, parts_of

_MOST_CREDENTIAL = 1 << 20  # characters: munged's own limit


def encrypted(credentials: Credentials, body: bytes, uid: int) -> bytes:
    """Encrypt ``body`` so that only processes of ``uid`` can read it. Blocking."""
    return "\n".join(credentials.encrypt(part, uid) for part in parts_of(body)).encode("ascii")


def decrypted(credentials: Credentials, sent: bytes, uid: int, most_bytes: int) -> bytes:
    """The body that ``uid`` encrypted for us. Blocking.

    Raises:
        Denied: it is for somebody else, or not from ``uid``.
        ProtocolError: not an encrypted body, or one of more than ``most_bytes``: munged unpacks what a sender has packed.
        Unavailable: munged does not answer.
    """
    parts, length = [], 0
    lines = sent.split(b"\n")
    if len(lines) > most_bytes // PART_BYTES + 1:  # each costs munged a tenth of a millisecond
        raise ProtocolError(f"the encrypted body has {len(lines)} parts, more than one of {most_bytes} bytes needs")
    for line in lines:
        if not line or len(line) > _MOST_CREDENTIAL:
            raise ProtocolError("the encrypted body holds a line that is no credential")
        signed = credentials.decode(line.decode("ascii", "replace"))
        if signed.uid != uid:
            raise Denied("a part of the body was encrypted by somebody else")
        parts.append(signed.payload)
        length += len(signed.payload)
        if length > most_bytes + MOST_HEAD * len(parts):
            raise ProtocolError(f"the encrypted body is longer than {most_bytes} bytes")
    try:
        return joined(parts)
    except ValueError as error:
        raise ProtocolError(f"the encrypted body: {error}") from error
