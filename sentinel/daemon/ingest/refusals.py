"""Keeps which nodes' prologs refused a job, and why.

Agents tell all of the last day with each heartbeat. But a node that refused is drained, and rebooted as a rule, which
empties its run folder, and a prolog without an agent tells it once: the newest are stored, too, for the next daemon.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.adapters.store.store import Store
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.observed_silence import seconds_of
from sentinel.detect.used_ids import begins_after
from sentinel.errors import Unavailable
from sentinel.model.identity import CLOCKS_DIFFER, names_differ
from sentinel.model.records import JobView
from sentinel.text import plain

_MOST = 20  # of one message; an agent tells as many
_MOST_OF_A_NODE = 200  # a node that refuses is drained, so there are few
_CHARACTERS = 300
STORED = "refusals"  # stored setting: by node what its prolog refused
SAVE_S = 5.0
_STORED_OF_A_NODE = (
    _MOST  # the newest, of nodes that told one last: a few hundred KB at most, written where there is news
)
_STORED_NODES = 100
_KNOWN_FOR = timedelta(days=7)  # of those of an earlier daemon: ids of jobs come again


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node's prolog did not let this attempt begin there."""

    node: str
    attempt: int
    reason: str
    at: datetime
    user: str = ""  # whose job had the id then, by Slurm's listing; empty: not known


class Refusals:
    """By node, job and attempt. Of one node the earliest told is dropped first: no node's words displace another's."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[int, int], Refusal]] = {}  # the node that told one last comes last
        self._unsaved = False

    async def save(self, store: Store) -> None:
        """Store the newest where there is news.

        Raises:
            Unavailable: the store does not answer; the next call tries again.
        """
        if not self._unsaved:
            return
        nodes = list(self._kept)[-_STORED_NODES:]
        record = {node: _record(self._kept[node]) for node in nodes}
        self._unsaved = False
        try:
            await asyncio.to_thread(store.put, STORED, record)
        except Unavailable:
            self._unsaved = True
            raise

    def restore(self, stored: object, now: datetime, live: ClusterView) -> None:
        """Take in what an earlier daemon stored, as if its nodes told it now."""
        for node, kept in stored.items() if isinstance(stored, dict) else ():
            for item in kept if isinstance(kept, list) else ():
                at = _time(item.get("at")) if isinstance(item, dict) else None
                if at is not None and now - at <= _KNOWN_FOR:
                    told = [{**item, "ago_s": (now - at).total_seconds()}]
                    self.heard(str(node), told, now, live, restored=True)
        self._unsaved = False

    def heard(self, node: str, told: object, now: datetime, live: ClusterView, *, restored: bool = False) -> None:
        """Take in what a node tells, but of an attempt that Slurm had elsewhere: no prolog of this node saw it.

        Malformed items are left out: a heartbeat must not fail for one of them.

        Args:
            restored: what an earlier daemon stored, with the users of the jobs.
        """
        for item in told[:_MOST] if isinstance(told, list) else ():
            job, attempt = (item.get("job"), item.get("attempt")) if isinstance(item, dict) else (None, None)
            kept = self._kept.get(node, {})
            if type(job) is not int or type(attempt) is not int:
                continue
            try:
                at = now - timedelta(seconds=max(0.0, seconds_of(item.get("ago_s")) or 0.0))
            except OverflowError:
                continue
            known = kept.get((job, attempt))
            if known is not None and at - known.at <= CLOCKS_DIFFER:
                continue  # told again, or of the job that had the id before
            if live.ran_on(job, attempt, node) is False:
                continue
            kept.pop((job, attempt), None)
            reason = plain(str(item.get("reason", "")))[:_CHARACTERS]
            user = item.get("user") if restored else _user(live, job, attempt)
            kept[job, attempt] = Refusal(node, attempt, reason, at, user if isinstance(user, str) else "")
            self._kept.pop(node, None)
            self._kept[node] = kept
            self._unsaved = True
            if len(kept) > _MOST_OF_A_NODE:
                del kept[next(iter(kept))]

    def of(self, job: int | None, live: ClusterView) -> list[Refusal]:
        """The refusals of this job, earliest first.

        Left out: of attempts that Slurm had elsewhere, or has not come to, also as it still waits, and of a job that had the
        id before. Slurm counts the requeue of an attempt that a prolog refused, and seldom shows that: where it is not
        known which nodes it had, the node's word stands.
        """
        if job is None:
            return []
        view = live.fleet.jobs.get(job) if live.fleet is not None else None
        told = [one for kept in self._kept.values() for (number, _), one in kept.items() if number == job]
        came = [one for one in told if view is None or one.attempt < view.restarts + (view.state != "pending")]
        own = [one for one in came if view is None or not _is_former(one, view, live)]
        found = [one for one in own if live.ran_on(job, one.attempt, one.node) is not False]
        return sorted(found, key=lambda refusal: (refusal.at, refusal.node))


def _user(live: ClusterView, job: int, attempt: int) -> str:
    """Whose job it is by the newest listing; empty where that may show another job. A refusal requeues the job."""
    view = live.fleet.jobs.get(job) if live.fleet is not None else None
    return view.user if view is not None and view.restarts in (attempt, attempt + 1) else ""


def _is_former(one: Refusal, view: JobView, live: ClusterView) -> bool:
    """Whether it is of a job that had the id before the listed one: another user's, or from before that was submitted."""
    if names_differ(one.user, view.user):
        return True
    since = begins_after(view, live.own_clock_ahead_s())
    return since is not None and one.at < since


def _record(kept: dict[tuple[int, int], Refusal]) -> list[dict[str, object]]:
    newest = list(kept.items())[-_STORED_OF_A_NODE:]
    return [
        {"job": job, "attempt": attempt, "reason": one.reason, "at": one.at.isoformat(), "user": one.user}
        for (job, attempt), one in newest
    ]


def _time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
