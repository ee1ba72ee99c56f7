"""Finds batch jobs that ended without Slurm's knowledge: it lists them as running, and no process of them is left.

slurmctld saves its state some seconds late. Killed after a job had ended, it lists the job as running again, and looks
for its processes only when the nodes register the next time, up to half an hour later. The job's log is read no more, so
that its silence tells nothing. What tells is that no agent of its nodes has it any longer, although one had it: then the
nodes are asked for its processes, and when each answers that there is none, Slurm is asked whether it still lists the job.

    no agent has it -> every node answers that it finds no process (``LookAtJob``) -> Slurm lists it (``ObserveFleet``)
    -> the job's end is reported

Not known is no answer: a node that is silent, or whose agent never had the job (without the prolog hook), says nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.detect.job_end import unrecorded_end
from sentinel.detect.seen import AttemptSeen
from sentinel.engine import grouping
from sentinel.engine.events import EffectCompleted, EvidenceReceived
from sentinel.engine.state import State
from sentinel.engine.transition import LookAtJob, ObserveFleet, Transition
from sentinel.engine.watch.events import JobObserved
from sentinel.engine.watch.state import LostEnd

PROCESSES = "processes-of"  # effect: asks the nodes
STILL_LISTED = "still-listed"  # effect: asks Slurm
_PATIENCE = timedelta(seconds=10)  # epilogs are over, and slurmctld and its hooks have told the end, long before
_RETRY_AFTER = timedelta(seconds=30)  # between two questions about one job


def check(state: State, out: Transition, now: datetime, now_s: float) -> None:
    """Ask about each attempt that its agents have no longer."""
    watch = state.watch
    for key in [key for key in watch.lost_ends if key not in state.cluster.attempts]:
        del watch.lost_ends[key]
    for key, seen in state.cluster.attempts.items():
        if seen.ended or seen.view.state != "running" or seen.view.batch is not True:
            continue
        if not _is_absent(state, key, seen, now_s):
            watch.lost_ends.pop(key, None)
            continue
        lost = watch.lost_ends.setdefault(key, LostEnd(now))
        if now - lost.since >= _PATIENCE and (lost.asked_at is None or now - lost.asked_at >= _RETRY_AFTER):
            lost.asked_at, lost.answered = now, False
            out.do(LookAtJob(f"{PROCESSES}:{_name(key)}:{now.isoformat()}", *key, seen.nodes))


def _is_absent(state: State, key: tuple[int, int], seen: AttemptSeen, now_s: float) -> bool:
    """Whether all agents of its nodes are in contact and none has the attempt, although one had it."""
    if not seen.nodes or not (key in state.watch.was_on_nodes or seen.last_step is not None):
        return False
    patience_s = state.settings.daemon.heartbeat_lost_s
    for name in seen.nodes:  # the batch host first: it tells of most jobs that they are there
        node = state.cluster.node(name)
        if node.jobs is None or key in node.jobs or node.contact_s is None or now_s - node.contact_s > patience_s:
            return False
    return True


def observed(state: State, out: Transition, event: JobObserved) -> None:
    """The nodes answered, or did not in time."""
    key = _key(event.effect)
    lost, seen = state.watch.lost_ends.get(key), state.cluster.attempts.get(key)
    if lost is None or seen is None:
        return
    looks = [event.looks.get(name) for name in seen.nodes]
    if all(look is not None and not look.processes for look in looks):
        lost.answered = True
        out.do(ObserveFleet(f"{STILL_LISTED}:{_name(key)}", 0.0, once=True))


def slurm_checked(state: State, out: Transition, event: EffectCompleted) -> None:
    """Report the end, if Slurm still lists the attempt as running in a snapshot taken since the nodes answered."""
    key, fleet = _key(event.effect), state.cluster.fleet
    lost, seen = state.watch.lost_ends.get(key), state.cluster.attempts.get(key)
    if lost is None or seen is None or not lost.answered or lost.asked_at is None or seen.ended:
        return
    view = fleet.jobs.get(key[0]) if fleet is not None and state.blind_since is None else None
    if fleet is None or fleet.at < lost.asked_at or view is None:
        return
    if (view.state, view.restarts, view.started_at) != ("running", key[1], seen.view.started_at):
        return
    out.say("job-end-not-recorded", warning=True, job=key[0], attempt=key[1], nodes=",".join(seen.nodes))
    items = (unrecorded_end(view, lost.since, event.at, nodes=seen.nodes),)
    grouping.receive(state, out, EvidenceReceived(event.at, items))


def _name(key: tuple[int, int]) -> str:
    return f"{key[0]}.{key[1]}"


def _key(effect: str) -> tuple[int, int]:
    """The attempt of an effect of this module."""
    job, _, attempt = effect.split(":")[1].partition(".")
    return int(job), int(attempt)
