"""The daemon's clock: it does not jump, whatever happens to that of the host.

What waits is due at a time, and limits count what was done in the last hour. If the host's clock is set back by an hour in
the middle of a recovery, or the next daemon runs on a host whose clock is behind, all that waits would wait an hour longer;
set forward, the drains of this hour would be those of an hour ago, and the limits would allow them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

# Seconds a second, until it agrees with the host's: a wait takes at most twice its time, and a limit of so many in an hour
# allows them in 48 minutes.
_SLOWEST, _FASTEST = 0.5, 1.25
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
