"""What outlives the daemon, in memory: the changes of the engine's decisions, loaded as the real store loads them.

It answers only what the deciding and acting half of the daemon asks of a store. A test gives the same changes to it and to
the real one and compares what both load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sentinel.engine.history import row_of
from sentinel.model import changes as c
from sentinel.model.audit import Stage
from sentinel.model.records import (
    Evidence,
    Incident,
    IncidentState,
    Kind,
    Notice,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
)
from sentinel.model.stored import (
    ENDED,
    LEFT_RUNNING,
    Stored,
    StoredStep,
    heard_of,
    left_running,
    newest_standing,
    not_judged_since,
    still_excluding,
    still_holding,
    without_overtaken,
)
from sentinel.wire import to_json

_MOST_EVIDENCE = 5000  # that no incident refers to; as in the real one
_REPEATED = (c.SettingChanged, c.AttemptSeen, c.EvidenceAdded)
_ROW = ("cause", "scope", "seen_on", "culprit_nodes", "culprit_gpus", "culprit_ranks", "onset_step", "users_words")


class MemoryStore:
    """Tables as dictionaries, changed by ``commit`` only."""

    def __init__(self) -> None:
        self.evidence: dict[str, Evidence] = {}
        self.claimed: set[str] = set()
        self.incidents: dict[str, Incident] = {}
        self.users: dict[str, str | None] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.convicted_at: dict[tuple[str, str], datetime] = {}  # by incident and node; no start reads it, promises do
        self.judged: dict[str, dict[str, Any]] = {}  # what a verdict adds to the row of its incident
        self.plans: dict[str, Plan] = {}  # by incident
        self.finished: set[str] = set()  # ids of plans
        self.steps: dict[str, StoredStep] = {}
        self.notices: dict[tuple[str, str], tuple[Notice, bool]] = {}
        self.rows_of_attempts: dict[tuple[int, int, datetime], dict[str, Any]] = {}
        self.settings: dict[str, Any] = {}
        self.written = 0  # changes, without those that are written over and over
        self.audited: set[tuple[str, str, str]] = set()  # incident, action, target of what the audit says was begun

    def commit(self, wanted: Sequence[c.Change]) -> None:
        for change in wanted:
            _WRITERS[type(change)](self, change)
            self.written += not isinstance(change, _REPEATED)

    # -- reading ---------------------------------------------------------------------------------------------------

    def load(self, *, month: datetime, lately: datetime, evidence_ids: int, counted: datetime | None = None) -> Stored:
        """See ``sentinel.adapters.store.loading``."""
        lately = not_judged_since(self.settings, lately)
        plans = [plan.incident for plan in sorted(self.plans.values(), key=lambda p: p.at) if not self._finished(plan)]
        rows = {
            name: incident
            for name, incident in self.incidents.items()
            if incident.opened_at >= month or incident.state is not IncidentState.CLOSED
        }
        wanted = {n for n, i in rows.items() if i.closed_at is None or i.closed_at >= lately} | set(plans)
        wanted |= {n for n, i in rows.items() if counted is not None and i.updated_at >= counted}
        steps = tuple(sorted(self.steps.values(), key=lambda row: row.intended_at))
        wanted |= still_excluding(steps, self.rows_of_attempts.values(), lately - ENDED) | still_holding(steps, month)
        rows |= {n: self.incidents[n] for n in (wanted | {s.incident for s in steps}) & self.incidents.keys()}
        running = {row["job"] for row in self.rows_of_attempts.values() if row["ended_at"] is None}
        late = lately - LEFT_RUNNING
        left = {n for n, i in rows.items() if i.job in running and i.closed_at is not None and i.closed_at >= late}
        wanted |= {n for n in left if left_running(self.plans.get(n), self.verdicts.get(n))}
        released = {s.step.job for s in steps if s.step.kind is StepKind.RELEASE and s.step.job is not None}
        judged = wanted | {name for name, incident in rows.items() if incident.job in running}
        made = {name: self.plans[name] for name in sorted(wanted) if name in self.plans}
        undelivered = without_overtaken(self._notices(delivered=False), self._notices(delivered=True))
        newest = sorted(rows.values(), key=lambda i: i.opened_at, reverse=True)
        return Stored(
            incidents=tuple(self.incidents[name] for name in sorted(wanted) if name in self.incidents),
            verdicts={name: self.verdicts[name] for name in sorted(judged) if name in self.verdicts},
            plans=made,
            open_plans=frozenset(set(plans) & made.keys()),
            steps=steps,
            judged=tuple(self._row(incident) for incident in newest if incident.id in self.judged),
            attempts=tuple(row for row in self.rows_of_attempts.values() if row["job"] in released),
            recent_attempts=tuple(self.rows_of_attempts.values()),
            settings=dict(self.settings),
            told=self._told(wanted),
            undelivered=undelivered,
            heard_of=heard_of(undelivered, self._notices(delivered=False) + self._notices(delivered=True)),
            standing=tuple(newest_standing(self._of(wanted | {""}))),
            unclaimed=self._unclaimed(lately),
            evidence_ids=tuple(item.id for item in sorted(self.evidence.values(), key=lambda e: e.at))[-evidence_ids:],
        )

    def _notices(self, *, delivered: bool) -> list[tuple[Notice, str]]:
        return [(notice, receiver) for (_, receiver), (notice, done) in self.notices.items() if done is delivered]

    def _of(self, incidents: set[str]) -> list[tuple[Notice, str, bool]]:
        rows = self.notices.items()
        return [(notice, receiver, done) for (_, receiver), (notice, done) in rows if notice.incident in incidents]

    def _told(self, incidents: set[str]) -> dict[str, dict[str, Any]]:
        """As the real one keeps it: in the messages."""
        over = {"stages": ("resolved",), "worst": "critical", "final": True, "joined": "", "labels": {}}
        newest: dict[str, dict[str, Any]] = {n.incident: over for n, _ in self.notices.values() if n.incident}
        for notice, _ in sorted(self.notices.values(), key=lambda row: row[0].order):
            if notice.incident in incidents:
                data = notice.data
                stages = tuple(cast(list[str], data["told"]))
                newest[notice.incident] = {
                    "stages": stages,
                    **{key: data[key] for key in ("worst", "final", "joined", "labels", "asked", "beside")},
                }
        return newest

    def _unclaimed(self, since: datetime) -> tuple[Evidence, ...]:
        free = (e for e in self.evidence.values() if e.seen_at >= since and e.id not in self.claimed)
        return tuple(sorted(free, key=lambda e: e.at))[:_MOST_EVIDENCE]

    def _row(self, incident: Incident) -> dict[str, Any]:
        return {
            "id": incident.id,
            "opened_at": incident.opened_at,
            "job": incident.job,
            "attempt": incident.attempt,
            "user": self.users.get(incident.id),
            **self.judged[incident.id],
        }

    def _finished(self, plan: Plan) -> bool:
        return plan.id in self.finished or (not plan.waits and not plan.to_do)

    def attempts(
        self, *, job: int | None = None, since: datetime | None = None, ran_since: datetime | None = None
    ) -> list[dict[str, Any]]:
        rows = sorted(self.rows_of_attempts.values(), key=lambda row: row["started_at"])
        return [
            row
            for row in rows
            if (job is None or row["job"] == job)
            and (since is None or row["started_at"] >= since)
            and (ran_since is None or row["ended_at"] is None or row["ended_at"] >= ran_since)
        ]

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        row = self.steps.get(step.key(incident))
        return row.outcome if row is not None else None

    def steps_done(
        self,
        kinds: Sequence[StepKind],
        *,
        since: datetime | None = None,
        job: int | None = None,
        results: Sequence[Result] = (Result.DONE,),
    ) -> list[dict[str, Any]]:
        return [
            {"job": row.step.job, "attempt": row.step.attempt, "node": row.step.node, "data": dict(row.outcome.data)}
            for row in sorted(self.steps.values(), key=lambda row: row.intended_at)
            if row.step.kind in kinds
            and row.outcome is not None
            and row.outcome.result in results
            and (since is None or row.intended_at >= since)
            and (job is None or row.step.job == job)
        ]

    def tiers_saved(self, job: int | None, *, after: int | None = None) -> frozenset[str]:
        saves = [e for e in self.evidence.values() if e.where.job == job and e.kind == Kind.CHECKPOINT_SAVED]
        made = [e.data for e in saves if after is None or (e.where.attempt is not None and e.where.attempt > after)]
        rows = self.steps_done([StepKind.CHOOSE_CHECKPOINT], job=job)
        chosen = [row["data"] for row in rows if after is None or row["attempt"] >= after]
        return frozenset(str(data.get("tier") or "") for data in [*made, *(d for d in chosen if d.get("path"))])

    def get(self, name: str, default: Any = None) -> Any:
        return self.settings.get(name, default)

    def put(self, name: str, value: Any) -> None:
        self.commit([c.SettingChanged(name, value)])

    # -- writing ---------------------------------------------------------------------------------------------------

    def _evidence(self, change: c.EvidenceAdded) -> None:
        for item in change.items:
            self.evidence.setdefault(item.id, item)

    def _counters(self, change: c.CountersRead) -> None:
        """Ageing counters are read by ``sentinel.daemon.ingest.trends`` only, which is not simulated."""

    def _incident(self, change: c.IncidentChanged) -> None:
        incident, before = change.incident, self.incidents.get(change.incident.id)
        if incident.job is None and before is not None:
            incident = dataclasses.replace(incident, job=before.job, attempt=before.attempt)
        self.incidents[incident.id] = incident
        if change.user is not None or incident.id not in self.users:
            self.users[incident.id] = change.user
        for item in incident.evidence:
            self.evidence.setdefault(item.id, item)
            self.claimed.add(item.id)

    def _verdict(self, change: c.VerdictReached) -> None:
        self.verdicts[change.incident] = change.verdict
        for node in change.verdict.drain:
            self.convicted_at.setdefault((change.incident, node), change.at)
        incident = self.incidents[change.incident]
        row = row_of(incident, change.verdict, None)
        before = self.judged.get(change.incident, {})
        corrections = {"corrections": before["corrections"]} if "corrections" in before else {}
        self.judged[change.incident] = {name: _plain(row[name]) for name in _ROW} | corrections

    def _corrected(self, change: c.VerdictCorrected) -> None:
        row = self.judged.setdefault(change.incident, dict.fromkeys(_ROW))
        row["corrections"] = [*(row.get("corrections") or ()), to_json(change.correction)]

    def _plan(self, change: c.PlanMade) -> None:
        self.plans[change.plan.incident] = change.plan
        self.finished.discard(change.plan.id)

    def _plan_finished(self, change: c.PlanFinished) -> None:
        self.finished.add(change.plan)

    def _step_intended(self, change: c.StepIntended) -> None:
        key = change.step.key(change.plan.incident)
        self.steps.setdefault(key, StoredStep(change.plan.incident, change.step, change.at, None))

    def _step_ended(self, change: c.StepEnded) -> None:
        outcome = change.outcome
        key = outcome.step.key(change.incident)
        if key in self.steps:
            row = self.steps[key]
            kept = Outcome(row.step, outcome.result, outcome.at, outcome.reason, outcome.data)
            self.steps[key] = dataclasses.replace(row, outcome=kept)

    def _notice(self, change: c.NoticeChanged) -> None:
        self.notices[change.notice.id, change.receiver] = (change.notice, change.delivered)

    def _notice_dropped(self, change: c.NoticeDropped) -> None:
        self.notices.pop((change.notice, change.receiver), None)

    def _attempt(self, change: c.AttemptSeen) -> None:
        job = change.job
        if job.started_at is None:
            return
        self.rows_of_attempts[job.id, job.restarts, job.started_at] = {
            "job": job.id,
            "attempt": job.restarts,
            "started_at": job.started_at,
            "user": job.user,
            "partition": job.partition,
            "name": job.name,
            "nodes": list(job.nodes),
            "ended_at": job.ended_at if job.state not in ("running", "completing", "pending") else None,
            "state": job.state,
            "first_step": change.first_step,
            "last_step": change.last_step,
            "step_time_s": change.step_time_s,
            "het": job.het,
        }

    def _setting(self, change: c.SettingChanged) -> None:
        self.settings[change.name] = change.value

    def _audited(self, change: c.Audited) -> None:
        entry = change.entry
        if entry.stage is Stage.BEGUN:
            self.audited.add((entry.incident, entry.action, entry.target))


def _plain(value: Any) -> Any:
    """Tuples as the lists that a database gives back."""
    return list(value) if isinstance(value, tuple) else value


_WRITERS: Mapping[type[Any], Callable[[MemoryStore, Any], None]] = {
    c.EvidenceAdded: MemoryStore._evidence,
    c.CountersRead: MemoryStore._counters,
    c.IncidentChanged: MemoryStore._incident,
    c.VerdictReached: MemoryStore._verdict,
    c.VerdictCorrected: MemoryStore._corrected,
    c.PlanMade: MemoryStore._plan,
    c.PlanFinished: MemoryStore._plan_finished,
    c.StepIntended: MemoryStore._step_intended,
    c.StepEnded: MemoryStore._step_ended,
    c.NoticeChanged: MemoryStore._notice,
    c.NoticeDropped: MemoryStore._notice_dropped,
    c.AttemptSeen: MemoryStore._attempt,
    c.SettingChanged: MemoryStore._setting,
    c.Audited: MemoryStore._audited,
}
