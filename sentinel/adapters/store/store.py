"""What the daemon keeps, over SQLAlchemy.

Evidence is append-only with stable ids; the ledger's rows are written before the effect and completed after it. Every
method is one transaction. Errors of the database come out as ``Unavailable``: a store that cannot be written stops the
acting, never the observing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa

from sentinel.adapters.store import attempt_query, later_times, lease, retention
from sentinel.adapters.store import audit as chain
from sentinel.adapters.store import tables as t
from sentinel.adapters.store.batches import MANY, batched
from sentinel.adapters.store.changes import add_evidence, write
from sentinel.adapters.store.database import Database
from sentinel.adapters.store.incident_query import Wanted, in_parts, incident_query
from sentinel.adapters.store.loading import incident_from, load, newest_plans
from sentinel.adapters.store.recording import read_recording
from sentinel.adapters.store.step_query import all_steps, steps_done, steps_from
from sentinel.errors import Unavailable
from sentinel.model import changes
from sentinel.model.audit import ChainedEntry
from sentinel.model.changes import Change
from sentinel.model.recording import Recording
from sentinel.model.records import (
    Evidence,
    Incident,
    Kind,
    Notice,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.model.stored import Stored, StoredStep, UnreadableRecord
from sentinel.text import plain

_MOST_PLANS = 2000  # newest plans that one reading returns
_MOST_SAVES = 1000  # newest saves of a job that are looked at for their tiers: many node-local ones come for one shared
_MOST_AUDIT = 10_000  # entries of the audit that one reading returns
_NOTHING_CHECKED = chain.Checked()
_LONG_FACTOR = 10.0  # times the deadline: what reads or prunes a month of a whole cluster


class Store(Database):
    """What is decided is written with ``commit``, one decision a transaction; every other method is one transaction too."""

    def commit(self, wanted: Sequence[Change]) -> None:
        """All of them, in their order, or none: one transaction.

        A ``Batch`` that is given again, since its commit was not answered, is written only if the database has it not.
        """
        name = ""
        if isinstance(wanted, changes.Batch):
            name, tried, wanted.tried = wanted.name, wanted.tried, True
            if tried and self._has(name):
                return
        if not wanted:
            return
        with self._begin(batch=name) as connection:
            for change in wanted:
                write(connection, change)

    def recording(
        self, *, since: datetime, until: datetime, incident: str | None = None, node: str | None = None
    ) -> Recording:
        """The past as a recording; see ``sentinel.adapters.store.recording``."""
        with self._read() as connection:
            return read_recording(connection, self._readable, since=since, until=until, incident=incident, node=node)

    def load(self, *, month: datetime, lately: datetime, evidence_ids: int, counted: datetime | None = None) -> Stored:
        """Everything that the engine's state is made of; see ``sentinel.adapters.store.loading``."""
        left_out: list[UnreadableRecord] = []
        readable = partial(self._readable, left_out=left_out)
        read = partial(self._read, times=_LONG_FACTOR)
        steps = all_steps(read)
        with read() as connection:
            stored = load(
                connection, readable, steps, month=month, lately=lately, evidence_ids=evidence_ids, counted=counted
            )
        return replace(stored, unreadable=tuple(one for one in left_out if one.kind != Notice.__name__))

    # --- evidence -----------------------------------------------------------------------------------------------------

    def append(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """Keep what is new (by id) and return it, in order."""
        if not evidence:
            return []
        with self._begin() as connection:
            fresh = add_evidence(connection, evidence)
        kept: dict[str, Evidence] = {}
        for item in evidence:
            kept.setdefault(plain(item.id), item)
        return [item for name, item in kept.items() if name in fresh]

    def known_evidence(self, ids: Sequence[str]) -> set[str]:
        """Which of these ids of evidence are there."""
        with self._read() as connection:
            return set(connection.execute(sa.select(t.evidence.c.id).where(t.evidence.c.id.in_(ids))).scalars())

    # --- incidents ----------------------------------------------------------------------------------------------------

    def incident(self, incident: str) -> Incident | None:
        with self._read() as connection:
            row = connection.execute(sa.select(t.incident).where(t.incident.c.id == incident)).first()
            if row is None:
                return None
            joined = (
                sa.select(t.evidence.c.record)
                .join(t.incident_evidence, t.incident_evidence.c.evidence == t.evidence.c.id)
                .where(t.incident_evidence.c.incident == incident)
                .order_by(t.evidence.c.at)
            )
            evidence = tuple(self._readable(Evidence, (item.record for item in connection.execute(joined))))
        return incident_from(row, evidence)

    def incident_rows(self, **wanted: Unpack[Wanted]) -> list[dict[str, Any]]:
        """Incidents without their evidence, newest first; see ``sentinel.adapters.store.incident_query``."""
        with self._read() as connection:
            return _rows(connection, incident_query(**wanted))

    def each_incident(self, **wanted: Unpack[Wanted]) -> Iterator[dict[str, Any]]:
        """All incidents that match, however many, newest first: read in parts, each a transaction.

        Raises:
            Unavailable: the database does not answer, at any part.
        """
        return in_parts(self.incident_rows, wanted)

    def incidents_of_ends(self, jobs: Collection[int]) -> list[dict[str, Any]]:
        """The incidents of which the end of an attempt of these jobs is a part, the newest of each job first: rows with job,
        attempt, incident and opened_at."""
        joined = t.evidence.join(t.incident_evidence, t.incident_evidence.c.evidence == t.evidence.c.id).join(
            t.incident, t.incident.c.id == t.incident_evidence.c.incident
        )
        columns = t.evidence.c.job, t.evidence.c.attempt, t.incident.c.id.label("incident"), t.incident.c.opened_at
        query = sa.select(*columns).select_from(joined).where(t.evidence.c.kind == Kind.JOB_ENDED)
        query = query.where(
            t.evidence.c.job.in_(sa.bindparam("jobs", expanding=True)), t.incident.c.attempt == t.evidence.c.attempt
        )
        query = query.order_by(t.incident.c.opened_at.desc())
        with self._read() as connection:
            parts = [connection.execute(query, {"jobs": part}) for part in batched(sorted(jobs))]
            return [dict(row._mapping) for rows in parts for row in rows]

    def ids_that_begin(self, beginning: str, *, limit: int = 2) -> list[str]:
        """Ids that begin so, at most ``limit`` of them."""
        query = sa.select(t.incident.c.id).where(t.incident.c.id.startswith(beginning, autoescape=True))
        with self._read() as connection:
            return list(connection.execute(query.order_by(t.incident.c.id).limit(limit)).scalars())

    def knows_node(self, name: str) -> bool:
        """Whether any evidence is about a node of that name."""
        query = sa.select(t.evidence.c.id).where(t.evidence.c.node == name).limit(1)
        with self._read() as connection:
            return connection.execute(query).first() is not None

    def last_verdict(self, incident: str) -> Verdict | None:
        query = sa.select(t.verdict.c.record).where(t.verdict.c.incident == incident).order_by(t.verdict.c.id.desc())
        with self._read() as connection:
            found = self._readable(Verdict, (row.record for row in connection.execute(query.limit(1))))
        return found[0] if found else None

    # --- plans and the ledger -----------------------------------------------------------------------------------------

    def plan_of(self, incident: str) -> Plan | None:
        query = sa.select(t.plan.c.record).where(t.plan.c.incident == incident).order_by(t.plan.c.at.desc()).limit(1)
        with self._read() as connection:
            found = self._readable(Plan, (row.record for row in connection.execute(query)))
        return found[0] if found else None

    def waits_of(self, incidents: Sequence[str]) -> dict[str, tuple[Wait, ...]]:
        """What the plans of these incidents wait for, by incident; those that wait for nothing are left out."""
        query = sa.select(t.plan.c.record).where(t.plan.c.incident.in_(incidents)).order_by(t.plan.c.at)
        with self._read() as connection:
            plans = self._readable(Plan, (row.record for row in connection.execute(query)))
        return {plan.incident: plan.waits for plan in plans if plan.waits}

    def plans_since(self, since: datetime) -> list[Plan]:
        """Plans made since then, newest first."""
        query = sa.select(t.plan.c.record).where(t.plan.c.at >= since).order_by(t.plan.c.at.desc()).limit(_MOST_PLANS)
        with self._read() as connection:
            return self._readable(Plan, (row.record for row in connection.execute(query)))

    def plans_in_force(
        self, kinds: Sequence[StepKind], since: datetime
    ) -> tuple[dict[str, Plan], frozenset[str], list[StoredStep]]:
        """What counts against limits.

        Returns:
            By incident, the newest plan of those with one made since then or not finished; the incidents with one that is
            not finished; the steps of these kinds that were intended or done since then, or are of such an incident.
        """
        unfinished = sa.select(t.plan.c.incident).where(t.plan.c.finished.is_(False))
        lately = sa.select(t.plan.c.incident).where(t.plan.c.at >= since)
        late = (t.step.c.intended_at >= since) | (t.step.c.finished_at >= since)
        steps = sa.select(t.step).where(t.step.c.kind.in_(kinds), late | t.step.c.incident.in_(unfinished))
        with self._read() as connection:
            goes_on = frozenset(connection.execute(unfinished).scalars())
            plans = newest_plans(connection, self._readable, goes_on | set(connection.execute(lately).scalars()))
            found = steps_from(connection.execute(steps.order_by(t.step.c.intended_at)))
        return plans, goes_on & plans.keys(), found

    def steps_under_way(self) -> list[dict[str, Any]]:
        """Ledger rows of unfinished plans that have no result yet, or are tried again; oldest first."""
        unfinished = sa.select(t.plan.c.id).where(t.plan.c.finished.is_(False))
        later = t.step.alias()
        again = sa.exists().where(
            later.c.incident == t.step.c.incident,
            later.c.kind == t.step.c.kind,
            later.c.node.is_not_distinct_from(t.step.c.node),
            later.c.job.is_not_distinct_from(t.step.c.job),
            later.c.intended_at > t.step.c.intended_at,
        )
        query = (
            sa.select(t.step)
            .where(
                t.step.c.plan.in_(unfinished),
                t.step.c.result.is_(None) | (t.step.c.result == Result.NOT_KNOWN),
                ~again,  # done again under another id: what became of that counts
            )
            .order_by(t.step.c.intended_at)
        )
        with self._read() as connection:
            return _rows(connection, query)

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        with self._read() as connection:
            row = connection.execute(sa.select(t.step).where(t.step.c.key == step.key(incident))).first()
        if row is None or row.result is None:
            return None
        return Outcome(step, Result(row.result), row.finished_at, row.reason, row.data)

    def steps_of(self, incident: str) -> list[dict[str, Any]]:
        query = sa.select(t.step).where(t.step.c.incident == incident).order_by(t.step.c.intended_at)
        with self._read() as connection:
            return _rows(connection, query)

    def steps_done(
        self,
        kinds: Sequence[StepKind],
        *,
        since: datetime | None = None,
        job: int | None = None,
        results: Sequence[Result] = (Result.DONE,),
    ) -> list[dict[str, Any]]:
        """Ledger rows of these kinds that were done (or ended with one of ``results``), oldest first, however many: read in
        parts, each a transaction."""
        return steps_done(self._read, kinds, results, since=since, job=job)

    def tiers_saved(self, job: int | None, *, after: int | None = None) -> frozenset[str]:
        """Tiers of the job's newest checkpoints that the store still has: seen in its folders and log (empty: a log does not
        say its tier), or chosen for a restart.

        Args:
            after: only those made by later attempts than this one, and what that one's restart, or a later one, chose.
        """
        query = sa.select(t.evidence.c.record).where(
            t.evidence.c.job == job, t.evidence.c.kind == Kind.CHECKPOINT_SAVED
        )
        if after is not None:
            query = query.where(t.evidence.c.attempt > after)
        with self._read() as connection:
            found = connection.execute(query.order_by(t.evidence.c.at.desc()).limit(_MOST_SAVES))
            records = [row.record for row in found]
        seen = {str(item.data.get("tier") or "") for item in self._readable(Evidence, records)}
        rows = self.steps_done([StepKind.CHOOSE_CHECKPOINT], job=job)
        chosen = [row["data"] for row in rows if after is None or row["attempt"] >= after]
        return frozenset(seen | {str(data.get("tier") or "") for data in chosen if data.get("path")})

    # --- notices ------------------------------------------------------------------------------------------------------

    def notices(self, *, since: datetime, most: int, user: str | None = None) -> list[tuple[Notice, str, bool]]:
        """Messages since then, and those that were not delivered whenever it was; the newest first, ``most`` of each.

        ``user``: only about this user's jobs; None: all.
        """
        about = sa.true() if user is None else t.notice.c.record["data"]["user"].as_string() == user
        columns = (t.notice.c.record, t.notice.c.receiver, t.notice.c.delivered, t.notice.c.at, t.notice.c.id)
        newest_first = (t.notice.c.at.desc(), t.notice.c.id)
        missing, delivered = (
            t.notice.c.delivered.is_(False),
            sa.and_(t.notice.c.delivered.is_(True), t.notice.c.at >= since),
        )
        with self._read() as connection:
            rows = [
                row
                for wanted in (missing, delivered)
                for row in connection.execute(
                    sa.select(*columns).where(wanted, about).order_by(*newest_first).limit(most)
                )
            ]
        rows.sort(key=lambda row: row.id)
        rows.sort(key=lambda row: row.at, reverse=True)
        return [(one, row.receiver, row.delivered) for row in rows for one in self._readable(Notice, [row.record])]

    # --- attempts -----------------------------------------------------------------------------------------------------

    def attempts(self, **wanted: Unpack[attempt_query.Wanted]) -> list[dict[str, Any]]:
        """Attempts, the oldest first, each once; see ``sentinel.adapters.store.attempt_query``."""
        with self._read() as connection:
            return attempt_query.each_once(_rows(connection, attempt_query.attempt_query(**wanted)))

    def jobs_that_ran(
        self, *, since: datetime | None, user: str | None = None, only: Collection[int] | None = None
    ) -> list[attempt_query.JobRan]:
        """Jobs of which an attempt still ran at ``since`` or later, the one that began last first, with those attempts.
        ``only``: of these jobs, where they are few; others may be among them."""
        named = only if only is not None and len(only) <= MANY else None
        with self._read() as connection:
            found = connection.execute(attempt_query.jobs_query(since, user, named))
            return [attempt_query.JobRan(*row) for row in found]

    def jobs_on(self, nodes: Collection[str], *, since: datetime | None, user: str | None = None) -> set[int]:
        """Jobs of which an attempt that still ran at ``since`` or later had one of these nodes."""
        names = frozenset(nodes)
        query = attempt_query.nodes_query(names, since, user).execution_options(yield_per=MANY)
        with self._read() as connection:
            return {row.job for row in connection.execute(query) if not names.isdisjoint(row.nodes)}

    def components(self, job: int) -> set[int]:
        """The components of the heterogeneous job that this job was one of last, itself included; empty: of none."""
        with self._read() as connection:
            return set(connection.execute(attempt_query.components_query(job)).scalars())

    def rename_receiver(self, before: str, after: str) -> None:
        """Give a receiver of notices another name. An earlier release kept the addresses of webhooks, which are secrets."""
        with self._begin() as connection:
            connection.execute(sa.update(t.notice).where(t.notice.c.receiver == before).values(receiver=after))

    # --- counters that age ----------------------------------------------------------------------------------------------

    def counters(self, since: datetime, *, least: float | None = None) -> list[dict[str, Any]]:
        """One row for each day, oldest first; with ``least`` only counters that changed, or reached that much."""
        query = sa.select(t.counter).where(t.counter.c.at >= since).order_by(t.counter.c.at)
        if least is not None:
            key, value = (t.counter.c.node, t.counter.c.unit, t.counter.c.name), t.counter.c.value
            told = sa.select(*key).where(t.counter.c.at >= since).group_by(*key)
            told = told.having(sa.or_(sa.func.max(value) > sa.func.min(value), sa.func.max(value) >= least))
            query = query.where(sa.tuple_(*key).in_(told))
        with self._read() as connection:
            return _rows(connection, query)

    def counters_told(self, since: datetime, name: str) -> dict[str, datetime]:
        """Since when, after ``since``, each node has told of its counters."""
        first = sa.select(t.counter.c.node, sa.func.min(t.counter.c.at)).where(t.counter.c.at >= since)
        query = first.where(t.counter.c.name.startswith(name, autoescape=True)).group_by(t.counter.c.node)
        with self._read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    # --- the audit ----------------------------------------------------------------------------------------------------

    def audit(
        self, *, since: datetime | None = None, after: int = 0, newest: int | None = None, most: int = _MOST_AUDIT
    ) -> list[ChainedEntry]:
        """See ``sentinel.adapters.store.audit.entries``."""
        with self._read() as connection:
            return chain.entries(connection, since=since, after=after, newest=newest, most=most)

    def audit_length(self) -> int:
        with self._read() as connection:
            return connection.execute(sa.select(sa.func.max(t.audit.c.number))).scalar() or 0

    def check_audit(self, so_far: chain.Checked = _NOTHING_CHECKED, most: int | None = None) -> chain.Checked:
        """See ``sentinel.adapters.store.audit.check``."""
        return chain.check(self._read, so_far, most)

    # --- settings an operator changes, lease, retention ---------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        with self._read() as connection:
            row = connection.execute(sa.select(t.setting.c.value).where(t.setting.c.name == name)).first()
        return row.value if row else default

    def put(self, name: str, value: Any) -> None:
        self.commit([changes.SettingChanged(name, value)])

    def look_at_lease(self, own: lease.DaemonRow | None = None) -> lease.LeaseView:
        """Who is active, and which daemons there are; with ``own`` we count up in our row first.

        Raises:
            Superseded: we wrote under the lease, and another daemon has it now.
        """
        if own is None:
            with self._read(about_lease=True) as connection:
                return lease.look(connection)
        with self._begin(about_lease=True) as connection:
            lease.beat(connection, own, acts=self.token is not None)
            return lease.look(connection)

    def take_lease(self, holder: str, seen: lease.LeaseView) -> bool:
        """Take the lease if it is as seen; from then on everything is written under its token."""
        with self._begin(about_lease=True) as connection:
            token = lease.take(connection, holder, seen)
        if token is not None:
            self.token, self._holder, self._confirmed = token, holder, 0
            self._closing.clear()
        return token is not None

    def require_lease(self) -> None:
        """
        Raises:
            Superseded: another daemon is active. ContentLost: the database has lost what this one wrote.
        """
        if self.token is not None:
            confirmed = self._confirmed
            with self._read(about_lease=True) as connection:
                held = lease.counted(connection, self._holder) if self.shared else None
                self._require_ours(connection, self.token, held, confirmed)

    def leave_lease(self, holder: str) -> None:
        """Give it back if it is ours, and be no daemon any more."""
        self._closing.set()  # nothing is pruned without the lease
        token, self.token = self.token, None
        with self._begin() as connection:
            lease.leave(connection, holder, token)

    def forget_daemons(self, holders: Sequence[str]) -> None:
        with self._begin(about_lease=True) as connection:
            lease.forget(connection, list(holders))

    def set_back(self, now: datetime, ahead: timedelta) -> None:
        """See ``sentinel.adapters.store.later_times``."""
        with self._begin() as connection:
            later_times.set_back(connection, now, ahead)

    def forget(self, before: datetime, spared: Collection[str] = ()) -> int:
        """Delete what is over since before then; returns how much evidence went. What is open stays, and the incidents
        ``spared``."""
        return retention.forget(self._pruned, before, spared)

    def forget_beyond(self, most_bytes: int, now: datetime, before: datetime, spared: Collection[str] = ()) -> datetime:
        """Forget, with a shorter and shorter memory until the rest takes at most ``most_bytes``; returns its beginning.

        What users fill beyond their share goes first: one user's flood costs nobody else's history. It takes as long as
        there is much to forget, in many transactions; between them others write.

        Args:
            spared: incidents that stay however old they are, as those for which a node is still drained.

        Raises:
            Unavailable: the database does not answer, or is closed.
        """
        own: dict[str, datetime] = {}  # by user: the beginning of what is kept of theirs
        sizes: dict[str, int] | None = None
        retention.let_age(self._pruned, now)
        while True:
            retention.forget(self._pruned, before, spared, now)
            while (size := self._size_bytes()) > most_bytes:
                sizes = retention.users_bytes(self._pruned) if sizes is None else sizes
                greedy = retention.greedy(sizes, most_bytes)
                left = ((user, retention.shorter(now, own.get(user, before))) for user in greedy)
                user, since = next(((user, since) for user, since in left if since is not None), ("", None))
                if since is None:
                    break
                own[user] = since
                retention.forget_user(self._pruned, user, since, now, spared)
                sizes[user] = retention.user_bytes(self._pruned, user)
            shorter = retention.shorter(now, before) if size > most_bytes else None
            if shorter is None:
                return before
            before, sizes = shorter, None

    def _size_bytes(self) -> int:
        with self._read(times=_LONG_FACTOR) as connection:
            return retention.size_bytes(connection)

    @property
    def _pruned(self) -> retention.Access:
        return retention.Access(partial(self._read, times=_LONG_FACTOR), self._begin_pruning)

    @contextlib.contextmanager
    def _begin_pruning(self) -> Iterator[sa.Connection]:
        """A transaction of a pruning, and after it a pause of the same length: SQLite gives its lock to whoever asks at the
        right moment, and others that wait for it must not meet a pruning each time."""
        if self._closing.is_set():
            raise Unavailable("the store is closed")
        with self._begin() as connection:
            began_s = time.monotonic()
            yield connection
        self._closing.wait(time.monotonic() - began_s)


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    found = connection.execute(query)
    names = tuple(found.keys())
    return [dict(zip(names, row, strict=True)) for row in found]
