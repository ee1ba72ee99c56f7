"""Finds incidents in the store: those that a person may see and that match, however many newer ones do not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.adapters.store.batches import batched
from sentinel.adapters.store.store import Store
from sentinel.daemon.api.explanation import LAST
from sentinel.daemon.api.histories import FailureFilter
from sentinel.engine.history import as_corrected
from sentinel.errors import UserError

SHOWN = 200  # newest incidents of a listing
SEARCHED = 5000  # newest matching incidents of a listing that names no number of its own, as a history
COUNTED = 100_000  # newest incidents gone through for one answer: some seconds' work; sums of that many take 150 MB
_PART = 5000  # rows read at once

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Incidents, newest first. ``cut``: there are more, which were not read.

    ``since``: when the oldest that was gone through was opened, if there are more: of the time before it nothing is known,
    and a rate must leave that time out. None: all were read.
    """

    rows: list[Row] = field(default_factory=list)
    cut: bool = False
    since: datetime | None = None


class IncidentSearch:
    """All methods block: they read the store. ``user``: only incidents of this user's jobs; None: all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(
        self,
        user: str | None,
        keep: Callable[[Row], bool] | None = None,
        *,
        most: int | None = None,
        jobs: Collection[int] | None = None,
        since: datetime | None = None,
        still_open: bool = False,
        naming: Collection[str] = (),
        cause: str | None = None,
        corrected: bool = False,
        summed: bool = False,
    ) -> Found:
        """The newest ``most`` incidents that match; without ``most`` as many as a long listing has.

        Args:
            keep: what the database cannot be asked for; None: nothing.
            naming: nodes of which one is named in each incident that ``keep`` keeps; empty: it asks for none.
            cause: which ``keep`` asks for, after corrections; None: it asks for none.
            corrected: whether ``keep`` asks for corrected ones only.
            summed: only the columns that sums are made of.
        """
        most = SEARCHED if most is None else most
        limit = min(_PART, most + 1) if keep is None else _PART
        each = self._store.each_incident(
            jobs=jobs, since=since, user=user, still_open=still_open, naming=naming, cause=cause, corrected=corrected,
            summed=summed, limit=limit,
        )  # fmt: skip
        rows: list[Row] = []
        oldest = None
        for number, row in enumerate(each):
            wanted = keep is None or keep(row)
            if number >= COUNTED or (wanted and len(rows) >= most):
                return Found(rows, cut=True, since=oldest)
            if wanted:
                rows.append(row)
            oldest = row["opened_at"]
        return Found(rows)

    def counted(self, user: str | None, *, since: datetime | None = None, still_open: bool = False) -> Found:
        """Those that sums and rates are made of, with the columns that these take."""
        return self.newest(user, most=COUNTED, since=since, still_open=still_open, summed=True)

    def matching(
        self,
        user: str | None,
        chosen: FailureFilter,
        *,
        most: int | None = None,
        since: datetime | None = None,
        summed: bool = False,
    ) -> Found:
        """Incidents that a filter has, as they were judged; ``most`` as above.

        Their cause is what operators corrected it to; their nodes stay those that were blamed, which may have been drained.
        """
        if user is not None and chosen.user not in (None, user):
            return Found()
        return self.newest(
            user or chosen.user,
            None if chosen.of_whole_jobs else lambda row: chosen.has({**row, "cause": as_corrected(row)["cause"]}),
            most=most,
            jobs=chosen.jobs,
            since=since,
            naming=chosen.nodes or (),
            still_open=chosen.still_open,
            cause=chosen.cause,
            corrected=chosen.corrected,
            summed=summed,
        )

    def of_attempts(self, user: str | None, chosen: FailureFilter, *, since: datetime | None = None) -> Found:
        """Incidents that match and, beside them, all others of their jobs: which of them ended an attempt shows then.

        As many as sums are made of, with the columns that these take.
        """
        found = self.matching(user, chosen, most=COUNTED, since=since, summed=True)
        if chosen.of_whole_jobs:
            return found
        jobs = {row["job"] for row in found.rows if row["job"] is not None}
        others = self.of_jobs(user, jobs, most=COUNTED, since=since, summed=True)
        return Found(others.rows, cut=found.cut or others.cut)

    def beginning(self, name: str, user: str | None) -> list[Row]:
        """The first two incidents whose id begins with ``name``; none where it is empty."""
        return self._store.incident_rows(beginning=name, user=user, limit=2) if name else []

    def named(self, what: str, jobs: Collection[int], user: str | None, *, is_node: bool) -> list[Row]:
        """Incidents that a person may mean by ``what``: "last", the number of a job, a node, or the beginning of an id.

        Args:
            jobs: the job of that number, and the other components of its heterogeneous job; empty: it is no number.
            is_node: whether Slurm has a node of that name; one that it has no more is looked for if no id begins so.
        """
        if what == LAST:
            return self.newest(user, most=1).rows
        rows = self.newest(user, jobs=jobs, most=COUNTED).rows if jobs else []
        ids = self.beginning(what, user)
        if what and not rows and (is_node or not ids):
            rows = self.newest(user, naming_node(what), naming=(what,)).rows
        return list({row["id"]: row for row in (*rows, *ids)}.values())

    def visible(self, ids: Collection[str], user: str | None) -> set[str]:
        """Which of these incidents ``user`` may see."""
        if user is None:
            return set(ids)
        return {
            row["id"]
            for part in batched(ids)
            for row in self._store.incident_rows(ids=part, user=user, limit=len(part))
        }

    def of_jobs(
        self,
        user: str | None,
        jobs: Collection[int],
        *,
        most: int | None = None,
        since: datetime | None = None,
        summed: bool = False,
    ) -> Found:
        """The newest incidents of these jobs; ``most`` and ``summed`` as above."""
        most = SEARCHED if most is None else most
        parts = [self.newest(user, jobs=part, most=most, since=since, summed=summed) for part in batched(jobs)]
        found = [row for part in parts for row in part.rows]
        found.sort(key=lambda row: (row["opened_at"], row["id"]), reverse=True)
        return Found(found[:most], cut=len(found) > most or any(part.cut for part in parts))


def listed(arguments: Mapping[str, Any], chosen: FailureFilter) -> int | None:
    """How many incidents a request for a listing gets at most; None: as many as a long listing has.

    Raises:
        UserError: what it says is no number of incidents.
    """
    most = arguments.get("most")
    if most is None:
        return None if chosen.corrected else SHOWN  # of corrected ones cases are made
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise UserError(f"{most!r:.40} is no number of incidents", fix="name 1 or more")
    return min(most, SEARCHED)


def naming_node(name: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an incident names the node: as one at fault, as one that showed it, or as one of its job's."""
    return lambda row: name in (*(row["culprit_nodes"] or ()), *(row["seen_on"] or ()), *(row["nodes"] or ()))
