"""Chooses which idle nodes to test: suspect nodes first, then the others in rotation, within limits. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.config.settings import Diagnostics, Modes
from sentinel.errors import SentinelError
from sentinel.model.changes import of_users_words
from sentinel.model.records import Fleet, Incident, IncidentState, JobView, Kind, Verdict
from sentinel.policy.shares import at_most
from sentinel.wire import time_from

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# Reasons of pending jobs that would not start now even on idle nodes.
_NOT_YET = frozenset({"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit"})


@dataclass(frozen=True, slots=True)
class DiagnosticRecord:
    """When one node was suspected and tested. None: never, or not known."""

    suspect: datetime | None = None  # since when; None again after a diagnostic passed
    user: str | None = None  # whose programs' output alone made it a suspect last; "": of nobody known
    passed: datetime | None = None
    passes: Mapping[int, datetime] = field(default_factory=dict, hash=False)  # by level, the newest
    tried: datetime | None = None  # when the last diagnostic was ordered or, if it did not pass, when it ended
    until: datetime | None = None  # latest end of the diagnostic that is running

    def has_passed(self, since: datetime, level: int) -> bool:
        """Whether a diagnostic of this level or a deeper one passed after ``since``; 0: of any, known or not."""
        known = [at for deep, at in self.passes.items() if deep >= level] if level else [self.passed]
        return any(at is not None and at > since for at in known)


@dataclass(frozen=True, slots=True)
class DueTest:
    node: str
    level: int
    suspect: bool


def due_tests(
    known: Mapping[str, DiagnosticRecord],
    idle: Mapping[str, datetime],
    *,
    waiting: bool,
    settings: Diagnostics,
    now: datetime,
) -> list[DueTest]:
    """The nodes to test now.

    At most ``idle_fraction`` of the idle nodes are tested at once; if that is less than one node, a single suspect may
    still be tested. Suspects go first; the rotation also respects ``idle_per_hour`` and stops while jobs wait.

    Args:
        known: by node; a missing node was never tested.
        idle: testable nodes, with the time since which each is idle.
        waiting: whether a job waits for nodes.
    """
    running = {name for name, tested in known.items() if tested.until is not None and tested.until > now}
    free = {name: known.get(name, DiagnosticRecord()) for name in idle if name not in running}
    most = at_most(settings.idle_fraction, len(idle.keys() | running))
    retry = timedelta(seconds=settings.retry_s)

    def due(tested: DiagnosticRecord) -> bool:
        return tested.tried is None or now - tested.tried >= retry

    chosen: list[DueTest] = []
    if settings.suspect_level:
        suspects = sorted((tested.suspect, name) for name, tested in free.items() if tested.suspect and due(tested))
        left = max(most, 1) - len(running)
        chosen = [DueTest(name, settings.suspect_level, True) for _, name in suspects[: max(left, 0)]]
    if waiting or not settings.idle_level:
        return chosen
    lately = sum(1 for tested in known.values() if tested.tried is not None and now - tested.tried < HOUR)
    left = min(most - len(running), settings.idle_per_hour - lately) - len(chosen)
    taken = {turn.node for turn in chosen}
    period, settled = timedelta(seconds=settings.idle_period_s), timedelta(seconds=settings.settled_s)
    never = datetime.min.replace(tzinfo=now.tzinfo)
    rested = sorted(
        (tested.passed or never, tested.tried or never, name)
        for name, tested in free.items()
        if name not in taken
        and due(tested)
        and now - idle[name] >= settled
        and (tested.passed is None or now - tested.passed >= period)
    )
    return chosen + [DueTest(name, settings.idle_level, False) for _, _, name in rested[: max(left, 0)]]


def has_waiting_job(jobs: Iterable[JobView]) -> bool:
    """Whether a pending job waits for nodes; held jobs and jobs waiting for a dependency or a begin time do not."""
    return any(job.state == "pending" and not job.held and job.reason not in _NOT_YET for job in jobs)


def idle_nodes(fleet: Fleet, modes: Modes) -> set[str]:
    """Idle nodes that may be tested: usable, not reserved, with GPUs, in partitions where draining is in act mode.

    A diagnostic takes a node's GPUs for minutes; in observe mode none is started.
    """
    held = {
        name for job in fleet.jobs.values() if job.state in ("running", "completing", "suspended") for name in job.nodes
    }

    @cache
    def acts(partitions: tuple[str, ...]) -> bool:
        return modes.of(partitions).drain == "act"

    return {
        name
        for name, view in fleet.nodes.items()
        if view.state == "idle" and view.usable and "reserved" not in view.flags and name not in held
        and view.gpus != 0 and acts(view.partitions)
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Since when a node is a suspect."""

    since: datetime
    user: str | None = None  # as in ``DiagnosticRecord``


def suspects(
    verdicts: Iterable[tuple[datetime, Verdict, str]],
    scores: Mapping[str, NodeScore],
    trends: Mapping[str, tuple[Trend, ...]],
    settings: Diagnostics,
    now: datetime,
) -> dict[str, Suspicion]:
    """Suspect nodes: named by a verdict, failing more often than others, or with ageing counters.

    A passed diagnostic does not end ageing: such a node is tested again when its last pass is ``idle_period_s`` old.

    Args:
        verdicts: each with the time from which it counts and the job's owner ("": not known).
    """
    found: dict[str, Suspicion] = {}

    def add(name: str, since: datetime, user: str | None = None) -> None:
        known = found.get(name)
        if known is not None:  # two users' programs say more than one's; the machine's own words need neither
            since, user = max(since, known.since), user if user == known.user else None
        found[name] = Suspicion(since, user)

    for at, verdict, owner in verdicts:
        for name in verdict.suspect:
            add(name, at, owner if of_users_words(verdict) else None)
    for name, score in scores.items():
        if score.lemon and score.last_at is not None:
            add(name, score.last_at)
    since = now - timedelta(seconds=settings.idle_period_s)
    for name, ages in trends.items():
        if any(trend.suspect for trend in ages):
            add(name, since)
    return found


def add_suspects(
    known: dict[str, DiagnosticRecord], found: Mapping[str, Suspicion], settings: Diagnostics, now: datetime
) -> bool:
    """Add new suspicions to ``known``; whether there were any.

    What one user's programs print makes at most ``user_suspects_per_day`` nodes suspects, each once a day: otherwise
    whoever prints the words of a broken GPU in every job would keep idle nodes under test.
    """
    new = False
    for name, suspicion in sorted(found.items(), key=lambda item: (item[1].since, item[0])):
        record = known.get(name, DiagnosticRecord())
        if any(at is not None and at >= suspicion.since for at in (record.passed, record.suspect)):
            continue
        if suspicion.user is not None:
            lately = {other for other, one in known.items() if one.user == suspicion.user and _within_a_day(one, now)}
            if name in lately or len(lately) >= settings.user_suspects_per_day:
                continue
        known[name] = replace(record, suspect=suspicion.since, user=suspicion.user)
        new = True
    return new


def _within_a_day(record: DiagnosticRecord, now: datetime) -> bool:
    return any(at is not None and now - at < DAY for at in (record.suspect, record.tried))


def nodes_with_failed_diagnostic(incidents: Iterable[Incident]) -> set[str]:
    """Nodes with a failed diagnostic in an incident that is not closed: testing them again would tell nothing new."""
    return {
        item.where.node
        for incident in incidents
        if incident.state is not IncidentState.CLOSED
        for item in incident.evidence
        if item.kind == Kind.DIAG_FAILED and item.where.node is not None
    }


def written(known: Mapping[str, DiagnosticRecord]) -> dict[str, dict[str, Any]]:
    """JSON for the store."""
    return {
        name: {
            one.name: _json(value)
            for one in fields(tested)
            if (value := getattr(tested, one.name)) is not None and value != {}
        }
        for name, tested in known.items()
    }


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(level): at.isoformat() for level, at in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value


def read(value: Any) -> dict[str, DiagnosticRecord]:
    """Read what ``written`` made. A node whose entry cannot be read counts as never tested."""
    found = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        try:
            found[str(name)] = DiagnosticRecord(**{key: _read(key, of) for key, of in entry.items()})
        except (TypeError, ValueError, AttributeError, SentinelError):
            continue
    return found


def _read(key: str, value: Any) -> Any:
    if key == "passes":
        return {int(level): time_from(at) for level, at in value.items()}
    return str(value) if key == "user" else time_from(value)
