"""Decides what evidence a node may send: about itself and jobs that ran on it, from sources that a node can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Unavailable
from sentinel.model.records import Evidence, Source

# Sources that only the daemon reads; no node may send their evidence.
_DAEMONS_OWN = frozenset({Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR})
# Sources written by users' programs, which may name other nodes too.
_USERS_WORDS = frozenset({Source.JOB_LOG, Source.ERROR_FILE, Source.FLIGHT_RECORDER})
_MOST_PAST = 20  # most jobs of one request that are looked up in the store; the node sends the rest again

Attempt = tuple[int, int | None]  # a job, and its attempt where one is named


def may_state(live: ClusterView, node: str, item: Evidence) -> bool | None:
    """Whether a node may send this evidence; None: the newest Slurm snapshot does not tell whether the job ran there.

    Output of users' programs may name any node; it proves nothing about a node.
    """
    where = item.where
    if item.source in _DAEMONS_OWN:
        return False
    if where.node not in (None, node) and item.source not in _USERS_WORDS:  # the sender chooses what it calls a user's
        return False
    return True if where.job is None else live.ran_on(where.job, where.attempt, node)


class Allocations:
    """Looks up where jobs ran that the newest snapshot does not contain: they started just now or ended long ago."""

    def __init__(
        self, live: ClusterView, fleets: FleetSnapshots, past: Callable[[int], Sequence[Mapping[str, Any]]]
    ) -> None:
        """``past``: the attempts of a job as snapshots showed them, from the store. Blocking."""
        self._live = live
        self._fleets = fleets
        self._past = past

    async def ran_on(self, node: str, asked: Iterable[Attempt]) -> dict[Attempt, bool]:
        """Whether these attempts ran on ``node``, by a snapshot newer than the call, or else by the store.

        An attempt is missing from the answer if that is not known: Slurm or the store did not answer, or there were
        more than ``_MOST_PAST``. An attempt that neither Slurm nor the store knows did not run there.
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
            pass  # not known: the node keeps the evidence and sends it again
        return found
