"""Takes Slurm snapshots: one request at a time, shared between callers, never older than a caller allows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.records import Fleet, NodeView, Unread
from sentinel.model.spares import Spares
from sentinel.ports import SlurmReader
from sentinel.telemetry import UNREAD, Telemetry

_PAUSES_S = (0.5, 1.0, 2.0, 5.0)
_NEWS_S = 1.0  # least time between snapshots taken because of evidence about unknown jobs


class FleetSnapshots:
    def __init__(
        self,
        reader: SlurmReader,
        live: ClusterView,
        telemetry: Telemetry,
        log: Log,
        *,
        seconds: Callable[[], float] | None = None,
        spares: str = "",
    ) -> None:
        """``seconds``: a monotonic clock; the system's where none is given. ``spares``: a reservation to read with it."""
        self._reader = reader
        self._spares = spares
        self._spares_problem = ""  # why the spare nodes are not known
        self._seconds = seconds or time.monotonic
        self._live = live
        self._answered = telemetry.snapshots.labels(result="answered")
        self._unavailable = telemetry.snapshots.labels(result="unavailable")
        self._unread = {what: telemetry.unread.labels(what=what) for what in UNREAD}
        self._log = log
        self._said: set[Unread] = set()  # unreadable records that were logged already
        self._lock = asyncio.Lock()
        self._taken_s = self._tried_s = self._changed_s = float("-inf")
        self._failures = 0  # requests without an answer
        self._news = asyncio.Lock()
        self.observed: Callable[[Fleet], None] = live.see_fleet  # called with each new snapshot
        self.unanswered: Callable[[Unavailable], None] = lambda _error: None  # called for each failed one
        self.problem = ""  # why the last request failed; empty if it succeeded

    async def take(self, max_age_s: float = 0.0) -> Fleet:
        """A snapshot that is at most ``max_age_s`` old at the time of the call, and was begun after ``changed_by_us``.

        Who waits for another's request shares its failure: otherwise each would wait for Slurm in turn.

        Raises:
            Unavailable: Slurm did not answer: nothing is known.
        """
        asked_s, failures = self._seconds(), self._failures
        async with self._lock:
            young = self._taken_s >= asked_s - max_age_s and not self._is_outdated()
            if self._live.fleet is not None and young:
                return self._live.fleet
            if self._failures != failures:
                raise Unavailable(self.problem)
            begun_s = self._tried_s = self._seconds()
            try:
                fleet = await self._reader.fleet()
                if self._spares:
                    fleet = replace(fleet, spares=await self._read_spares())
            except Unavailable as error:
                self._unavailable.inc()
                self._failures += 1
                if error.message != self.problem:
                    self._log.warning("slurm-unavailable", reason=error.message)
                self.problem = error.message
                self.unanswered(error)
                raise
            if self.problem:
                self._log.info("slurm-answers-again")
            self.problem = ""
            self._answered.inc()
            self._taken_s = begun_s
            self.observed(fleet)
            self._say_unread(fleet)
            return fleet

    async def node(self, name: str, max_age_s: float) -> NodeView | None:
        """A node that was seen before, as Slurm has it now, or as it was last seen while Slurm does not answer."""
        if self._live.fleet is None or name not in self._live.fleet.nodes:
            return None
        if not self.problem:
            with contextlib.suppress(Unavailable):
                await self.take(max_age_s)
        return self._live.fleet.nodes.get(name)

    def changed_by_us(self) -> None:
        """Something was changed in Slurm for an operator: the next who looks must see it."""
        self._changed_s = self._seconds()

    def _is_outdated(self) -> bool:
        """Whether the newest snapshot may be from before a change of ours."""
        return self._taken_s <= self._changed_s > float("-inf")

    async def after_changes(self) -> Fleet | None:
        """The newest snapshot, whatever its age, but not one from before ``changed_by_us`` if Slurm answers."""
        if self._is_outdated() and not self.problem:
            with contextlib.suppress(Unavailable):
                await self.take()
        return self._live.fleet

    async def take_news(self) -> Fleet:
        """A snapshot begun after the call. Concurrent callers share it; at most one per second is taken.

        Raises:
            Unavailable: Slurm did not answer.
        """
        asked_s = self._seconds()
        async with self._news:
            if self._tried_s < asked_s:
                await asyncio.sleep(max(0.0, self._tried_s + _NEWS_S - self._seconds()))
            elif self._taken_s < asked_s and not self._lock.locked():  # else one begun since is under way
                raise Unavailable(self.problem or "slurmctld did not answer")
            return await self.take(self._seconds() - asked_s)

    async def _read_spares(self) -> Spares | None:
        """Read the reservation of spare nodes; None: not known, from which nothing is concluded."""
        found, problem = None, ""
        try:
            found = await self._reader.spares(self._spares)
            problem = "" if found is not None else "Slurm has no reservation of this name"
        except Unavailable as error:
            problem = error.message
        if problem and problem != self._spares_problem:
            self._log.warning("spares-not-known", reservation=self._spares, reason=problem)
        self._spares_problem = problem
        return found

    def _say_unread(self, fleet: Fleet) -> None:
        """Log each unreadable record once, and set the metric of their number."""
        for what, unread in self._unread.items():
            unread.set(sum(1 for item in fleet.unread if item.what == what))
        for item in fleet.unread:
            if item not in self._said:
                self._log.warning("slurm-record-unreadable", what=item.what, name=item.name, reason=item.reason)
        self._said = set(fleet.unread)

    async def take_until_answered(self, max_age_s: float = 0.0) -> Fleet:
        """Like ``take``, but tries again until Slurm answers."""
        failures = 0
        while True:
            try:
                return await self.take(max_age_s)
            except Unavailable:
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
