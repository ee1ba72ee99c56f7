"""The daemon's clock: it does not jump, whatever happens to that of the host.

What waits is due at a time, and limits count what was done in the last hour. If the host's clock is set back by an hour in
the middle of a recovery, or the next daemon runs on a host whose clock is behind, all that waits would wait an hour longer;
set forward, the drains of this hour would be those of an hour ago, and the limits would allow them again.

A host may boot with a clock that is years off (no battery), and get the time from NTP seconds later: the daemon starts anew
then, since its own would follow for years.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sentinel.adapters.store.store import Store
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Unavailable
from sentinel.model.identity import CLOCKS_DIFFER

# Seconds a second, until it agrees with the host's: a wait takes at most twice its time, and a limit of so many in an hour
# allows them in 48 minutes.
_SLOWEST, _FASTEST = 0.5, 1.25
HOST_CLOCK_S = 10.0  # between two looks at whether it was set by days
_FOLLOWED = timedelta(days=1)  # it agrees again within days, and what is due meanwhile waits for twice its time at most
_MOST_AHEAD = timedelta(days=1)  # a clock that was further ahead was a mistake, and is not gone on with for days


def boottime_s() -> float:
    """Monotonic seconds, also counting while this host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """UTC. After the host's clock was set, it goes slower or faster until both agree."""

    def __init__(
        self,
        host: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = boottime_s,
    ) -> None:
        self._host = host
        self._seconds = seconds
        self._last = host(), seconds()  # one value: threads ask, too
        self._written: tuple[datetime, float] | None = None

    def host(self) -> datetime:
        """What the host's clock says now, however far off."""
        return self._host()

    def since_written(self) -> datetime | None:
        """The newest time that the daemon before this one wrote down, and the seconds that passed since this one read it:
        earlier than now by the time in which no daemon ran. None: it wrote none."""
        if self._written is None:
            return None
        at, read_s = self._written
        return at + timedelta(seconds=max(0.0, self._seconds() - read_s))

    def go_on_from(self, at: datetime) -> None:
        """The newest time that the daemon before this one wrote down."""
        now, now_s = self.now(), self._last[1]
        self._written = at, now_s
        if now < at <= now + _MOST_AHEAD:
            self._last = at, now_s

    def now(self) -> datetime:
        last, last_s = self._last
        at, now_s = self._host(), self._seconds()
        passed = timedelta(seconds=max(0.0, now_s - last_s))
        at = min(max(at, last + passed * _SLOWEST), last + passed * _FASTEST)
        self._last = at, now_s
        return at


class ClockSet(Unavailable):
    pass


class HostClock:
    """Starts the daemon anew once its host's clock was set by days, or what a daemon before wrote whose clock was days ahead
    is dated back. That the host's clock is right its nodes say.
    """

    def __init__(
        self, clock: SteadyClock, live: ClusterView, store: Store, start_again: Callable[[ClockSet], None]
    ) -> None:
        """``start_again``: replaces this process by a fresh one, whose clock begins with its host's."""
        self._clock, self._live, self._store, self._start_again = clock, live, store, start_again

    async def look(self) -> None:
        """
        Raises:
            Unavailable: the store does not answer.
        """
        told_s = self._live.own_clock_ahead_s()
        if told_s is None:
            return
        ahead, own, host = timedelta(seconds=told_s), self._clock.now(), self._clock.host()
        written = self._clock.since_written()
        if abs(ahead) > _FOLLOWED and abs((own - host) - ahead) <= CLOCKS_DIFFER:
            why = f"the host's clock was set, and says {host:%F %T} where this daemon's says {own:%F %T}"
            self._start_again(ClockSet(why))
        elif abs(ahead) <= CLOCKS_DIFFER and written is not None and written > own + _MOST_AHEAD:
            await asyncio.to_thread(self._store.set_back, own, written - own)
            why = f"the daemon before wrote {written:%F %T}: what is dated later than {own:%F %T} is dated earlier by that"
            self._start_again(ClockSet(why))
