"""The client's side of a session with the daemon: signs requests and checks answers. Standard library only."""

from __future__ import annotations

import hmac
import time

from sentinel.protocol import answer_mark, digest_of, session_mark


class ClientSession:
    """
    Args:
        name: the daemon's name for it.
        uid: the daemon's, by the credential that brought the key.
    """

    def __init__(self, name: str, key: bytes, uid: int) -> None:
        self.uid = uid
        self.used = False  # whether the daemon took a request of it
        self._name = name
        self._key = key
        self._began_s = time.monotonic()
        self._stamp_us = -1

    def mark(self, path: str, body: bytes) -> str:
        """The signature of a request, valid once."""
        self._stamp_us = max(self._stamp_us + 1, int((time.monotonic() - self._began_s) * 1e6))
        return session_mark(self._key, self._name, self._stamp_us, digest_of(path, body).decode())

    def signs(self, mark: str, status: int, body: bytes, answered: str) -> bool:
        """Whether ``answered`` is the daemon's mark of its answer to the request with ``mark``."""
        return hmac.compare_digest(answer_mark(self._key, mark, status, body).encode(), answered.encode())
