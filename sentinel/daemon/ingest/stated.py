"""Decides what a node may state: about itself and jobs that ran on it, and nothing that only the daemon finds out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Unavailable
from sentinel.model.records import Evidence, Source, Trust

# What only the daemon finds out by itself; no node states it.
_DAEMONS_OWN = frozenset({Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR})
# Read from what users' programs wrote, which names other nodes as well.
_USERS_WORDS = frozenset({Source.JOB_LOG, Source.ERROR_FILE, Source.FLIGHT_RECORDER})
_MOST_PAST = 20  # jobs of one request that are looked for in the store; its sender sends the rest again

Attempt = tuple[int, int | None]  # a job, and its attempt where one is named


def may_state(live: ClusterView, node: str, item: Evidence) -> bool | None:
    """Whether a node may state this; None: the newest snapshot of Slurm does not say whether the job ran there.

    What users' programs print may name any node; it proves nothing about one.
    """
    where = item.where
    if item.source in _DAEMONS_OWN:
        return False
    if where.node not in (None, node) and item.trust is not Trust.USER and item.source not in _USERS_WORDS:
        return False
    return True if where.job is None else live.ran_on(where.job, where.attempt, node)


class Allocations:
    """Where jobs ran of which the newest snapshot does not say it: they began just now, or ended long ago."""

    def __init__(
        self, live: ClusterView, fleets: FleetSnapshots, past: Callable[[int], Sequence[Mapping[str, Any]]]
    ) -> None:
        """``past``: the attempts of a job as snapshots showed them, from the store. Blocking."""
        self._live = live
        self._fleets = fleets
        self._past = past

    async def ran_on(self, node: str, asked: Iterable[Attempt]) -> dict[Attempt, bool]:
        """Whether these ran on ``node``, by a snapshot that is newer than the call or by the store.

        Those are missing of which nothing is known: Slurm or the store do not answer, or more were asked for than are
        looked for at once. What neither knows did not run there.
        """
        found: dict[Attempt, bool] = {}
        open_: list[Attempt] = []
        try:
            await self._fleets.take_news()
            for attempt in asked:
                ran = self._live.ran_on(*attempt, node)
                if ran is None:
                    open_.append(attempt)
                else:
                    found[attempt] = ran
            for job, number in islice(open_, _MOST_PAST):
                rows = await asyncio.to_thread(self._past, job)
                found[job, number] = any(number in (None, row["attempt"]) and node in row["nodes"] for row in rows)
        except Unavailable:
            pass  # its sender keeps it
        return found
