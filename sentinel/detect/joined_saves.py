"""Joins the node-local checkpoint shards of running jobs: each node sees only its own shards, the daemon sees all.

Nodes report their shards when they change, and again to a restarted daemon. A step is incomplete if its ranks do not add up,
or if some nodes hold it and another node still does not after ``SETTLED_S``; the job's people are notified once, before
they need the checkpoint. The total size of saves over all nodes is kept in the store, since no node knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any

from sentinel.checkpoints.fleet_parts import root_of, world_size_of
from sentinel.checkpoints.join import join
from sentinel.checkpoints.packed import unpack
from sentinel.checkpoints.records import Candidate, Part
from sentinel.checkpoints.watch import LIMITS
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.intent import intent_of
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id
from sentinel.model.vocabulary import CHECKPOINTS_SEEN

LISTING = CHECKPOINTS_SEEN  # kind of evidence: what a node holds of a running job
KEPT = "joined_saves"  # stored setting
SIZES = 32  # newest complete saves of a root; their median is the usual size
ATTEMPTS = 256  # attempts kept in memory; the oldest is dropped first
SETTLED_S = 180.0  # after its last file a save counts as finished on all nodes, which scan once a minute
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class UnreadableListing:
    node: str
    job: int
    reason: str


@dataclass(slots=True)
class _Attempt:
    parts: dict[str, dict[str, tuple[Part, ...]]] = field(default_factory=dict)  # node -> root -> what it holds
    listed_s: float = 0.0  # when a node listed last, by the nodes' clocks, as the times of files
    whole: dict[tuple[str, int], int] = field(default_factory=dict)  # root and step -> bytes on all nodes
    reported: set[str] = field(default_factory=set)


class JoinedSaves:
    """Collects the nodes' listings of shards and reports incomplete or shrunken saves.

    Args:
        kept: sizes of complete saves, as ``unsaved`` returned them before a restart.
    """

    def __init__(self, live: ClusterView, kept: Any = None) -> None:
        self._live = live
        self._changed = False
        self._attempts = {key: _Attempt(whole=sizes) for key, sizes in _read(kept).items()}
        self.unreadable: list[UnreadableListing] = []  # of the last call of ``take``

    def unsaved(self) -> Any | None:
        """The sizes of complete saves as JSON, if they changed since the last call; None otherwise."""
        changed, self._changed = self._changed, False
        return _written({key: seen.whole for key, seen in self._attempts.items()}) if changed else None

    def leave(self, job: int) -> None:
        """The job is gone, and Slurm has given its id to another one: these saves were not that one's."""
        for key in [key for key in self._attempts if key[0] == job]:
            self._changed |= bool(self._attempts.pop(key).whole)

    def take(self, items: Sequence[Evidence], now: datetime) -> list[Evidence]:
        """Replace the listings among ``items`` by the findings that follow from them, each reported once."""
        changed: dict[_Key, None] = {}
        self.unreadable = []
        for item in items:
            where, text = item.where, item.data.get("listing")
            if item.kind != CHECKPOINTS_SEEN or where.job is None or where.attempt is None or where.node is None:
                continue
            try:
                parts = unpack(text if isinstance(text, str) else "")
            except ValueError as error:
                self.unreadable.append(UnreadableListing(where.node, where.job, str(error)))
                continue
            seen = self._attempts.setdefault((where.job, where.attempt), _Attempt())
            # A node may report only about itself: the host that it writes into its listing is ignored.
            seen.parts.setdefault(where.node, {})[where.path or ""] = tuple(replace(p, host=where.node) for p in parts)
            seen.listed_s = max(seen.listed_s, item.at.timestamp())
            changed[where.job, where.attempt] = None
        while len(self._attempts) > ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        rest = [item for item in items if item.kind != CHECKPOINTS_SEEN]
        return rest + [found for key in changed if key in self._attempts for found in self._judge(key, now)]

    def _judge(self, key: _Key, now: datetime) -> list[Evidence]:
        seen, nodes = self._attempts[key], self._live.nodes_of(*key)
        view = self._live.attempts[key].view if key in self._live.attempts else None
        if view is None or not nodes or not set(nodes) <= set(seen.parts):
            return []  # a node that has not reported yet may hold anything
        intent = intent_of(view.comment, view.id)
        groups: dict[str, list[Part]] = {}
        for node in nodes:
            for part in (part for parts in seen.parts[node].values() for part in parts):
                groups.setdefault(root_of(part, intent), []).append(part)
        found: list[Evidence] = []
        for root, parts in groups.items():
            world = world_size_of(parts, len(nodes))
            for candidate in sorted(join([parts], world_size=world), key=lambda c: c.step or 0):
                if candidate.step is not None:
                    found += self._of_step(key, root, candidate, parts, now)
        return found

    def _of_step(
        self, key: _Key, root: str, candidate: Candidate, parts: Sequence[Part], now: datetime
    ) -> list[Evidence]:
        seen, step = self._attempts[key], candidate.step
        assert step is not None
        if candidate.valid is True:
            return self._whole(key, root, candidate, now)
        newest = max((known for place, known in seen.whole if place == root), default=-1)
        last_s = max((part.newest_mtime_s for part in parts if part.step == step), default=0.0)
        # By the earlier of two clocks: a daemon's that is set forward, or one node's, makes no save old.
        if step <= newest or min(now.timestamp(), seen.listed_s) - last_s < SETTLED_S:
            return []  # an older one may be being deleted; a new one is still being written
        ahead = {part.host for part in parts if part.step is not None and part.step > step}
        holders = {part.host for part in parts if part.step == step}
        if ahead - holders:
            return []  # those nodes have saved again, and may keep only their newest save
        missing = sorted(set(self._live.nodes_of(*key)) - holders)
        behind = f"; {', '.join(missing[:4])} hold nothing of it" if missing else ""
        reason = f"not complete on its {len(self._live.nodes_of(*key))} nodes: {candidate.reason}{behind}"
        return self._finding(key, Kind.CHECKPOINT_INVALID, root, step, reason, now)

    def _whole(self, key: _Key, root: str, candidate: Candidate, now: datetime) -> list[Evidence]:
        whole, step = self._attempts[key].whole, candidate.step
        assert step is not None
        earlier = [size for (place, known), size in whole.items() if place == root and known < step]
        if whole.get((root, step)) != candidate.bytes:
            whole[root, step] = candidate.bytes
            self._changed = True
            for old in sorted(known for place, known in whole if place == root)[:-SIZES]:
                del whole[root, old]
        if len(earlier) < LIMITS.least or candidate.bytes >= LIMITS.small * median(earlier):
            return []
        reason = f"{candidate.bytes} bytes on all nodes, {median(earlier):.0f} are usual"
        return self._finding(key, "saves_shrank", root, step, reason, now)

    def _finding(self, key: _Key, kind: str, root: str, step: int, reason: str, now: datetime) -> list[Evidence]:
        name, reported = f"{kind}/{root}/{step}", self._attempts[key].reported
        if name in reported:
            return []
        reported.add(name)
        data: dict[str, Scalar] = {"step": step, "tier": "local", "path": root, "reason": reason[:300], "watched": True}
        return [
            Evidence(
                id=stable_id("joined", *key, kind, root, step),
                at=now,
                seen_at=now,
                source=Source.CHECKPOINT,
                kind=kind,
                where=Where(job=key[0], attempt=key[1], path=root),
                text=f"{root}: step {step} is {reason}"[:2000],
                data=data,
            )
        ]


def _written(sizes: Mapping[_Key, Mapping[tuple[str, int], int]]) -> dict[str, list[list[str | int]]]:
    """JSON for the store."""
    rows = {f"{job}.{attempt}": whole for (job, attempt), whole in sizes.items() if whole}
    return {name: [[root, step, size] for (root, step), size in whole.items()] for name, whole in rows.items()}


def _read(value: Any) -> dict[_Key, dict[tuple[str, int], int]]:
    """Read what ``_written`` made. An unreadable entry is dropped: the usual size is learned again."""
    found: dict[_Key, dict[tuple[str, int], int]] = {}
    for name, rows in value.items() if isinstance(value, dict) else ():
        with suppress(ValueError, TypeError):
            job, attempt = (int(part) for part in name.split("."))
            found[job, attempt] = {(str(root), int(step)): int(size) for root, step, size in rows}
    return found
