"""Keeps what is known of a restart once it is done: for the budgets of its job, and the progress of what begins with it.

And finds those of which nothing is known any more, since the store is an older copy of itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import timedelta

from sentinel.detect.own_host import of_own_clock
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import AttemptSeen, SettingChanged
from sentinel.model.jobs.put_off import is_put_off, put_off_at
from sentinel.model.records import OURS, REQUEUED_AT, JobView, Outcome, Step, StepKind
from sentinel.policy import PastRestart, Situation

_CLOCKS_DIFFER = timedelta(seconds=10)  # slurmctld's and this host's, before agents tell by how much
LEFT_STOPPED = "left_stopped"  # stored setting: ``State.left_stopped``


def begun_with(step: Step) -> int:
    """The attempt that begins with this step; a restart in the allocation begins none."""
    return (step.attempt or 0) + (step.kind is StepKind.RELEASE)


def begin_anew(state: State, out: Transition, incident_id: str, outcome: Outcome) -> None:
    """Forget the progress of the attempt that begins with this step: it is of an earlier run of the job's launcher, or of
    one that slurmctld forgot."""
    step = outcome.step
    key = step.job or -1, begun_with(step)
    seen, asked = state.cluster.attempts.get(key), state.ledger.intended_at(incident_id, step)
    last = seen.rhythm.last_at if seen is not None else None
    forgotten = not outcome.reason and last is not None and asked is not None and last < asked
    if step.kind is not StepKind.START_RUN and not forgotten:
        return
    seen = state.cluster.begin_run(*key, outcome.at)
    if seen is not None:
        out.save(AttemptSeen(seen.view, None, None, seen.usual_step_s()))


def remember(state: State, incident_id: str, step: Step) -> None:
    """Remember the restart for the budgets of this job; one that slurmctld lost and that was done again counts once."""
    if step.job is None:
        return
    attempt, verdict = step.attempt or 0, state.verdicts[incident_id]
    rows = [row for row in state.ledger.of_job(step.job, step.kind) if row.incident == incident_id]
    if not rows or any(row.step.tries < step.tries for row in rows):
        return
    chosen = state.ledger.of_plan(state.plans[incident_id], StepKind.CHOOSE_CHECKPOINT)
    resumed = chosen.data.get("step") if chosen is not None else None
    seen = [s for s in (state.cluster.last_step(step.job, attempt), step.data.get("reached")) if isinstance(s, int)]
    reached = [s for s in (max(seen, default=None), verdict.onset_step) if s is not None]
    restart = PastRestart(
        rows[0].intended_at,
        verdict.cause,
        min(reached, default=None),
        resumed if isinstance(resumed, int) else None,
        step.data.get("observed") is not False,
    )
    state.past.restarted(step.job, restart)


def is_counted_twice(state: State, stop: Outcome, job: JobView) -> bool:
    """Whether Slurm counted the one requeue of this outcome twice; see ``actions.requeue.overtaken``."""
    at = job.submitted_at
    same = at is not None and stop.data.get(REQUEUED_AT) == at.isoformat()
    return same and not state.cluster.has_run(job.id, (stop.step.attempt or 0) + 1)


def is_forgotten(state: State, job: JobView) -> bool:
    """Whether the waiting job may have been stopped by Sentinel, and nothing is known of that: the store is older.

    A job that a person has requeued, and put off by a month or more or holds, looks the same. Whatever Sentinel asked of
    Slurm before the store's last word is in the store, and of what this daemon asks it knows.
    """
    if job.state != "pending" or job.restarts == 0:
        return False
    found_before = is_put_off(job) and (job.id, job.restarts) in state.left_stopped
    if not found_before and not _may_have_been_stopped_meanwhile(state, job):
        return False
    requeued_at = job.submitted_at.isoformat() if job.submitted_at is not None else ""
    return not any(
        (row.step.attempt or 0) >= job.restarts - 1
        or not row.settled
        or (
            row.outcome is not None and row.outcome.data.get(REQUEUED_AT) == requeued_at
        )  # one that Slurm counted twice
        for row in state.ledger.stops_of(job.id)
    )


def _may_have_been_stopped_meanwhile(state: State, job: JobView) -> bool:
    """Whether it was requeued, and put off if it is, after the store's last word and before this daemon began."""
    known_until, requeued_at = state.cluster.known_until, job.submitted_at
    if known_until is None or requeued_at is None:
        return False
    last = (put_off_at(job) if is_put_off(job) else None) or requeued_at
    ahead_s = state.cluster.own_clock_ahead_s()
    if of_own_clock(requeued_at, ahead_s) < known_until - _CLOCKS_DIFFER:
        return False
    since = state.watching_since
    return since is None or of_own_clock(last, ahead_s) <= since + _CLOCKS_DIFFER


def left_put_off(state: State, out: Transition, jobs: Iterable[JobView]) -> list[JobView]:
    """Jobs that Sentinel has put off, as far as Slurm shows, and of whose restart nothing is known. They are noted until it
    is begun: it may have to wait, and the next daemon's store has a later last word."""
    left = [job for job in jobs if is_put_off(job) and is_forgotten(state, job)]
    found = {(job.id, job.restarts) for job in left}
    if found != state.left_stopped:
        state.left_stopped = found
        out.save(SettingChanged(LEFT_STOPPED, sorted(found) or None))
    return left


def stored_left(kept: object) -> set[tuple[int, int]]:
    """``State.left_stopped`` from the stored setting."""
    return {(job, restarts) for job, restarts in kept} if isinstance(kept, list) else set()


def with_left_job(state: State, situation: Situation) -> Situation:
    """The situation of a job that waits as Sentinel's stop left it, or as a person's requeue and hold would: Slurm shows no
    difference. What asks for the restart finds out that the latter is not ours, and leaves the job held.
    """
    job = situation.job
    if job is None or not is_forgotten(state, job):
        return situation
    held = job.held and job.requeue_held and not job.admin_comment.startswith(OURS)
    return dataclasses.replace(situation, left_stopped=is_put_off(job) or held)
