"""Snapshots of the cluster: one at a time, shared by whoever needs one, never older than asked for."""

from __future__ import annotations

import asyncio
import time

from sentinel.daemon.live import Live
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model import Fleet
from sentinel.ports import SlurmReader
from sentinel.telemetry import Telemetry

_PAUSES_S = (0.5, 1.0, 2.0, 5.0)


class Fleets:
    def __init__(self, reader: SlurmReader, live: Live, telemetry: Telemetry, log: Log) -> None:
        self._reader = reader
        self._live = live
        self._telemetry = telemetry
        self._log = log
        self._lock = asyncio.Lock()
        self._taken_s = float("-inf")
        self.problem = ""  # why the last request failed; empty when it did not

    async def take(self, max_age_s: float = 0.0) -> Fleet:
        """A snapshot at most ``max_age_s`` old when asked for.

        Raises:
            Unavailable: Slurm did not answer: nothing is known.
        """
        asked_s = time.monotonic()
        async with self._lock:
            if self._live.fleet is not None and self._taken_s >= asked_s - max_age_s:
                return self._live.fleet
            begun_s = time.monotonic()
            try:
                fleet = await self._reader.fleet()
            except Unavailable as error:
                self._telemetry.snapshots.labels(result="unavailable").inc()
                if error.message != self.problem:
                    self._log.warning("slurm-unavailable", reason=error.message)
                self.problem = error.message
                raise
            if self.problem:
                self._log.info("slurm-answers-again")
            self.problem = ""
            self._telemetry.snapshots.labels(result="answered").inc()
            self._taken_s = begun_s
            self._live.see_fleet(fleet)
            return fleet

    async def insist(self, max_age_s: float = 0.0) -> Fleet:
        """A snapshot, however long Slurm takes to answer again."""
        failures = 0
        while True:
            try:
                return await self.take(max_age_s)
            except Unavailable:
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
