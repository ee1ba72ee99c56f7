"""Sessions of agents: MUNGE proves once who they are, and a key that only they have signs each following request.

A session is kept in memory only, so that a daemon that is started again asks every agent for a credential. It ends after
``[daemon] session_s``, is bound to the uid and the address that opened it, and each of its marks is good once: their stamps
must grow, and be as old as the session is (``sentinel.protocol``).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.errors import SentinelError
from sentinel.ports import Signed
from sentinel.protocol import session_mark

# How far a stamp may be behind or ahead of the session's age. Behind: what was sent is still on its way, and no agent waits
# longer for an answer, but for orders; a request that somebody held back longer is refused. Ahead: clocks run differently.
_BEHIND_S, _AHEAD_S = 60.0, 10.0
_WORDS = 5  # of a mark: "session", its name, the stamp, the digest, the signature


class NoSession(SentinelError):
    """The session is not known here, has ended, or its mark is not good: the agent opens another one."""


@dataclass(slots=True)
class Session:
    key: bytes
    signed: Signed  # by whose credential it was opened
    peer: str  # address of the connection
    began_s: float
    stamp_us: int = -1  # the last one


class Sessions:
    """
    Args:
        lives_s: for how long one is good; 0: there are none.
        most: at once; one more ends the oldest of the address that has most.
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
        """Name and key of a new session."""
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
        """The session of a request, and what its mark signs. A mark is good once.

        Raises:
            NoSession
        """
        session, signed, stamp_us = self.verified(mark, peer)
        self.used(session, stamp_us)
        return session, signed

    def used(self, session: Session, stamp_us: int) -> None:
        """A verified mark was taken in: it is not good again."""
        session.stamp_us = stamp_us

    def verified(self, mark: str, peer: str) -> tuple[Session, Signed, int]:
        """As ``check``, with the mark's stamp, and without using it up.

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
        stamp_us = int(words[2]) if words[2].isdecimal() else -1  # few digits: the mark's length is bounded
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
