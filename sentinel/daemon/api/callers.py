"""Finds out who sends a request: checks its credential, once in the credential's life, and bounds what one caller may ask.

munged refuses a credential that it has seen, but forgets what it saw when it is restarted; therefore the credentials are
remembered here as well.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from sentinel.errors import Denied, Unavailable
from sentinel.log import Log
from sentinel.ports import Signed

MOST_CREDENTIAL = 4096  # characters; one of ours has about 250
_REMEMBERED = 1_000_000  # credentials; 2,048 nodes send 300,000 in the five minutes of a credential's life
_OF_ONE_USER = 10_000  # of a person's, who chooses how long they live: 33 requests a second for five minutes
_OF_ALL_USERS = _REMEMBERED // 2  # the rest is kept for nodes and operators
_BUCKET_S = 60.0  # those that expire in the same minute are forgotten together
_LONGEST_S = 3600.0  # MUNGE's upper limit of a credential's life
_AT_ONCE = 4  # requests of a person that are under way; the command line sends one after the other
_LINES = 5  # denied requests of one address that are logged in each period; the others are counted
_PERIOD_S = 60.0
_PEERS = 1024  # addresses whose lines are counted; a flood from more is logged by its sum alone


class UsedCredentials:
    """Remembers credentials until they expire.

    Args:
        now_s: Unix time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._used: dict[int, dict[bytes, int | None]] = {}  # by the minute of their end: of which person each is
        self._count = 0
        self._of_users: Counter[int] = Counter()

    def use(self, credential: str, signed: Signed, *, person: bool = False) -> None:
        """Note the first use of a credential. ``person``: of somebody who neither speaks for nodes nor is an operator.

        Raises:
            Denied: it was used before.
            Unavailable: so many are remembered that no other one can be, of this person or in all.
        """
        now_s = self._now_s()
        for bucket in [bucket for bucket in self._used if (bucket + 1) * _BUCKET_S < now_s]:
            gone = self._used.pop(bucket)
            self._count -= len(gone)
            self._of_users -= Counter(uid for uid in gone.values() if uid is not None)
        digest = hashlib.blake2b(credential.encode(), digest_size=16).digest()
        if any(digest in bucket for bucket in self._used.values()):
            raise Denied("the credential was used before")
        full = person and (self._of_users[signed.uid] >= _OF_ONE_USER or self._of_users.total() >= _OF_ALL_USERS)
        if full or self._count >= _REMEMBERED:
            raise Unavailable("too many requests: their credentials cannot all be remembered", fix="try again later")
        # munged also takes one whose maker's clock is ahead by a credential's life.
        ends_s = (now_s if signed.made_s is None else signed.made_s) + signed.lives_s
        ends_s = max(now_s, min(ends_s, now_s + 2 * _LONGEST_S))
        self._used.setdefault(int(ends_s // _BUCKET_S), {})[digest] = signed.uid if person else None
        self._count += 1
        if person:
            self._of_users[signed.uid] += 1


class Turns:
    """Bounds the requests of one user that are under way."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()

    def turn(self, uid: int | None) -> AbstractContextManager[None]:
        """Count a request of ``uid`` while the block runs; None: of somebody who is not bounded.

        Raises:
            Unavailable: the user has so many under way that another one has to wait.
        """
        return nullcontext() if uid is None else self._turn(uid)

    @contextmanager
    def _turn(self, uid: int) -> Iterator[None]:
        if self._under_way[uid] >= _AT_ONCE:
            raise Unavailable(f"{_AT_ONCE} requests of uid {uid} are under way", fix="wait for their answers")
        self._under_way[uid] += 1
        try:
            yield
        finally:
            self._under_way[uid] -= 1
            if not self._under_way[uid]:
                del self._under_way[uid]


@dataclass(slots=True)
class DenialLog:
    """Logs denied requests: a few of each address in a period, the others by their number.

    Attributes:
        seconds: a monotonic clock.
    """

    log: Log
    seconds: Callable[[], float]
    _since_s: float = float("-inf")
    _lines: Counter[str] = field(default_factory=Counter)
    _kept_back: int = 0

    def denied(self, path: str, peer: str, reason: str) -> None:
        now_s = self.seconds()
        if now_s - self._since_s >= _PERIOD_S:
            self.flush()
            self._since_s = now_s
        known = peer in self._lines or len(self._lines) < _PEERS
        if not known or self._lines[peer] >= _LINES:
            self._kept_back += 1
            return
        self._lines[peer] += 1
        self.log.warning("request-denied", path=path, peer=peer, reason=reason)

    def flush(self) -> None:
        """Log how many lines were kept back, and begin a new period."""
        if self._kept_back:
            self.log.warning("requests-denied", more=self._kept_back, addresses=len(self._lines))
        self._lines.clear()
        self._kept_back = 0
