"""Keeps which nodes' prologs refused a job, and why. In memory: agents tell all of the last day with each heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.detect.observed_silence import seconds_of
from sentinel.text import plain

_MOST = 20  # of one message; an agent tells as many
_MOST_KEPT = 20_000
_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node's prolog did not let this attempt begin there."""

    node: str
    attempt: int
    reason: str
    at: datetime


class Refusals:
    """By job, node and attempt; the earliest told is dropped first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], Refusal] = {}

    def heard(self, node: str, told: object, now: datetime) -> None:
        """Take in what a node tells. Malformed items are left out: a heartbeat must not fail for one of them."""
        for item in told[:_MOST] if isinstance(told, list) else ():
            job, attempt = (item.get("job"), item.get("attempt")) if isinstance(item, dict) else (None, None)
            if type(job) is not int or type(attempt) is not int or (job, node, attempt) in self._kept:
                continue
            try:
                at = now - timedelta(seconds=max(0.0, seconds_of(item.get("ago_s")) or 0.0))
            except OverflowError:
                continue
            reason = plain(str(item.get("reason", "")))[:_CHARACTERS]
            self._kept[job, node, attempt] = Refusal(node, attempt, reason, at)
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def of(self, job: int | None) -> list[Refusal]:
        """The refusals of this job, earliest first."""
        found = [refusal for (kept, _, _), refusal in self._kept.items() if kept == job]
        return sorted(found, key=lambda refusal: (refusal.at, refusal.node))
