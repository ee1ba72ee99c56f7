"""Reads attempts of jobs: steps gained, cost of failures, actual and recommended save interval. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sentinel.adapters.store.attempt_query import JobRan
from sentinel.adapters.store.batches import batched
from sentinel.adapters.store.store import Store
from sentinel.daemon.api.fleet_history import fleet_history
from sentinel.daemon.api.histories import FailureFilter, at_fault
from sentinel.daemon.api.lost import ON_PURPOSE, JobKey, Loss, losses
from sentinel.daemon.api.scores import running
from sentinel.daemon.api.status import as_slurm_says
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.job_end import STATE_PREEMPTED
from sentinel.detect.seen import AttemptSeen
from sentinel.engine.history import as_corrected
from sentinel.model.identity import JobsOfOneId, names_differ
from sentinel.model.intent import intent_of
from sentinel.model.records import INTERRUPTIONS, STOPS, Fleet, Kind, StepKind
from sentinel.planning.advice import recommend
from sentinel.planning.history import MtbfEstimate, history_from, job_mtbf
from sentinel.policy import is_startable, waits_for_required
from sentinel.ports import Clock
from sentinel.wire import to_json

_HISTORY_DAYS = 30.0  # of failures, for the recommended save interval
_MTBF_KEPT = timedelta(minutes=1)  # reading a month of failures takes a second, and it changes little in a minute

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a listing of jobs: from which on, and how many."""

    start: int
    rows: int


class JobsRead(NamedTuple):
    """``cut``: there are more jobs. ``page``: what it shows, see ``of_jobs``; empty: all was read."""

    rows: list[dict[str, Any]]
    cut: bool
    page: Mapping[str, Any]


class JobAttempts:
    def __init__(self, store: Store, live: ClusterView, clock: Clock) -> None:
        self._store, self._live, self._clock = store, live, clock
        self._usual: tuple[Fleet | None, int | None] = None, None  # fleet, and GPUs of most of its nodes
        self._mtbf_read: tuple[datetime, Callable[[int], MtbfEstimate] | None] | None = None

    def read(
        self,
        *,
        job: int | None = None,
        jobs: Collection[int] | None = None,
        since: datetime | None = None,
        user: str | None = None,
    ) -> list[dict[str, Any]]:
        """Attempts as the store has them, the oldest first, with what is newer in memory. Blocking.

        Args:
            since: only attempts that still ran at this time or later.
        """
        rows = []
        for row in self._store.attempts(job=job, jobs=jobs, ran_since=since, user=user):
            seen = self._live.attempts.get((row["job"], row["attempt"]))
            newer: dict[str, Any] = {}
            if seen is not None and _is_of(seen, row):
                newer = {"state": seen.view.state, "last_step": seen.last_step, "step_time_s": seen.usual_step_s()}
                if seen.first_step is not None:
                    newer["first_step"] = seen.first_step
            rows.append({**row, **newer})
        return rows

    def curves(self, job: int, user: str | None) -> list[dict[str, Any]]:
        """By attempt: points as [step, Unix time in s, loss, seconds per step]. Blocking."""
        rows, found = self.read(job=job, user=user), {}
        jobs = JobsOfOneId(rows)
        for row in rows:
            if jobs.is_former(job, row["started_at"]):
                continue  # another job's, which had the id before
            points = self._live.curve(job, row["attempt"], row["started_at"])
            found[row["attempt"]] = [[p.step, p.at_s, p.loss, p.step_s] for p in points]
        return [{"attempt": number, "points": points} for number, points in found.items()]

    def of_jobs(
        self,
        *,
        since: datetime | None,
        user: str | None,
        nodes: Collection[str] | None,
        jobs: Collection[int] | None,
        most: int,
        page: object = None,
    ) -> JobsRead:
        """Attempts of whole jobs, the oldest first. Blocking.

        All jobs that Slurm has, or that have not ended, are among them; of the others the newest, up to ``most`` attempts.

        Args:
            since: only attempts that still ran at this time or later.
            nodes: only jobs that had one of these nodes; None: all.
            jobs: only these; None: all.
            page: a ``Page``: of those that there are, only the jobs on it are read; else all.
        """
        wanted = set(jobs) if jobs is not None else None
        if nodes is not None:
            there = self._store.jobs_on(nodes, since=since, user=user)
            wanted = there if wanted is None else there & wanted
        known = {job.id for job in self._live.jobs()}
        chosen: list[JobRan] = []
        count, cut = 0, False
        for job in self._store.jobs_that_ran(since=since, user=user, only=wanted):
            if wanted is not None and job.job not in wanted:
                continue
            if job.endless or job.job in known:
                chosen.append(job)
            elif not cut and (not count or count + job.attempts <= most):
                chosen.append(job)
                count += job.attempts
            else:
                cut = True

        def read(ids: Collection[int]) -> list[dict[str, Any]]:
            return [row for part in batched(ids) for row in self.read(jobs=part, since=since, user=user)]

        if not isinstance(page, Page):
            return JobsRead(_in_time(read([job.job for job in chosen])), cut, {})
        listed = _newest_first(chosen, read([job.job for job in chosen if job.several]))
        start = min(page.start, max(0, len(listed) - 1) // page.rows * page.rows)
        shown = listed[start : start + page.rows]
        of_page = {"jobs": [list(key) for key in shown], "start": start, "total": len(listed)}
        return JobsRead(_in_time(read({job for job, _ in shown})), cut, of_page)

    def in_slurm(self, job: int | None, user: str | None) -> dict[str, Any] | None:
        """A job as Slurm's newest snapshot shows it, for one of which no attempt was seen; None: ``user`` has no such job.

        One that a node's prolog refused, for one: Slurm requeues it before it begins.
        """
        fleet = self._live.fleet
        view = fleet.jobs.get(job) if fleet is not None and job is not None else None
        if fleet is None or view is None or user not in (None, view.user):
            return None
        asked = [fleet.nodes[name] for name in view.required if name in fleet.nodes]
        out = [as_slurm_says(node) for node in asked if not is_startable(node)]
        waits = waits_for_required(view, fleet, view.required) if view.state == "pending" else ""
        return {
            "job": view.id,
            "attempt": view.restarts,
            "state": view.state,
            "user": view.user,
            "name": view.name,
            "partition": view.partition,
            "nodes": list(view.nodes),
            "reason": view.reason,
            "waits_for": waits,
            "comment_problem": intent_of(view.comment).problem,
            "out_of_service": [{key: row[key] for key in ("node", "state", "reason")} for row in out],
        }

    def lost(
        self, incidents: Iterable[Row], attempts: Sequence[Row], chosen: FailureFilter | None = None
    ) -> list[Loss]:
        """The cost of failures as ``lost``, reports and metrics count it. Blocking.

        Causes are as corrected by operators. What was ended on purpose is no failure, and counts only if it is asked for.

        Args:
            incidents: all of these attempts: which of several ended one, and has its cost, shows only beside the others.
            chosen: what is asked for; None: all.
        """
        found = self.losses(map(as_corrected, incidents), attempts)
        on_purpose = chosen is not None and chosen.cause == ON_PURPOSE
        return [
            loss
            for loss in found
            if (on_purpose or loss.incident["cause"] != ON_PURPOSE) and (chosen is None or chosen.has(loss.incident))
        ]

    def losses(self, incidents: Iterable[Row], attempts: Sequence[Row]) -> list[Loss]:
        """The cost of failed attempts. Blocking."""
        wanted = list(incidents)
        first = min((row["opened_at"] for row in wanted), default=None)
        confirmed = self._store.steps_done((StepKind.CONFIRM,), since=first) if wanted else []
        recovered = {row["incident"]: row["finished_at"] for row in confirmed}
        ended_by = self._ended_by(wanted, first, JobsOfOneId(attempts)) if wanted else {}
        return losses(wanted, attempts, gpus=self.gpus, recovered=recovered, ended_by=ended_by)

    def _ended_by(
        self, incidents: Sequence[Row], since: datetime | None, jobs: JobsOfOneId
    ) -> dict[tuple[JobKey, int], str]:
        """By job and attempt: the incident for which it was stopped, or of which its end is a part. Blocking.

        Bad numbers, for one, are told while the job goes on: what ends it later is another incident.
        """

        def key(row: Row, at: str) -> tuple[JobKey, int]:
            return jobs.of(row["job"], row[at]), row["attempt"]

        steps = self._store.steps_done(tuple(INTERRUPTIONS), since=since)
        steps.reverse()  # of several the first ended it
        stopped = {key(row, "intended_at"): row["incident"] for row in steps if row["kind"] in STOPS}
        # In its allocation the attempt went on; what ended it later goes before that.
        restarted = {key(row, "intended_at"): row["incident"] for row in steps if row["kind"] not in STOPS}
        several = Counter(key(row, "opened_at") for row in incidents if row["job"] is not None and row["cause"])
        asked = {of[0] for (of, attempt), count in several.items() if count > 1 and (of, attempt) not in stopped}
        ends = {key(row, "opened_at"): row["incident"] for row in self._store.incidents_of_ends(asked)}
        return {**restarted, **ends, **stopped}

    def gpus(self, nodes: Sequence[str]) -> int | None:
        """GPUs of these nodes together; nodes that Slurm no longer has count like most others. None: not known."""
        fleet = self._live.fleet
        if fleet is None or not nodes:
            return None
        if self._usual[0] is not fleet:  # cached: it is asked for each of many attempts, with thousands of nodes
            known = Counter(node.gpus for node in fleet.nodes.values() if node.gpus is not None)
            self._usual = fleet, known.most_common(1)[0][0] if known else None
        usual = self._usual[1]
        if usual is None:
            return None
        counts = [fleet.nodes[name].gpus if name in fleet.nodes else usual for name in nodes]
        return sum(usual if count is None else count for count in counts)

    def shown(self, attempts: Iterable[Row], incidents: Iterable[Row]) -> list[dict[str, Any]]:
        """Attempts as listings show them; ``nth_of_id`` tells those apart of jobs that had one id, the first 0. Blocking.

        Args:
            incidents: all of these attempts.
        """
        mtbf = self._mtbf()
        rows = []
        judged = [as_corrected(row) for row in incidents]
        known = list(attempts)
        jobs = JobsOfOneId(known)
        of = jobs.of
        lost = {(*loss.of, loss.incident["attempt"], loss.began): loss for loss in self.losses(judged, known)}
        # Where a node is drained or suspected, or may be: it is not judged yet.
        blamed = {
            (of(row["job"], row["opened_at"]), row["attempt"])
            for row in judged
            if row["job"] is not None and (row["cause"] is None or at_fault(row))
        }
        newest: dict[JobKey, int] = {}
        for row in known:
            key = of(row["job"], row["started_at"])
            newest[key] = max(newest.get(key, 0), row["attempt"])
        for row in known:
            seen = self._live.attempts.get((row["job"], row["attempt"]))
            seen = seen if seen is not None and _is_of(seen, row) else None
            key = of(row["job"], row["started_at"])
            cost = lost.get((*key, row["attempt"], row["started_at"]))
            saving = self._saving(seen, mtbf) if seen is not None and not seen.ended else {}
            told = _told(seen) if seen is not None else {}
            if row["state"] == STATE_PREEMPTED:
                former, last = jobs.is_former(row["job"], row["started_at"]), newest[key] <= row["attempt"]
                words = self._preemption(row, seen, last=last, former=former)
                nobody = "None" if (key, row["attempt"]) in blamed else "No node is to blame, and none"
                told["preemption"] = f"{words}. {nobody} of the job's restarts was used."
            shown = {**row, "nth_of_id": key[1], **self._gained(row), **(_cost(cost) if cost else {}), **saving, **told}
            rows.append(to_json(shown))
        return rows

    def _preemption(self, row: Row, seen: AttemptSeen | None, *, last: bool, former: bool) -> str:
        """What became of a job whose attempt Slurm preempted: a sentence without its full stop.

        Args:
            last: no later attempt of it was seen.
            former: another job has its id by now.
        """
        fleet, number = self._live.fleet, row["attempt"]
        view = fleet.jobs.get(row["job"]) if fleet is not None and last and not former else None
        if view is not None and names_differ(row["user"], view.user):
            view = None  # of the later job no attempt was seen yet
        words = f"Slurm preempted attempt {number} by the site's rules"
        if not last or (view is not None and view.restarts > number):
            saved = seen.last_save() if seen is not None else None
            newest = f"; the newest save that was seen is of step {saved}" if saved is not None else ""
            words = f"{words} and the job was requeued: it resumes from its newest checkpoint by itself{newest}"
        elif view is not None and view.state == STATE_PREEMPTED:
            words = f"{words} and did not requeue the job: sentinel why {row['job']} says how it comes back"
        return words

    def _gained(self, row: Row) -> dict[str, Any]:
        first, last = row["first_step"], row["last_step"]
        gained = max(0, last - first + 1) if first is not None and last is not None else None
        return {"gpus": self.gpus(row["nodes"]), "steps_gained": gained}

    def _mtbf(self) -> Callable[[int], MtbfEstimate] | None:
        """MTBF of a job as a function of its GPU count, from the cluster's history; None while there is none."""
        now = self._clock.now()
        if self._mtbf_read is None or not timedelta() <= now - self._mtbf_read[0] < _MTBF_KEPT:
            since = now - timedelta(days=_HISTORY_DAYS)
            document = fleet_history(self._store, self._live.fleet, since, now, running(self._live))
            known = partial(job_mtbf, history_from(document)) if document["gpu_s"] > 0 else None
            self._mtbf_read = now, known
        return self._mtbf_read[1]

    def _saving(self, seen: AttemptSeen, mtbf: Callable[[int], MtbfEstimate] | None) -> dict[str, Any]:
        """A running job's save interval and the recommended one."""
        fleet = self._live.fleet
        gpus = sum((fleet.nodes[name].gpus or 0) for name in seen.nodes if name in fleet.nodes) if fleet else 0
        estimate = mtbf(gpus) if mtbf is not None and gpus > 0 else None
        advice = recommend(
            save_s=seen.save_s(),
            mtbf_s=estimate.mtbf_s if estimate else None,
            mtbf_low_s=estimate.mtbf_low_s if estimate else None,
            mtbf_high_s=estimate.mtbf_high_s if estimate else None,
            interval_s=seen.save_interval_s(),
        )
        return {
            "save_interval_s": seen.save_interval_s(),
            "save_s": seen.save_s(),
            "read_back_bytes": seen.read_back_bytes,
            "read_back_s": round(seen.read_back_s, 1),
            "read_back_fraction": _read_back(seen, self._clock.now()),
            "recommended_interval_s": advice.interval_s,
            "interval_verdict": advice.verdict,
            "interval_reason": advice.reason,
            "overlap_fraction": advice.overlap.overlap_fraction if advice.overlap else None,
            "lost_per_failure_s": advice.lost_per_failure_s,
        }


def _in_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["started_at"])


def _newest_first(chosen: Iterable[JobRan], of_several: Sequence[Row]) -> list[JobKey]:
    """The jobs, as ``JobsOfOneId`` tells them apart, the one that began last first.

    Args:
        of_several: all attempts of those whose id several had.
    """
    jobs = JobsOfOneId(of_several)
    began = {(job.job, 0): job.began for job in chosen if not job.several}
    for row in of_several:
        key = jobs.of(row["job"], row["started_at"])
        began[key] = max(began.get(key, row["started_at"]), row["started_at"])
    return sorted(began, key=lambda key: (began[key], key), reverse=True)


def _told(seen: AttemptSeen) -> dict[str, Any]:
    """What the user of the attempt can mend while it runs."""
    return {"log_unread": _log_unread(seen), "comment_problem": intent_of(seen.view.comment).problem}


def _is_of(seen: AttemptSeen, row: Row) -> bool:
    """Whether the row is of the attempt in memory, and not of another job that had its id before."""
    return seen.view.started_at in (None, row["started_at"])


def _log_unread(seen: AttemptSeen) -> str | None:
    """Why its agent cannot read the attempt's log, as one of a job with the group of root; None: it can, as far as known."""
    said = [item for item in list(seen.pool) if item.kind == Kind.UNREADABLE and item.where.path is not None]
    if not said or any(item.at > said[-1].at for item in list(seen.step_lines)):
        return None
    return said[-1].text


def _cost(loss: Loss) -> dict[str, Any]:
    """What the end of an attempt cost; nothing where it was ended on purpose, which is no failure."""
    gpu_h, whole, in_part = round(loss.gpu_h, 4), loss.known, loss.in_part
    if loss.incident["cause"] == ON_PURPOSE:
        gpu_h, whole, in_part = 0.0, True, True
    return {
        "incident": loss.incident["id"],
        "cause": loss.incident["cause"],
        "incident_state": loss.incident["state"],
        "redone_steps": loss.redone_steps,
        "redone_s": loss.redone_s,
        "down_s": loss.down_s,
        "lost_gpu_h": gpu_h if whole else None,
        "known_lost_gpu_h": gpu_h if in_part else None,  # the known part, where some of it is not known
    }


def _read_back(seen: AttemptSeen, now: datetime) -> float | None:
    """Share of the attempt's time in which its saves were being read for their manifests; None before it started."""
    started = seen.view.started_at
    ran_s = (now - started).total_seconds() if started is not None else 0.0
    return round(seen.read_back_s / ran_s, 4) if ran_s > 0 else None
