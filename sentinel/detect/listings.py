"""Keeps the listings of node-local checkpoints that nodes sent when a job ended. Bounded memory; the store has them all.

The choice of a checkpoint asks the nodes again. If a node is gone, slow, or its folders were wiped meanwhile, these listings
tell what was there; they never prove that it still is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.checkpoints.packed import unpack
from sentinel.checkpoints.records import Part
from sentinel.model.records import Evidence

ATTEMPTS = 64  # attempts kept; the oldest is dropped first


@dataclass(frozen=True, slots=True)
class Held:
    """One node's listing when an attempt ended there."""

    at: datetime
    parts: tuple[Part, ...]


class Listings:
    """Listings by job, attempt and node."""

    def __init__(self) -> None:
        self._unreadable: dict[tuple[int, int], dict[str, str]] = {}  # why, by node
        self._held: dict[tuple[int, int], dict[str, Held]] = {}

    def note(self, item: Evidence) -> None:
        """Take a node's listing (evidence of kind ``checkpoints_held``)."""
        where, text = item.where, item.data.get("listing")
        if where.job is None or where.attempt is None or where.node is None or not isinstance(text, str):
            return
        try:
            parts = unpack(text)
        except ValueError as error:
            self._unreadable.setdefault((where.job, where.attempt), {})[where.node] = str(error)[:200]
            while len(self._unreadable) > ATTEMPTS:
                del self._unreadable[next(iter(self._unreadable))]
            return
        # A node may report only about itself: the host that it writes into its listing is ignored.
        mine = tuple(replace(part, host=where.node) for part in parts)
        self._held.setdefault((where.job, where.attempt), {})[where.node] = Held(item.at, mine)
        while len(self._held) > ATTEMPTS:
            del self._held[next(iter(self._held))]

    def leave(self, job: int) -> None:
        """The job is gone, and Slurm has given its id to another one: these checkpoints were not that one's."""
        self._held = {key: held for key, held in self._held.items() if key[0] != job}
        self._unreadable = {key: why for key, why in self._unreadable.items() if key[0] != job}

    def of(self, job: int, attempt: int) -> Mapping[str, Held]:
        return self._held.get((job, attempt), {})

    def silent(self, job: int, attempt: int, nodes: Collection[str]) -> tuple[list[Part], list[str]]:
        """What nodes that do not answer now held when the attempt ended, and a sentence about each.

        No checkpoint is chosen from it, since it may be gone by now.
        """
        parts: list[Part] = []
        unreadable = self._unreadable.get((job, attempt), {})
        words = [f"what {node} held cannot be read: {why}" for node, why in sorted(unreadable.items()) if node in nodes]
        for node, held in sorted(self.of(job, attempt).items()):
            if node in nodes:
                parts.extend(held.parts)
                words.append(f"{node} held {_steps(held.parts)} when the job ended ({held.at:%H:%M:%S} UTC)")
        return parts, words

    def wiped(self, job: int, attempt: int, found: Sequence[Part], answered: Collection[str]) -> list[str]:
        """A sentence for each node that held checkpoints when the attempt ended and holds none of them now."""
        words = []
        for node, held in sorted(self.of(job, attempt).items()):
            before = {part.path for part in held.parts if part.valid is True}
            now = {part.path for part in found if part.host == node}
            if node in answered and before and not before & now:
                words.append(
                    f"{node} held {_steps(held.parts)} when the job ended and holds none of it now:"
                    " does an epilog wipe the folder? (local_survives)"
                )
        return words


def _steps(parts: Sequence[Part]) -> str:
    steps = sorted({part.step for part in parts if part.step is not None and part.valid is True}, reverse=True)
    return f"steps {', '.join(map(str, steps[:4]))}" if steps else "no whole checkpoint"
