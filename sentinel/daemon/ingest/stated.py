"""Decides what evidence a node may send: about itself and jobs that ran on it, from sources that a node can read, of kinds
that a node can see, and of no time that is still to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Unavailable
from sentinel.model.identity import CLOCKS_DIFFER
from sentinel.model.records import Evidence, Source
from sentinel.model.vocabulary import JOB_OUTPUT, NOT_OF_LINES, OF_DAEMON

# Sources that only the daemon reads, or judges over time; no node may send their evidence.
_DAEMONS_OWN = frozenset({Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR, Source.PROGRESS})
_MOST_PAST = 20  # most jobs of one request that are looked up in the store; the node sends the rest again

Attempt = tuple[int, int | None]  # a job, and its attempt where one is named


def as_received(live: ClusterView, node: str, item: Evidence, now: datetime) -> Evidence:
    """Evidence of ``node`` that came ``now``, with what its sender cannot know better.

    It was read before, and happened before by the node's clock, as far as its heartbeats show that. What names a job and
    no attempt is of the newest attempt known to have been on the node: that of the job may run on others.
    """
    where, ahead_s = item.where, max(0.0, live.node(node).clock_offset_s or 0.0)
    latest_s = CLOCKS_DIFFER.total_seconds() + ahead_s
    if where.job is not None and where.attempt is None:
        item = replace(item, where=replace(where, attempt=live.attempt_with(where.job, node)))
    at = now + timedelta(seconds=latest_s) if (item.at - now).total_seconds() > latest_s else item.at
    return item if at == item.at and item.seen_at <= now else replace(item, at=at, seen_at=min(item.seen_at, now))


def may_state(live: ClusterView, node: str, item: Evidence) -> bool | None:
    """Whether a node may send this evidence; None: the newest Slurm snapshot does not tell whether the job ran there.

    Output of users' programs may name any node; it proves nothing about a node, and counts for the job that wrote it only.
    """
    where = item.where
    if item.source in _DAEMONS_OWN or item.kind in OF_DAEMON:
        return False
    if item.source in JOB_OUTPUT:  # by what the sender calls it
        if where.job is None or item.kind in NOT_OF_LINES:
            return False
    elif where.node not in (None, node):
        return False
    if where.job is None:
        return True
    ran = live.ran_on(where.job, where.attempt, node)
    # Without an attempt it would count for the newest one, wherever that runs: who knows of one is asked first.
    return ran if where.attempt is not None or ran is False else None


class Allocations:
    """Looks up where jobs ran that the newest snapshot does not contain: they started just now or ended long ago."""

    def __init__(
        self, live: ClusterView, fleets: FleetSnapshots, past: Callable[[int], Sequence[Mapping[str, Any]]]
    ) -> None:
        """``past``: the attempts of a job as snapshots showed them, from the store. Blocking."""
        self._live = live
        self._fleets = fleets
        self._past = past

    async def ran_on(self, node: str, asked: Iterable[Attempt]) -> dict[Attempt, int | None]:
        """The attempt that ran on ``node``, by a snapshot newer than the call, or else by the store; where none is named
        the newest of the job that did. None: it did not run there.

        An attempt is missing from the answer if that is not known: Slurm or the store did not answer, or there were
        more than ``_MOST_PAST``. An attempt that neither Slurm nor the store knows did not run there.
        """
        found: dict[Attempt, int | None] = {}
        open_: list[Attempt] = []
        try:
            await self._fleets.take_news()
            for job, named in asked:
                ran = self._live.ran_on(job, named, node)
                number = self._live.attempt_with(job, node) if named is None else named
                if ran is False:
                    found[job, named] = None
                elif ran and number is not None:
                    found[job, named] = number
                else:
                    open_.append((job, named))
            for job, named in islice(open_, _MOST_PAST):
                rows = await asyncio.to_thread(self._past, job)
                there = (row["attempt"] for row in rows if node in row["nodes"])
                found[job, named] = max((number for number in there if named in (None, number)), default=None)
        except Unavailable:
            pass  # not known: the node keeps the evidence and sends it again
        return found
