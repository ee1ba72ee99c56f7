"""Since when the slurmctld that answers is in charge, where slurm.conf names several (SlurmctldHost).

BOOT_TIME is the start of its process: that of a backup is days before it took over (22.05 to 26.05). So the process that
answers is looked at with each snapshot, and one with another BOOT_TIME has taken over in between; two that were started in
the same second are not told apart. sdiag says more exactly when it began to work ("Data since"), unless that was set back
since: at midnight UTC, while it is in charge, or by a person. Of a second takeover of the same process it tells the first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sentinel.errors import Unavailable
from sentinel.text import text_of

_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
_AGREE = timedelta(seconds=2)  # slurmctld says whole seconds
_KEPT_S = 600.0  # a site that has one slurmctld gets a second one seldom, and slurmctld is started again for it
_AGAIN_S = 10.0  # after no answer; soon, as a takeover is
_SET_BACK = timedelta(minutes=2)  # after midnight UTC: slurmctld looks at the time between its other work


def by_own_clock(at: datetime, *, said: datetime, asked: datetime, answered: datetime) -> datetime:
    """A time of slurmctld's, by the clock of whoever ``asked`` it for the time and was ``answered``: it ``said`` its own."""
    if said < asked - _AGREE:
        return at + (asked - said)
    return at + (answered - said) if said > answered + _AGREE else at


def _utc(time: str) -> datetime:
    return datetime.fromisoformat(f"{time}+00:00")  # asked with TZ=UTC


@dataclass(frozen=True, slots=True)
class _Answering:
    """The process that answers, by its BOOT_TIME; all times by this host's clock."""

    booted: datetime  # by slurmctld's clock
    since: datetime | None  # None: not known
    last: datetime  # when it was asked last


@dataclass(frozen=True, slots=True)
class _Counted:
    """What sdiag says: since when slurmctld counts, by its clock and by ours."""

    said: datetime
    since: datetime
    since_by_us: datetime

    @property
    def set_back(self) -> bool:
        """Whether this is a midnight, on which counting begins anew."""
        return self.since - self._midnight(self.since) < _SET_BACK

    @property
    def stale(self) -> bool:
        """Whether midnight has not set it back: then the process was not in charge at that time, and took over again."""
        return self.since < self._midnight(self.said - _SET_BACK)

    @staticmethod
    def _midnight(at: datetime) -> datetime:
        return at.replace(hour=0, minute=0, second=0, microsecond=0)


class InCharge:
    """See the module's docstring.

    Args:
        ask: stdout of a command of Slurm's; raises Unavailable.
        now: aware UTC.
        seconds: a monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[..., Awaitable[bytes]],
        now: Callable[[], datetime],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._now = now
        self._seconds = seconds
        self._several = False
        self._until_s = float("-inf")  # until then a site has one slurmctld
        self._answering: _Answering | None = None

    async def look(self) -> None:
        """Note who answers, where there are several; what is not known stays so. One request, and a second at a change."""
        if not self._several and self._seconds() < self._until_s:
            return
        self._until_s = self._seconds() + _AGAIN_S
        try:
            await self.since()
        except Unavailable:
            return

    async def since(self) -> datetime | None:
        """When the slurmctld that answers was started, or took over, by this host's clock; None: not known.

        Raises:
            Unavailable: none answers.
        """
        asked = self._now()
        text = text_of(await self._ask("scontrol", "show", "config"))
        booted = re.search(rf"^BOOT_TIME\s*=\s*{_TIME}\s*$", text, re.MULTILINE)
        now = re.search(rf"^Configuration data as of {_TIME}\s*$", text, re.MULTILINE)  # slurmctld's, when it answered
        if booted is None or now is None:
            return None
        answered = self._now()
        started = by_own_clock(_utc(booted[1]), said=_utc(now[1]), asked=asked, answered=answered)
        self._several = len(re.findall(r"^SlurmctldHost\[\d+\]", text, re.MULTILINE)) > 1
        self._until_s = self._seconds() + _KEPT_S
        if not self._several:
            self._answering = None
            return started
        return await self._of_several(_utc(booted[1]), started, asked)

    async def _of_several(self, booted: datetime, started: datetime, asked: datetime) -> datetime | None:
        before = self._answering
        if before is None or before.booted != booted:
            since = await self._since(started, before.last if before is not None else None)
        else:
            since = before.since or await self._since(started, None)
        self._answering = _Answering(booted, since, asked)
        return since

    async def _since(self, started: datetime, other: datetime | None) -> datetime | None:
        """Since when the process works that was ``started`` then; ``other``: when another one was last seen to answer."""
        counted = await self._counted()
        if other is not None:
            seen = self._now()  # at the latest
            exactly = counted is not None and other - _AGREE <= counted.since_by_us <= seen
            return max(started, counted.since_by_us if counted is not None and exactly else seen)
        if counted is None or counted.stale:
            return None
        # In charge since before midnight, for all that is known: longer ago than anything is asked about.
        return started if counted.set_back else max(started, counted.since_by_us)

    async def _counted(self) -> _Counted | None:
        asked = self._now()
        try:
            text = text_of(await self._ask("sdiag"))
        except Unavailable:
            return None
        said, since = (
            re.search(rf"^{words}\s.*\((\d{{1,11}})\)\s*$", text, re.MULTILINE)
            for words in ("sdiag output at", "Data since")
        )
        if said is None or since is None:
            return None
        said_at = datetime.fromtimestamp(int(said[1]), UTC)
        at = datetime.fromtimestamp(int(since[1]), UTC) if int(since[1]) else said_at  # 0: it is only just beginning
        return _Counted(said_at, at, by_own_clock(at, said=said_at, asked=asked, answered=self._now()))
