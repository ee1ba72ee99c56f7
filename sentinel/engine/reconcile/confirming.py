"""Waits until a restarted job makes steps again: no action asks for it, snapshots and step lines tell.

A job that waits in the queue is waited for without a limit, since its turn is Slurm's matter. So is a job that is requeued
by somebody else before it makes a step (its prolog refused, a node died at its start, its user asked for it): then its
next attempt is waited for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime, timedelta

from sentinel.correlate.incidents import FAILED_STATES
from sentinel.detect.own_host import of_own_clock
from sentinel.engine import notices, recovery
from sentinel.engine.reconcile import exclusions, in_allocation, slurm_limits
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer, Transition
from sentinel.model.changes import IncidentChanged
from sentinel.model.records import (
    INTERRUPTIONS,
    Evidence,
    Fleet,
    JobView,
    Kind,
    Outcome,
    Result,
    Scalar,
    Step,
    StepKind,
)
from sentinel.model.vocabulary import END_NOT_SEEN
from sentinel.policy import components_with

_LOOKS_S = (
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
)  # between snapshots taken for it, while no step line is seen; the last one repeats
_FRESH_S = 1.0
_LIVE_STATES = frozenset({"pending", "running", "completing", "configuring", "suspended"})
_NO_END = frozenset({*_LIVE_STATES, "requeued", "unknown", END_NOT_SEEN})  # of an attempt: how it ended is not known
_REPORTED = timedelta(seconds=10)  # the end of an attempt is reported, and becomes an incident, within this time


def timer_due(state: State, out: Transition, incident: str) -> None:
    if _step(state, incident) is not None:
        out.do(ObserveFleet(recovery.confirm_timer(incident), _FRESH_S))


def looked(state: State, out: Transition, incident: str, now: datetime) -> None:
    """A snapshot was taken for this incident."""
    if _step(state, incident) is not None and not _decide(state, out, incident, now):
        _look_later(state, out, incident, now)


def snapshot_taken(state: State, out: Transition, now: datetime) -> None:
    for incident in sorted(state.recoveries):
        if _step(state, incident) is not None:
            _decide(state, out, incident, now)


def steps_printed(state: State, out: Transition, items: Iterable[Evidence], now: datetime) -> None:
    """The first step line of a restarted job confirms it at once."""
    jobs = {item.where.job for item in items if item.kind == Kind.STEP and item.where.job is not None}
    if not jobs:
        return
    fleet = state.cluster.fleet
    jobs |= {part.id for job in jobs for part in components_with(fleet, job)} if fleet is not None else set()
    for incident in sorted(state.recoveries):
        step = _step(state, incident)
        if step is not None and step.job in jobs:
            _decide(state, out, incident, now)


def _look_later(state: State, out: Transition, incident: str, now: datetime) -> None:
    known = state.recoveries[incident]
    if known.looks < len(_LOOKS_S):
        due = now + timedelta(seconds=_LOOKS_S[known.looks])
        known.looks += 1
        out.do(StartTimer(recovery.confirm_timer(incident), due))


def _step(state: State, incident: str) -> Step | None:
    """The confirmation that this incident waits for."""
    known = state.recoveries.get(incident)
    step = known.under_way if known is not None else None
    return step if step is not None and step.kind is StepKind.CONFIRM and step.job is not None else None


def _decide(state: State, out: Transition, incident: str, now: datetime) -> bool:
    """Whether the wait is over."""
    step = _step(state, incident)
    if step is None or step.job is None:
        return True
    following = _following(step)
    began = state.ledger.intended_at(incident, step) or now
    fleet = state.cluster.fleet
    newer = fleet is not None and fleet.at > began
    job = state.cluster.job(fleet, step.job, following) if fleet is not None and newer else None
    if job is not None and _was_requeued(job, following) and first_step(state, step.job, following) is None:
        other = _taken_over_by(state, incident, step.job, following, now)
        if other is None:
            _show(state, out, incident, job, following, now)
            out.do(StartTimer(recovery.confirm_timer(incident), now + timedelta(seconds=_LOOKS_S[0])))
            return False
        following = following if other else job.restarts
    seen = state.cluster.attempts.get((step.job, following))
    started = job.started_at if job is not None and job.restarts >= following else None
    data: dict[str, Scalar] = {"running_at": started.isoformat() if started is not None else None}
    first = first_step(state, step.job, following)
    result, words = None, ""
    if first is not None:
        result, words = Result.DONE, f"gains steps again from step {first}"
        data |= {"first_step": first, "stepping_at": now.isoformat()}
        if seen is not None and seen.view.started_at is not None:
            data["running_at"] = seen.view.started_at.isoformat()
    elif newer:
        result, words = _of_snapshot(state, step, following, job, began, now)
        data["running_at"] = started.isoformat() if started is not None else None
    if result is None:
        _show(state, out, incident, job, following, now)
        return False
    if result is Result.FAILED and job is not None and job.state == "cancelled":
        data["cancelled"] = True  # by its user: no person need act
    elif result is Result.FAILED and job is not None and job.state == "deadline":
        data["over"] = True  # nobody can have it run again
    elif result is Result.FAILED and job is not None:
        other = _taken_over_by(state, incident, step.job, following, now)
        if other is None:
            out.do(StartTimer(recovery.confirm_timer(incident), now + timedelta(seconds=_LOOKS_S[0])))
            return False
        if other:
            words, data["recovered_by"] = f"{words}; incident {other} takes care of it", other
    recovery.step_ended(state, out, incident, Outcome(step, result, now, words, data), now)
    return True


def _following(step: Step) -> int:
    """The attempt that is waited for; a restart in the allocation begins none."""
    return (step.attempt or 0) + (0 if step.data.get("in_allocation") else 1)


def first_step(state: State, job: int, attempt: int) -> int | None:
    """The first step of this attempt; of a heterogeneous job that any component printed: the others may print none."""
    fleet = state.cluster.fleet
    parts = (job, *(part.id for part in components_with(fleet, job))) if fleet is not None else (job,)
    steps = [step for part in parts if (step := state.cluster.first_step(part, attempt)) is not None]
    return min(steps, default=None)


def _was_requeued(job: JobView, following: int) -> bool:
    """Whether the job began anew since, or will by itself."""
    return job.restarts > following and job.state in _LIVE_STATES and not job.held


def _taken_over_by(state: State, incident: str, job: int, following: int, now: datetime) -> str | None:
    """The incident that restarts or holds the attempt that failed instead of gaining a step; empty if there is none, None
    while that is not known: its end is a moment old, or is being judged."""
    fleet = state.cluster.fleet
    parts = (job, *(part.id for part in components_with(fleet, job))) if fleet is not None else (job,)
    run = in_allocation.began_at(state, incident)  # plans from before it are of earlier runs of the same attempt
    old = {name for name, plan in state.plans.items() if run is not None and plan.at <= run}
    others = [
        other
        for part in parts
        for other in state.index.about(part, ())
        if other.id not in {incident, *old} and other.job in parts and (other.attempt or 0) >= following
    ]
    for other in others:
        plan = state.plans.get(other.id)
        if plan is not None and any(step.kind in INTERRUPTIONS for step in plan.to_do):
            return other.id
    if any(other.id in state.judging for other in others):
        return None
    seen = [s.view for part in parts if (s := state.cluster.attempts.get((part, following))) is not None]
    shown = [view for part in parts if fleet is not None and (view := fleet.jobs.get(part)) is not None]
    ahead_s = state.cluster.own_clock_ahead_s()
    ends = [of_own_clock(v.ended_at, ahead_s) for v in shown if v.restarts == following and v.ended_at is not None]
    # A requeued or purged attempt ended when a snapshot, of our clock, no longer had it.
    ends = ends or [v.ended_at for v in seen if v.restarts == following and v.ended_at is not None]
    newest = max(ends, default=None)
    return None if newest is not None and now - newest < _REPORTED and not others else ""


def _of_snapshot(
    state: State, step: Step, following: int, job: JobView | None, began: datetime, now: datetime
) -> tuple[Result | None, str]:
    """What a snapshot that is newer than the release says; None: undecided."""
    fleet = state.cluster.fleet
    assert fleet is not None and step.job is not None, "called with a snapshot, about a job"
    if job is None:
        return (None, "") if fleet.may_have_job(step.job) else (Result.FAILED, f"Slurm no longer knows job {step.job}")
    if job.restarts < following:
        if job.state == "cancelled":
            return Result.FAILED, f"was cancelled before attempt {following} began"
        return None, ""  # slurmctld forgot the requeue: it is done again
    if job.restarts == following and job.state == "completed":
        return Result.DONE, "ran to its end; no step line was seen"
    if job.restarts > following or job.state not in _LIVE_STATES:
        seen = state.cluster.attempts.get((step.job, following))
        # One that failed may have been requeued since: held for that, for one.
        over = job.state if job.restarts == following else seen.view.state if seen is not None else "unknown"
        end = "was requeued" if over in _NO_END else f"ended as {over}"
        return Result.FAILED, f"attempt {following} {end} before it gained a step"
    for part in components_with(fleet, step.job):
        if part.restarts == following and part.state in FAILED_STATES:
            words = f"component {part.id} of attempt {following} ended as {part.state} before it gained a step"
            return Result.FAILED, words
    if job.state == "running" and job.started_at is not None and not _is_prepared(fleet, job):
        since = max(began, of_own_clock(job.started_at, state.cluster.own_clock_ahead_s()))
        if (now - since).total_seconds() > state.settings.recovery.confirm_s:
            return Result.DONE, "runs; no step line was seen"
    return None, ""


def _is_prepared(fleet: Fleet, job: JobView) -> bool:
    """Whether nodes of the job, or of another component of it, still boot or run their prologs.

    When all are there Slurm writes its start anew (22.05 to 26.05), and its time to confirm begins.
    """
    return any(part.configuring for part in (job, *components_with(fleet, job.id)))


def _show(state: State, out: Transition, incident: str, job: JobView | None, following: int, now: datetime) -> None:
    """Let the incident say what its job waits for; people are told where that does not end by itself."""
    known = state.incidents.get(incident)
    if known is None or job is None or job.restarts < following:
        return
    words = "restarted" if job.state != "pending" else f"waits in the queue ({job.reason or 'no reason given'})"
    if state.cluster.fleet is not None and _is_prepared(state.cluster.fleet, job):
        words = "waits in Slurm's CONFIGURING: its nodes are being prepared"
    if job.state == "pending" and (required := exclusions.waits_for(state, known, job)):
        words = f"{words}. {required}"
    if known.outcome != words:
        state.put(dataclasses.replace(known, outcome=words))
        out.save(IncidentChanged(state.judged(state.incidents[incident])))
        if slurm_limits.waits_by(state, known):
            notices.notify(state, out, incident, now)
