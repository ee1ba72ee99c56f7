"""Sessions of agents: after one MUNGE credential, each request is signed with a key that only daemon and agent have.

Sessions are in memory only: a restarted daemon asks every agent for a credential. A session ends after
``[daemon] session_s``, is bound to the uid and the address that opened it, and accepts each request mark once: the time
stamps of marks must increase and match the session's age (``sentinel.protocol``).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.errors import SentinelError
from sentinel.ports import Signed
from sentinel.protocol import session_mark

# How far a stamp may differ from the session's age. Behind: the request was in transit; no agent waits longer for an
# answer, except for orders, so that a request held back for longer is refused. Ahead: clocks run at different speeds.
_BEHIND_S, _AHEAD_S = 60.0, 10.0
_WORDS = 5  # in a mark: "session", session name, stamp, digest, signature


class NoSession(SentinelError):
    """The session is not known, has ended, or the mark is not valid: the agent has to open another session."""


@dataclass(slots=True)
class Session:
    key: bytes
    signed: Signed  # the credential that opened it
    peer: str  # address of the connection
    began_s: float
    stamp_us: int = -1  # microseconds since it was opened, in the last mark


class Sessions:
    """The open sessions.

    Args:
        lives_s: lifetime of a session; 0: no sessions.
        most: limit; a further one replaces the oldest session of the address that has the most.
        seconds: a monotonic clock.
    """

    def __init__(self, lives_s: float, most: int, seconds: Callable[[], float]) -> None:
        self._lives_s = lives_s
        self._most = most
        self._seconds = seconds
        self._all: dict[str, Session] = {}  # the oldest first
        self._of_peer: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def offered(self) -> bool:
        return self._lives_s > 0

    def open(self, signed: Signed, peer: str) -> tuple[str, bytes]:
        """Open a session; returns its name and key."""
        now_s = self._seconds()
        while self._all and now_s - next(iter(self._all.values())).began_s > self._lives_s:
            self._end(next(iter(self._all)))
        if len(self._all) >= self._most:
            most = max(self._of_peer, key=lambda peer: len(self._of_peer[peer]))
            self._end(next(iter(self._of_peer[most])))
        name, key = secrets.token_hex(16), secrets.token_bytes(32)
        self._all[name] = Session(key, signed, peer, now_s)
        self._of_peer.setdefault(peer, {})[name] = None
        return name, key

    def check(self, mark: str, peer: str) -> tuple[Session, Signed]:
        """The session of a request, and what its mark signs. Uses up the mark.

        Raises:
            NoSession
        """
        session, signed, stamp_us = self.verified(mark, peer)
        self.used(session, stamp_us)
        return session, signed

    def used(self, session: Session, stamp_us: int) -> None:
        """Use up a verified mark, so that it is refused when replayed."""
        session.stamp_us = stamp_us

    def verified(self, mark: str, peer: str) -> tuple[Session, Signed, int]:
        """As ``check``, with the mark's stamp, but without using up the mark.

        Raises:
            NoSession
        """
        words = mark.split(" ")
        session = self._all.get(words[1]) if len(words) == _WORDS and mark.isascii() else None
        if session is None:
            raise NoSession("this session is not known here")
        age_s = self._seconds() - session.began_s
        if age_s > self._lives_s:
            self._end(words[1])
            raise NoSession("the session has ended")
        stamp_us = int(words[2]) if words[2].isdecimal() else -1  # few digits, since the mark's length is bounded
        if not hmac.compare_digest(mark.encode(), session_mark(session.key, words[1], stamp_us, words[3]).encode()):
            raise NoSession("the request is not signed by its session")
        if peer != session.peer:
            raise NoSession(f"the session was opened from {session.peer}")
        if stamp_us <= session.stamp_us:
            raise NoSession("a request of this session was sent before, or overtaken")
        if not -_AHEAD_S <= age_s - stamp_us / 1e6 <= _BEHIND_S:
            raise NoSession("the request was not sent just now, by the session's clock")
        by = session.signed
        return session, Signed(words[3].encode(), by.uid, by.gid, by.address), stamp_us

    def _end(self, name: str) -> None:
        peer = self._all.pop(name).peer
        of_peer = self._of_peer[peer]
        del of_peer[name]
        if not of_peer:
            del self._of_peer[peer]
