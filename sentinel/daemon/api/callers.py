"""Refuses credentials that are used twice, bounds concurrent requests of one person, and logs denied requests.

munged refuses a replayed credential, but forgets those it has seen when it is restarted; therefore they are remembered
here as well.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field

from sentinel.errors import Denied, Unavailable
from sentinel.log import Log
from sentinel.ports import Signed

MOST_CREDENTIAL = 4096  # characters; one of ours has about 250
_REMEMBERED = 1_000_000  # credentials; 2,048 nodes send 300,000 in the five minutes of a credential's life
_OF_ONE_USER = 10_000  # credentials of one person, who chooses their lifetime: 33 requests a second for 5 min
_OF_ALL_USERS = _REMEMBERED // 2  # the rest is kept for nodes and operators
_BUCKET_S = 60.0  # credentials that expire in the same period are forgotten together
_LONGEST_S = 3600.0  # MUNGE's upper limit of a credential's life
_AT_ONCE = 4  # concurrent requests of one person; the command line sends one at a time
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
        self._used: dict[int, dict[bytes, int | None]] = {}  # minute of expiry -> credential -> its person's uid
        self._count = 0
        self._of_users: Counter[int] = Counter()

    def use(self, credential: str, signed: Signed, *, person: bool = False) -> None:
        """Record the first use of a credential. ``person``: its sender neither speaks for nodes nor is an operator.

        Raises:
            Denied: it was used before.
            Unavailable: the number of remembered credentials is at its limit, for this person or in total.
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
        # munged also accepts a credential of a host whose clock is ahead by up to the credential's lifetime.
        ends_s = (now_s if signed.made_s is None else signed.made_s) + signed.lives_s
        ends_s = max(now_s, min(ends_s, now_s + 2 * _LONGEST_S))
        self._used.setdefault(int(ends_s // _BUCKET_S), {})[digest] = signed.uid if person else None
        self._count += 1
        if person:
            self._of_users[signed.uid] += 1


class Turns:
    """Bounds the concurrent requests of one person.

    Args:
        most: of one person at once.
    """

    def __init__(self, most: int = _AT_ONCE) -> None:
        self._most = most
        self._under_way: Counter[Hashable] = Counter()

    def turn(self, person: Hashable | None) -> AbstractContextManager[None]:
        """Count a request of ``person`` (a uid or a name) while the block runs; None: a caller without a limit.

        Raises:
            Unavailable: the person's concurrent requests are at their limit.
        """
        return nullcontext() if person is None else self._turn(person)

    @contextmanager
    def _turn(self, person: Hashable) -> Iterator[None]:
        if self._under_way[person] >= self._most:
            whose = f"uid {person}" if isinstance(person, int) else f"{person!s:.80}"
            raise Unavailable(f"{self._most} requests of {whose} are under way", fix="wait for their answers")
        self._under_way[person] += 1
        try:
            yield
        finally:
            self._under_way[person] -= 1
            if not self._under_way[person]:
                del self._under_way[person]


class Places:
    """Has a few requests computed at once, one of each person: nobody waits for more than one of each other person.

    Args:
        most: at once, of all people.
    """

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._of: dict[Hashable, asyncio.Lock] = {}
        self._here: Counter[Hashable] = Counter()  # waiting or computed

    @asynccontextmanager
    async def place(self, person: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the block runs."""
        own = self._of.setdefault(person, asyncio.Lock())
        self._here[person] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._here[person] -= 1
            if not self._here[person]:
                del self._here[person], self._of[person]


@dataclass(slots=True)
class DenialLog:
    """Logs denied requests: the first few of each address in a period, and the number of the others.

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
        """Log how many lines were suppressed, and begin a new period."""
        if self._kept_back:
            self.log.warning("requests-denied", more=self._kept_back, addresses=len(self._lines))
        self._lines.clear()
        self._kept_back = 0
