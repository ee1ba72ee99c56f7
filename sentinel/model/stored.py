"""What a start finds in the store: everything the engine's state is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.model.records import Evidence, Incident, Notice, Outcome, Plan, Step, StepKind, Verdict, stable_id

# Setting: when what had been acknowledged until then was judged, and incidents closed until then get no news any more.
JUDGED_UNTIL = "judged_until"
LATE_SINCE = "late_since"  # of evidence that came later than that and may not be judged yet: when the oldest was read
ENDED = timedelta(days=7)  # jobs that ended this long ago may run again
# A job that waits in a collective since its node failed gives up within this time (NCCL after 10 min, Gloo after 30).
LEFT_RUNNING = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A row of the ledger; ``outcome`` None: intended, and it is not known whether it happened."""

    incident: str
    step: Step
    intended_at: datetime
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """``kind``: of record, as "Plan"; ``record``: JSON, as the store has it."""

    kind: str
    why: str
    record: Any

    @property
    def id(self) -> str:
        return stable_id("unreadable", self.kind, repr(self.record))[:16]


@dataclass(frozen=True, slots=True)
class Stored:
    # Open, closed lately, still counted by a breaker, with a plan that is not finished, with exclusions that a job may still
    # have, or with a job that was left running and may fail by what was seen.
    incidents: tuple[Incident, ...] = ()
    verdicts: Mapping[str, Verdict] = field(
        default_factory=dict
    )  # the newest, by incident; also of incidents that are over, while their job runs
    plans: Mapping[str, Plan] = field(default_factory=dict)  # by incident
    open_plans: frozenset[str] = frozenset()  # ids of incidents
    steps: tuple[StoredStep, ...] = ()  # the oldest first
    judged: tuple[Mapping[str, Any], ...] = ()  # rows of incidents of the last month and of restarted jobs
    attempts: tuple[Mapping[str, Any], ...] = ()  # rows of the attempts of restarted jobs
    recent_attempts: tuple[Mapping[str, Any], ...] = ()  # rows of attempts that run, or ended lately
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Of incidents with a notice: stages in order, worst severity, whether the last one was final, and the incident joined.
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # With its receiver; without those of whose thread that receiver has got a later one.
    undelivered: tuple[tuple[Notice, str], ...] = ()
    # By thread of these, all receivers that its messages were for.
    heard_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # The last message of each thread that is not over, for each receiver that took it.
    standing: tuple[tuple[Notice, str], ...] = ()
    unclaimed: tuple[Evidence, ...] = ()  # acknowledged lately, and of no incident yet; the oldest first
    evidence_ids: tuple[str, ...] = ()  # of the newest evidence, the oldest first
    unreadable: tuple[
        UnreadableRecord, ...
    ] = ()  # left out of the above: a later release wrote it, or the disk lost it

    def newest(self, window: timedelta) -> datetime | None:
        """The latest time at which a daemon decided, did or noted something; ``window``: ``judgement.group_s``."""
        times = [plan.at for plan in self.plans.values()]
        for row in self.steps:
            times += [row.intended_at] if row.outcome is None else [row.intended_at, row.outcome.at]
        if noted := self.settings.get(JUDGED_UNTIL):
            times.append(datetime.fromisoformat(noted) + window)
        return max(times, default=None)


def not_judged_since(settings: Mapping[str, Any], lately: datetime) -> datetime:
    """``lately``, or when the previous daemon had judged all, if that is earlier: it may have ended long ago."""
    noted = (settings.get(JUDGED_UNTIL), settings.get(LATE_SINCE))
    return min([lately, *(datetime.fromisoformat(at) for at in noted if at)])


def still_excluding(steps: Iterable[StoredStep], attempts: Iterable[Mapping[str, Any]], since: datetime) -> set[str]:
    """Incidents that wrote the exclusions which a job may still have: it runs, or has run since then and may run again.

    Args:
        steps: the oldest first. attempts: rows of all attempts of the jobs of these steps.
    """
    newest = {row.step.job: row.incident for row in steps if row.step.kind is StepKind.EXCLUDE}
    may_run = {row["job"] for row in attempts if row["ended_at"] is None or row["ended_at"] >= since}
    return {incident for job, incident in newest.items() if job in may_run}


def left_running(plan: Plan | None, verdict: Verdict | None) -> bool:
    """Whether an incident that is over accused nodes of its job, and was to do nothing with the job itself."""
    if plan is None or verdict is None or plan.observe_only:
        return False
    return all(step.job is None for step in plan.steps) and bool(verdict.drain or verdict.suspect)


def still_holding(steps: Iterable[StoredStep], since: datetime) -> set[str]:
    """Incidents whose job was cancelled with our hold on it: a person may requeue it at any time, and finds it held."""
    return {
        row.incident
        for row in steps
        if row.outcome is not None and row.outcome.data.get("left_hold") and row.outcome.at >= since
    }


def without_overtaken(
    undelivered: Iterable[tuple[Notice, str]], delivered: Iterable[tuple[Notice, str]]
) -> tuple[tuple[Notice, str], ...]:
    """Messages, each with its receiver, that are news still: it has got no later one of the thread."""
    newest: dict[tuple[str, str], tuple[int, bool, datetime]] = {}
    for notice, receiver in delivered:
        key = (notice.thread, receiver)
        newest[key] = max(newest.get(key, notice.order), notice.order)
    return tuple(
        (notice, receiver)
        for notice, receiver in undelivered
        if notice.order >= newest.get((notice.thread, receiver), notice.order)
    )


def heard_of(
    undelivered: Iterable[tuple[Notice, str]], messages: Iterable[tuple[Notice, str]]
) -> dict[str, frozenset[str]]:
    """See ``Stored.heard_of``; of all messages of these threads, each with its receiver."""
    found: dict[str, set[str]] = {notice.thread: set() for notice, _ in undelivered}
    for notice, receiver in messages:
        if notice.thread in found:
            found[notice.thread].add(receiver)
    return {thread: frozenset(names) for thread, names in found.items()}


def newest_standing(messages: Iterable[tuple[Notice, str, bool]]) -> list[tuple[Notice, str]]:
    """See ``Stored.standing``; of messages with their receiver, and whether that took it."""
    newest: dict[tuple[str, str], tuple[Notice, bool]] = {}
    for notice, receiver, delivered in messages:
        before = newest.get((notice.thread, receiver))
        if before is None or notice.order > before[0].order:
            newest[notice.thread, receiver] = (notice, delivered)
    return [
        (notice, receiver)
        for (_, receiver), (notice, delivered) in newest.items()
        if delivered and not notice.data.get("final", True)
    ]
