"""Asks nodes what lies in a job's checkpoint folders, and holds their answers to what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.checkpoints.fleet_parts import is_unread_root
from sentinel.checkpoints.records import Part
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.intent import Intent
from sentinel.model.orders import ListCheckpoints, Root
from sentinel.model.records import JobView
from sentinel.ports import Orders

_LISTERS = 3  # nodes tried, one after the other, for the shared folders


@dataclass(frozen=True, slots=True)
class Check:
    """How thoroughly nodes check; steps from ``before_step`` on hold bad numbers and are not read."""

    level: str
    before_step: int | None

    @classmethod
    def of(cls, onset: int | None, level: str) -> Check:
        """After bad numbers from step ``onset`` on the content counts, else what the site asks for."""
        return cls(level if onset is None else "content", onset)


class FolderListings:
    """``deadline_s``: for the answer of one node."""

    def __init__(self, orders: Orders, fleets: FleetSnapshots, deadline_s: float) -> None:
        self._orders = orders
        self._fleets = fleets
        self._deadline_s = deadline_s

    async def of_shared(self, job: JobView, intent: Intent, nodes: Sequence[str], check: Check) -> list[Part]:
        if not intent.global_roots:
            return []
        roots = [Root("global", root) for root in intent.global_roots]
        fleet = await self._fleets.take(30.0)
        partitions = set(job.asked_partitions)
        there = (n for n in fleet.nodes.values() if n.usable and not partitions.isdisjoint(n.partitions))
        others = [n.name for n in there if n.name not in nodes]
        problem: Unavailable | ProtocolError = Unavailable("no node is there to list the shared folders")
        unread: list[Part] = []
        for node in [*nodes, *others][:_LISTERS]:
            try:
                parts = await self.of(job, node, roots, check)
                if not any(map(is_unread_root, parts)):
                    return parts
                unread = unread or parts  # its mount may be gone; or there is no such folder yet
            except (Unavailable, ProtocolError) as error:
                problem = error
        if unread:
            return unread
        raise problem

    async def of(self, job: JobView, node: str, roots: Sequence[Root], check: Check) -> list[Part]:
        # The order names no user: the node determines the job's user itself and does not trust the daemon for that.
        order = ListCheckpoints(job.id, tuple(roots), check.level, check.before_step)
        answer = await self._orders.ask(node, order.kind, order.arguments(), deadline_s=self._deadline_s)
        listings = answer.get("listings") if isinstance(answer, dict) else None
        if not isinstance(listings, list):
            raise ProtocolError(f"{node}: the answer has no listings")
        try:
            parts = await asyncio.to_thread(_parts_of, listings)  # not in the event loop: it may be megabytes
        except (ValueError, TypeError, AttributeError) as error:
            raise ProtocolError(f"{node}: a listing cannot be understood: {error!s:.200}") from error
        asked = {(root.tier, root.path.rstrip("/")) for root in roots}
        for part in parts:
            root = part.root.rstrip("/")
            below = part.path.rstrip("/") == root or part.path.startswith(f"{root}/")
            if part.host != node or (part.tier, root) not in asked or not below or ".." in part.path.split("/"):
                raise ProtocolError(f"{node}: it was not asked for {part.path!r:.200} on {part.host!r:.80}")
        return parts


def _parts_of(listings: list[Any]) -> list[Part]:
    return [Part.from_json(part) for listing in listings for part in listing]
