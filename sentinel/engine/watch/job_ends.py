"""Follows up events that Slurm's controller hooks report, so that ended jobs are noticed without polling.

While the epilogs run, a job is "completing" and has no final state yet: Slurm is asked again until it has one. All jobs
that wait for it share one question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.detect.job_end import failed_attempt
from sentinel.engine import grouping
from sentinel.engine.events import EvidenceReceived, SlurmReported
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer, Transition
from sentinel.engine.watch import reconciliation
from sentinel.model.records import JobView
from sentinel.model.vocabulary import END_NOT_SEEN

JOB_ENDS = "job-ends"  # timer and effect
_LOGGED = 100  # jobs of one burst that are named in the log
_PAUSE = timedelta(seconds=0.2)  # before Slurm is asked again
_TRIES = 50  # of jobs still completing after the last try the next snapshot of reconciliation tells
_ANSWER_LOST = timedelta(seconds=60)  # a snapshot without an answer for so long is asked for again: its answer was lost


def reported(state: State, out: Transition, event: SlurmReported) -> None:
    """Handle one event of a hook, or the same event of several jobs."""
    for job in [str(job) for job in sorted(event.jobs)[:_LOGGED]] or [""]:
        out.say("event", name=event.name, job=job)
    if event.name != "job_ended" or not event.jobs:
        reconciliation.request(state, out, event.at)
        return
    state.watch.job_ends.tries.update(dict.fromkeys(event.jobs, 0))
    state.watch.job_ends.told.update(event.ends)
    _ask(state, out, event.at)


def _ask(state: State, out: Transition, now: datetime) -> None:
    ends = state.watch.job_ends
    if ends.timer or (ends.asked_at is not None and now - ends.asked_at < _ANSWER_LOST):
        return  # jobs that were reported meanwhile are asked about after that
    ends.asked_at = now
    out.do(ObserveFleet(JOB_ENDS, 0.0))


def pause_over(state: State, out: Transition, now: datetime) -> None:
    ends = state.watch.job_ends
    ends.timer = False
    if len(_slow(state)) < len(ends.tries):
        _ask(state, out, now)


def snapshot_taken(state: State, out: Transition, now: datetime) -> None:
    """Report the jobs that have ended; ask again about those that have no final state yet."""
    ends = state.watch.job_ends
    ends.asked_at = None
    _look(state, out, sorted(ends.tries), now)
    if len(_slow(state)) < len(ends.tries):
        ends.timer = True
        out.do(StartTimer(JOB_ENDS, now + _PAUSE))


def reconciled(state: State, out: Transition, now: datetime) -> None:
    """A snapshot was taken for something else: it may have the end of jobs that Slurm is not asked about any more."""
    if state.blind_since is None:
        _look(state, out, _slow(state), now)


def _slow(state: State) -> list[int]:
    return sorted(job for job, tries in state.watch.job_ends.tries.items() if tries >= _TRIES)


def _look(state: State, out: Transition, jobs: Iterable[int], now: datetime) -> None:
    ends, fleet = state.watch.job_ends, state.cluster.fleet
    over = []
    for job in jobs:
        view = fleet.jobs.get(job) if fleet is not None else None
        not_readable = view is None and fleet is not None and fleet.may_have_job(job)
        if not_readable or (view is not None and view.state in ("running", "completing")):
            ends.tries[job] += 1
            if ends.tries[job] >= _TRIES and (view is None or view.state == "running"):
                del ends.tries[job]
            continue
        del ends.tries[job]
        if view is None and fleet is not None:
            view = _as_told(state, job)
        if view is not None and view.exit_held:
            view = failed_attempt(view)
        if view is not None and view.state not in ("pending", "configuring"):  # those were requeued on purpose
            over.append(reconciliation.ended(state, view, now))
    if over:
        grouping.receive(state, out, EvidenceReceived(now, tuple(over)))
    ends.told = {job: end for job, end in ends.told.items() if job in ends.tries}


def _as_told(state: State, job: int) -> JobView | None:
    """A failed attempt of a job that slurmctld has forgotten, by what its hook was told; None: not known, or no failure.

    With a code a batch script ends by itself; a signal may be of whoever cancelled the job.
    """
    end = state.watch.job_ends.told.get(job)
    seen = state.cluster.attempts.get((job, end.attempt)) if end is not None else None
    if (
        end is None
        or seen is None
        or seen.view.state not in ("unknown", END_NOT_SEEN)
        or end.signal
        or not end.exit_code
    ):
        return None
    seen.view = replace(seen.view, state="failed", exit_code=end.exit_code, exit_signal=0, ended_at=end.at)
    return seen.view
