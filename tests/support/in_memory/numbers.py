"""A training job in a Slurm in memory whose step lines go the whole way: the reader of logs, the daemon, the receivers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from made_records import evidence
from shipped import shipped_signatures

from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import Fate, World
from sentinel.config.settings import Settings
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, Source, Where

SIGNATURES = shipped_signatures()
GAP_S = 2.0  # between printed steps
CALM = tuple(2.0 + 0.01 * (n % 5) for n in range(60))


def steps(*losses: float, first: int = 1, every: int = 1) -> list[str]:
    return [f"step {first + every * n} | loss {loss:.4f} | step time 0.4 s" for n, loss in enumerate(losses)]


def gone(count: int, first: int) -> list[str]:
    return steps(*[math.nan] * count, first=first)


class Training:
    """One job and the daemon that watches it; ``restart_daemon`` leaves nothing but the store."""

    def __init__(
        self,
        world: World,
        *,
        on: Sequence[str] = ("n1", "n2"),
        settings: Settings = SETTINGS,
        user: str = "ada",
        fate: Fate | None = None,
        **asked: object,
    ) -> None:
        self.world, self.settings, self.sink = world, settings, FakeSink()
        world.slurm.cancel(world.job)
        comment = json.dumps({"sentinel": {"restart": True, "global": ["/shared/run"], **asked}})
        self.job = world.job = world.slurm.submit(nodes=len(on), required=tuple(on), comment=comment, user=user)
        self.this.required = ()  # it was to begin there, and may go on elsewhere
        self.daemon = Daemon(world, [self.sink], settings=settings, fate=fate)
        self._readers: dict[int, LogReader] = {}

    def restart_daemon(self) -> None:
        self.daemon = Daemon(self.world, [self.sink], settings=self.settings)

    @property
    def this(self) -> Any:
        return self.world.slurm.jobs[self.job]

    def read(self, lines: Iterable[str]) -> list[Evidence]:
        """What an agent makes of these lines, one printed step after the other."""
        attempt = self.this.restarts
        where = Where(node=self.this.on[0], job=self.job, attempt=attempt, path=f"/log/{self.job}.{attempt}")
        reader = self._readers.setdefault(attempt, LogReader(SIGNATURES, source=Source.JOB_LOG, where=where))
        found: list[Evidence] = []
        for line in lines:
            found += reader.feed(f"{line}\n".encode(), self.world.slurm.clock.advance(GAP_S))
        return found

    async def prints(self, *lines: str) -> None:
        await self.daemon.fleets.take()
        for item in self.read(lines):
            assert await self.daemon.observe([item])
        await self.quiet()

    async def says(self, *items: Evidence) -> None:
        assert await self.daemon.observe(items)
        await self.quiet()

    async def quiet(self) -> None:
        await self.daemon.quiet()
        assert self.daemon.bugs() == 0, self.daemon.said

    @property
    def now_s(self) -> float:
        """Seconds since the records of tests begin."""
        return self.world.slurm.clock.now().timestamp() - evidence().at.timestamp()

    def rows(self, attempt: int | None = None) -> list[dict[str, Any]]:
        """Its incidents, oldest first."""
        found = reversed(self.world.store.incident_rows(job=self.job))
        return [row for row in found if attempt is None or row["attempt"] == attempt]
