"""Compares snapshots of Slurm, to find jobs that ended and nodes that went down without an event; saves attempts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from sentinel.detect.job_end import earlier_id, failed_attempt, job_ended, partition_gone
from sentinel.detect.own_host import of_own_clock
from sentinel.detect.seen import AttemptSeen
from sentinel.engine import grouping
from sentinel.engine.events import EvidenceReceived
from sentinel.engine.reconcile import past_restarts
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer, Transition
from sentinel.model import changes
from sentinel.model.records import OURS, Evidence, Fleet, JobView, Kind, Source, Where, stable_id
from sentinel.model.vocabulary import NEVER_STARTS
from sentinel.policy import in_maintenance

RECONCILE = "reconcile"  # timer and effect
_NEWS_S = 1.0  # least time between snapshots that nodes' reports of unknown jobs request
_ANSWER_LOST = timedelta(seconds=60)  # a snapshot without an answer for so long is given up: its answer was lost
_ENDED = frozenset(
    {"failed", "node_fail", "out_of_memory", "boot_fail", "completed", "cancelled", "timeout", "preempted", "deadline"}
)


def timer_due(state: State, out: Transition, now: datetime) -> None:
    if state.watch.running:
        out.do(StartTimer(RECONCILE, now + timedelta(seconds=state.settings.slurm.reconcile_s)))
    request(state, out, now)


def request_soon(state: State, out: Transition, now: datetime, now_s: float) -> None:
    """An agent reported a job that is not known: reconcile, at most once a second."""
    if now_s - state.watch.requested_s >= _NEWS_S:
        state.watch.requested_s = now_s
        request(state, out, now)


def request(state: State, out: Transition, now: datetime) -> None:
    """Reconcile with a new snapshot; if one is on its way already, once more after it."""
    watch = state.watch
    if watch.reconciling_at is not None and now - watch.reconciling_at < _ANSWER_LOST:
        watch.reconcile_again = True
        return
    watch.reconciling_at, watch.reconcile_again = now, False
    out.do(ObserveFleet(RECONCILE, 0.0, once=True))


def snapshot_taken(state: State, out: Transition, now: datetime) -> None:
    """The snapshot was taken, or Slurm did not answer: then nothing is known."""
    watch, fleet = state.watch, state.cluster.fleet
    watch.reconciling_at = None
    if watch.reconcile_again:
        request(state, out, now)
    _look_at_own_clock(state, out)
    if fleet is None or state.blind_since is not None:
        return
    items = [ended(state, job, now) for job in fleet.jobs.values() if job.state in _ENDED and _is_news(state, job, now)]
    for item in items:  # its end may be known already, where slurmctld forgot the requeue after it
        if (seen := state.cluster.attempts.get((item.where.job or -1, item.where.attempt or 0))) is not None:
            seen.ended = True
    items.extend(_exit_held(state, fleet, now))
    items.extend(_put_off_before(state, out, fleet, now))
    items.extend(_went_down(state, fleet, now))
    if items:
        grouping.receive(state, out, EvidenceReceived(now, tuple(items)))
    save_attempts(state, out, state.cluster.attempts.values())
    state.cluster.forget(now, state.settings.judgement.group_s)
    watch.saved = {key: saved for key, saved in watch.saved.items() if key in state.cluster.attempts}
    watch.was_on_nodes &= state.cluster.attempts.keys()
    for name in [name for name in state.cluster.nodes if not fleet.may_have_node(name)]:
        del state.cluster.nodes[name]  # nothing is expected of a node that Slurm does not have
        watch.transits.pop(name, None)


def _look_at_own_clock(state: State, out: Transition) -> None:
    """Log once that this host's clock is off, and that it is right again."""
    ahead_s, watch = state.cluster.own_clock_ahead_s(), state.watch
    if ahead_s is not None and bool(ahead_s) != watch.own_clock_logged:
        watch.own_clock_logged = bool(ahead_s)
        out.say("own-clock-off" if watch.own_clock_logged else "own-clock-right", ahead_s=ahead_s, warning=True)


def ended(state: State, job: JobView, now: datetime) -> Evidence:
    """Evidence that this attempt ended, which of its nodes are in a maintenance reservation, and whether its partition is
    gone."""
    nodes = state.cluster.nodes_of(job.id, job.restarts)
    people = [name for name in nodes if left_to_people(state, name)]
    partition = partition_gone(job, nodes, state.cluster.fleet) if state.cluster.fleet is not None else ""
    return job_ended(job, now, nodes=nodes, maintenance=people, partition=partition)


def left_to_people(state: State, node: str) -> bool:
    """Whether people work on the node: in a maintenance reservation, or while it reboots as they asked of Slurm, its silence
    and its state say nothing. A node that does not come back in ``ResumeTimeout`` Slurm calls down, no longer rebooting."""
    view = state.cluster.fleet.nodes.get(node) if state.cluster.fleet is not None else None
    if view is None:
        return False
    return "reboot_issued" in view.flags or (state.settings.modes.respect_maintenance and in_maintenance(view))


def _is_news(state: State, job: JobView, now: datetime) -> bool:
    """Whether the job's end is to be reported: it ended while watched, or shortly before this daemon started."""
    seen = state.cluster.attempts.get((job.id, job.restarts))
    if seen is not None:
        return not seen.ended
    if (job.state, job.reason, job.nodes, job.restarts) == ("failed", NEVER_STARTS, (), 0):
        return False
    since = now - state.window
    if state.absence is not None and state.absence.counts(now, state.window):
        since = state.absence.since - state.window
    if job.ended_at is None or job.state == "completed":
        return False
    return of_own_clock(job.ended_at, state.cluster.own_clock_ahead_s()) > since


def _exit_held(state: State, fleet: Fleet, now: datetime) -> list[Evidence]:
    """Failures after which Slurm itself requeued and held the job; what is known already is dropped by its id."""
    held = (failed_attempt(job) for job in fleet.jobs.values() if job.exit_held)
    failed = [job for job in held if not _told_by_earlier_release(state, job)]
    ahead_s = state.cluster.own_clock_ahead_s()
    return [
        ended(state, job, now)
        for job in failed
        if (job.id, job.restarts) in state.cluster.attempts
        or (job.ended_at is not None and now - of_own_clock(job.ended_at, ahead_s) < state.window)
    ]


def _put_off_before(state: State, out: Transition, fleet: Fleet, now: datetime) -> list[Evidence]:
    """Ends before restarts of which neither the ledger nor an incident tells, since the store is an older copy of itself:
    their jobs wait for a start a month away, and nobody else lets them go."""
    left = [failed_attempt(job) for job in past_restarts.left_put_off(state, out, fleet.jobs.values())]
    known = {(incident.job, incident.attempt) for incident in state.incidents.values()} if left else set()
    return [ended(state, job, now) for job in left if (job.id, job.restarts) not in known]


def _told_by_earlier_release(state: State, job: JobView) -> bool:
    """Whether the end, from before this daemon, is known by the id that was made of it then: jobs may be held for weeks.
    What has ended since may be of another job with that id."""
    since = state.watching_since
    return since is not None and job.ended_at is not None and job.ended_at < since and earlier_id(job) in state.known


def _went_down(state: State, fleet: Fleet, now: datetime) -> list[Evidence]:
    watch = state.watch
    down = frozenset(name for name, node in fleet.nodes.items() if node.state == "down" or "fail" in node.flags)
    if watch.down is not None:  # nodes whose record cannot be read keep their state
        down |= frozenset(name for name in watch.down - down if name not in fleet.nodes and fleet.may_have_node(name))
    if watch.down is not None:  # who stays down when the reservation is over goes down then
        down -= {name for name in down - watch.down if left_to_people(state, name)}
    before, watch.down = watch.down, down
    if before is None:
        return []
    return [
        Evidence(
            id=stable_id("node_down", name, fleet.nodes[name].reason, now.isoformat()),
            at=now,
            seen_at=now,
            source=Source.SLURM,
            kind=Kind.NODE_DOWN,
            where=Where(node=name),
            text=f"Slurm says {name} is down: {fleet.nodes[name].reason}",
            data={"reason": fleet.nodes[name].reason[:200]},
        )
        for name in sorted(down - before)
        if not fleet.nodes[name].reason.startswith(OURS)
    ]


def save_attempts(state: State, out: Transition, attempts: Iterable[AttemptSeen]) -> None:
    """Save what changed about these attempts: a restarted daemon continues with their nodes and steps."""
    for seen in attempts:
        if seen.view.started_at is None:
            continue
        change = changes.AttemptSeen(seen.view, seen.first_step, seen.last_step, seen.usual_step_s())
        key = seen.view.id, seen.view.restarts
        if state.watch.saved.get(key) != change:
            state.watch.saved[key] = change
            out.save(change)
