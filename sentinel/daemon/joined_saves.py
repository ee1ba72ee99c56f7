"""Saves of running jobs to node-local tiers, joined: each node sees only its own shards, the daemon all of them.

Nodes tell what they hold when it changes, and again to a daemon that was started anew. A step that others hold and a node
that is behind does not, once there was time for it, is incomplete, and so is one whose ranks do not add up; the job's people
hear it once, before they need it. How large saves were on all nodes together no node can tell: that is in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any, Protocol

from sentinel.checkpoints.inventory import join
from sentinel.checkpoints.packed import unpack
from sentinel.checkpoints.records import Candidate, Part
from sentinel.checkpoints.watch import CHECKPOINTS_SEEN, Limits
from sentinel.daemon.checkpoints import root_of, world_size_of
from sentinel.daemon.live import Live
from sentinel.intent import intent_of
from sentinel.log import Log
from sentinel.model import Evidence, Kind, Scalar, Source, Where, stable_id

KEY = "joined_saves"  # in the store
SIZES = 32  # newest whole saves of a root, whose median is what is usual
ATTEMPTS = 256  # remembered; the oldest is forgotten first
SETTLED_S = 180.0  # after its last file a save is done on all nodes: nodes look once a minute, not together
_Key = tuple[int, int]


class Kept(Protocol):
    """Of the store."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def put(self, key: str, value: Any) -> None: ...


@dataclass(slots=True)
class _Attempt:
    parts: dict[str, dict[str, tuple[Part, ...]]] = field(default_factory=dict)  # node -> root -> what it holds
    whole: dict[tuple[str, int], int] = field(default_factory=dict)  # root and step -> bytes on all nodes
    told: set[str] = field(default_factory=set)


class JoinedSaves:
    """Takes what nodes tell of their shards, gives what all of them together mean.

    Args:
        kept: where the sizes of whole saves outlive this daemon; None: nowhere.
    """

    def __init__(
        self, live: Live, limits: Limits | None = None, log: Log | None = None, kept: Kept | None = None
    ) -> None:
        self._live = live
        self._kept = kept
        self.unsaved = False  # whether ``save`` has something to write
        self._limits = limits or Limits()
        self._log = log or Log()
        self._attempts = {key: _Attempt(whole=sizes) for key, sizes in _read(kept.get(KEY) if kept else None).items()}

    def save(self) -> None:
        """Write the sizes down. May block."""
        self.unsaved = False
        if self._kept is not None:
            self._kept.put(KEY, _written({key: dict(seen.whole) for key, seen in list(self._attempts.items())}))

    def untold(self, items: Sequence[Evidence]) -> None:
        """What ``take`` gave could not be kept: it is given again with the next listing."""
        for item in items:
            seen = self._attempts.get((item.where.job or -1, item.where.attempt or 0))
            if seen is not None and item.source is Source.CHECKPOINT:
                seen.told.discard(_name(item.kind, item.where.path or "", item.data.get("step")))

    def take(self, items: Sequence[Evidence], now: datetime) -> list[Evidence]:
        """The items without the listings among them, which are not kept, and the findings that they give rise to, once."""
        changed: dict[_Key, None] = {}
        for item in items:
            where, text = item.where, item.data.get("listing")
            if item.kind != CHECKPOINTS_SEEN or where.job is None or where.attempt is None or where.node is None:
                continue
            try:
                parts = unpack(text if isinstance(text, str) else "")
            except ValueError as error:
                self._log.warning("listing-unreadable", node=where.node, job=where.job, reason=str(error))
                continue
            seen = self._attempts.setdefault((where.job, where.attempt), _Attempt())
            # A node speaks for itself alone, whatever is written in what it sends.
            seen.parts.setdefault(where.node, {})[where.path or ""] = tuple(replace(p, host=where.node) for p in parts)
            changed[where.job, where.attempt] = None
        while len(self._attempts) > ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        rest = [item for item in items if item.kind != CHECKPOINTS_SEEN]
        return rest + [found for key in changed if key in self._attempts for found in self._judge(key, now)]

    def _judge(self, key: _Key, now: datetime) -> list[Evidence]:
        seen, nodes = self._attempts[key], self._live.nodes_of(*key)
        view = self._live.attempts[key].view if key in self._live.attempts else None
        if view is None or not nodes or not set(nodes) <= set(seen.parts):
            return []  # a node that has told nothing yet may hold anything
        intent = intent_of(view.comment)
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
        if step <= newest or now.timestamp() - last_s < SETTLED_S:
            return []  # an older one may be being deleted; a new one is still being written
        ahead = {part.host for part in parts if part.step is not None and part.step > step}
        holders = {part.host for part in parts if part.step == step}
        if ahead - holders:
            return []  # those have saved again, and may keep only their newest
        missing = sorted(set(self._live.nodes_of(*key)) - holders)
        behind = f"; {', '.join(missing[:4])} hold nothing of it" if missing else ""
        reason = f"not complete on its {len(self._live.nodes_of(*key))} nodes: {candidate.reason}{behind}"
        return self._tell(key, Kind.CHECKPOINT_INVALID, root, step, reason, now)

    def _whole(self, key: _Key, root: str, candidate: Candidate, now: datetime) -> list[Evidence]:
        whole, step = self._attempts[key].whole, candidate.step
        assert step is not None
        earlier = [size for (place, known), size in whole.items() if place == root and known < step]
        if whole.get((root, step)) != candidate.bytes:
            whole[root, step] = candidate.bytes
            self.unsaved = True
            for old in sorted(known for place, known in whole if place == root)[:-SIZES]:
                del whole[root, old]
        if len(earlier) < self._limits.least or candidate.bytes >= self._limits.small * median(earlier):
            return []
        reason = f"{candidate.bytes} bytes on all nodes, {median(earlier):.0f} are usual"
        return self._tell(key, "saves_shrank", root, step, reason, now)

    def _tell(self, key: _Key, kind: str, root: str, step: int, reason: str, now: datetime) -> list[Evidence]:
        name = _name(kind, root, step)
        told = self._attempts[key].told
        if name in told:
            return []
        told.add(name)
        data: dict[str, Scalar] = {"step": step, "tier": "local", "path": root, "reason": reason[:300], "watched": True}
        self._log.warning("saves-joined", job=key[0], finding=name, reason=reason)
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


def _name(kind: str, root: str, step: Scalar) -> str:
    return f"{kind}/{root}/{step}"


def _written(sizes: Mapping[_Key, Mapping[tuple[str, int], int]]) -> dict[str, list[list[str | int]]]:
    """JSON for the store."""
    rows = {f"{job}.{attempt}": whole for (job, attempt), whole in sizes.items() if whole}
    return {name: [[root, step, size] for (root, step), size in whole.items()] for name, whole in rows.items()}


def _read(value: Any) -> dict[_Key, dict[tuple[str, int], int]]:
    """What ``_written`` made. An entry that cannot be read is forgotten: what is usual is learned again."""
    found: dict[_Key, dict[tuple[str, int], int]] = {}
    for name, rows in value.items() if isinstance(value, dict) else ():
        with suppress(ValueError, TypeError):
            job, attempt = (int(word) for word in name.split("."))
            found[job, attempt] = {(str(root), int(step)): int(size) for root, step, size in rows}
    return found
