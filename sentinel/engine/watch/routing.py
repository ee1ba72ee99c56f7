"""Sends each event of watching to its file, and starts the periodic timers."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.engine import drain_reasons
from sentinel.engine.diagnostics import turns
from sentinel.engine.events import EffectCompleted, TimerDue
from sentinel.engine.state import State
from sentinel.engine.transition import StartTimer, Transition
from sentinel.engine.watch import job_ends, jobs, log_coverage, lost_ends, nodes, reconciliation
from sentinel.engine.watch.events import (
    ConnectionLost,
    HeartbeatReceived,
    JobObserved,
    NodeHeard,
    NodeProbed,
    RequestDelayed,
    ResourceExhausted,
    WatchEvent,
    WatchStarted,
    seconds_of,
)

CHECK_NODES = "check-nodes"  # timers: two, so that a bug in one check does not keep out the other
CHECK_JOBS = "check-jobs"


def receive(state: State, out: Transition, event: WatchEvent) -> None:
    match event:
        case HeartbeatReceived():
            nodes.heartbeat(state, out, event)
        case NodeHeard():
            nodes.message(state, out, event.node, seconds_of(event))
        case JobObserved() if event.effect.startswith(lost_ends.PROCESSES):
            lost_ends.observed(state, out, event)
        case JobObserved():
            jobs.observed(state, out, event)
        case NodeProbed():
            nodes.probed(state, out, event)
        case ConnectionLost():
            nodes.connection_lost(state, out, event)
        case RequestDelayed():
            state.watch.delays.request_waited(event.for_s, seconds_of(event))
        case ResourceExhausted():
            log_coverage.own_fault(state, event.why, event.at, seconds_of(event))
        case WatchStarted():
            _start(state, out, event)


def _start(state: State, out: Transition, event: WatchStarted) -> None:
    state.watch.running = True
    state.watch.visibility = None  # from now on
    log_coverage.visibility(state, event.at, seconds_of(event))
    _next_check(state, out, CHECK_NODES, event.at)
    _next_check(state, out, CHECK_JOBS, event.at)
    reconciliation.timer_due(state, out, event.at)
    turns.start(state, out, event.at)
    drain_reasons.start(state, out, event.at)


def _next_check(state: State, out: Transition, timer: str, now: datetime) -> None:
    if state.watch.running:
        out.do(StartTimer(timer, now + timedelta(seconds=nodes.CHECK_S)))


def timer_due(state: State, out: Transition, event: TimerDue) -> None:
    name, _, rest = event.timer.partition(":")
    now, now_s = event.at, seconds_of(event)
    if name in (CHECK_NODES, CHECK_JOBS):
        _next_check(state, out, name, now)  # first: a bug below must not end the checks
        log_coverage.check(state, now, now_s)
        if name == CHECK_NODES:
            nodes.check(state, out, now, now_s)
            lost_ends.check(state, out, now, now_s)
        else:
            jobs.check(state, out, now, now_s)
    elif name == nodes.PROBE:
        nodes.pause_over(state, out, rest, now)
    elif name == jobs.ANSWER:
        jobs.answer_overdue(state, out, rest, now)
    elif name == reconciliation.RECONCILE:
        reconciliation.timer_due(state, out, now)
    elif name == job_ends.JOB_ENDS:
        job_ends.pause_over(state, out, now)


def effect_completed(state: State, out: Transition, event: EffectCompleted) -> None:
    """An effect of watching ended without an answer of its own."""
    name, _, _ = event.effect.partition(":")
    if name == reconciliation.RECONCILE:
        reconciliation.snapshot_taken(state, out, event.at)
        job_ends.reconciled(state, out, event.at)
    elif name == job_ends.JOB_ENDS:
        job_ends.snapshot_taken(state, out, event.at)
    elif name == nodes.IN_SERVICE:
        nodes.slurm_asked(state, out, event)
    elif name == lost_ends.STILL_LISTED:
        lost_ends.slurm_checked(state, out, event)
    elif name == jobs.STILL_RUNS:
        jobs.slurm_checked(state, out, event)
    elif name == jobs.ASK:
        jobs.job_answered(state, out, event)
